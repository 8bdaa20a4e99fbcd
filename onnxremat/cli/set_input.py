"""onnxremat set-input IN.onnx OUT.onnx flag=false: inputs that always have one value."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError


def command(
    source: args.Model,
    target_file: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    values: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="sr=16000, flag=false, sizes=1,2,3."),
    ],
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Give inputs one value for good, so that branches and loops that follow from it are known."""
    from onnxremat import api
    from onnxremat.pipeline.set_input import set_inputs

    voice = Voice(as_json, quiet)
    api.check_paths(source, target_file)
    facts = set_inputs(source, target_file, _parsed(values))
    for name, about in facts["inputs"].items():
        voice.note(f"input '{name}' is {about['value']}")
    if facts["plan_left_out"]:
        voice.note("the plan is left out: it holds for the model with these inputs")
    voice.note(f"wrote {target_file}")
    if as_json:
        voice.result(facts)


def _parsed(texts: list[str]) -> dict[str, str]:
    """Values by the name of an input.

    Raises:
        UsageError: a text without a name or a value, or a name that is there twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name.strip() or not value.strip():
            raise UsageError(f"'{text}' is not understood", hint="NAME=VALUE, as in sr=16000")
        if name.strip() in found:
            raise UsageError(f"input '{name.strip()}' is set twice")
        found[name.strip()] = value.strip()
    return found
