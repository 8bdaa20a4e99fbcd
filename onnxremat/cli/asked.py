"""The command that was given, as a line for a shell: what a report says a file was made by."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import typer


def asked(context: typer.Context) -> str:
    """The command with the arguments and options that were given; of paths the file's name, so that
    files do not tell whose folders they were made in."""
    words = ["onnxremat", str(context.info_name)]
    for parameter in _given(context):
        words += _words(parameter, context.params[str(parameter.name)])
    return shlex.join(words)


def first_given(context: typer.Context, names: Collection[str]) -> str:
    """The first option of some parameters that was given, ``--as-it-was-written``; "" for none."""
    return next(iter(repeated(context, names)), "")


def repeated(context: typer.Context, names: Collection[str]) -> list[str]:
    """Some parameters' options that were given, as they were, for another command."""
    rows = ((p, context.params[str(p.name)]) for p in _given(context) if p.name in names)
    return [word for row in rows for word in _words(*row)]


def _given(context: typer.Context) -> Iterator[Any]:
    """Arguments and options that stand on the command line."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            yield parameter


def _words(parameter: Any, value: Any) -> Iterator[str]:
    """The words of one argument or option."""
    if parameter.param_type_name == "argument":
        yield _named(value)
    elif isinstance(value, bool):
        yield (parameter.opts if value else parameter.secondary_opts)[0]
    elif parameter.count:
        yield from [parameter.opts[0]] * value
    else:
        for each in value if isinstance(value, list | tuple) else [value]:
            yield parameter.opts[0]
            yield _named(each)


def _named(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    path = isinstance(value, Path) or (os.sep in text and Path(text).exists())
    return Path(text).name if path else text
