"""JSON that others may have written: read without ever overrunning the stack."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from typing import Any

from onnxremat.limits import NESTING


def loads(text: str | bytes, parse_float: Callable[[str], Any] = float) -> Any:
    """What a JSON text says.

    Args:
        parse_float: makes numbers with a point of their text.

    Raises:
        ValueError: it is no JSON, or nested deeper than :data:`limits.NESTING`.
    """
    deep = f"nested deeper than {NESTING} levels"
    try:
        found = json.loads(text, parse_float=parse_float)
    except RecursionError:
        raise ValueError(deep) from None
    level = [found]
    for _ in range(NESTING):
        level = list(chain.from_iterable(map(_inside, level)))
        if not level:
            return found
    raise ValueError(deep)


def why_damaged(error: Exception) -> str:
    """What is wrong with what a text says, of the error that taking it apart ended with."""
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _inside(value: Any) -> Any:
    """The lists and objects right inside of one."""
    rows = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [row for row in rows if isinstance(row, list | dict)]
