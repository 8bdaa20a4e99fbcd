"""Whether weights that are given are of the model that a training step was made from.

What a step trains belongs to what it holds for good: beside other frozen values it is a model that
nobody has trained. So a step knows a mark of each of these values, of its type, shape and bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np

from onnxremat.errors import UsageError
from onnxremat.grad.description import StepSignature


def mark(value: np.ndarray) -> str:
    """Element type, shape and a number of the bytes of a value."""
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return f"{value.dtype}{list(value.shape)}:{crc32(content):08x}"


def check_frozen(
    about: StepSignature, mark_of: Callable[[str], str], *, named_alike: bool = False
) -> None:
    """What is given has the values that a step holds for good.

    Args:
        about: the step.
        mark_of: mark of a value of what is given, by its name there, "" where there is none.
        named_alike: what is given are arrays, which may be of the same name and something else: of
            another type or shape they do not count.

    Raises:
        UsageError: it has others.
    """
    for row in about.weights:
        given = mark_of(row.name) if row.mark else ""
        other_kind = given.partition(":")[0] != row.mark.partition(":")[0]
        if given in ("", row.mark) or (named_alike and other_kind):
            continue
        raise UsageError(
            f"'{row.name}' is frozen in the training graph, and has other values in the weights "
            "given",
            why="what is trained would be joined with values that are not those it is trained with",
            hint="make the step of the model with these weights, or give those of the model that "
            "it was made from",
        )
