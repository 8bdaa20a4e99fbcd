"""The kind of a file is in its name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from onnxremat.errors import MissingComponentError, UsageError

DRAWN = (".png", ".svg")


def check_suffix(path: Path, accepted: Sequence[str]) -> str:
    """The suffix of ``path`` in lower case.

    Raises:
        UsageError: not one of ``accepted``.
        MissingComponentError: it is a drawing, and nothing is here that draws.
    """
    suffix = path.suffix.lower()
    if suffix not in accepted:
        raise UsageError(
            f"cannot write {path}: unknown suffix '{path.suffix}'",
            hint="end the name in " + " or ".join(accepted),
        )
    if suffix in DRAWN and find_spec("matplotlib") is None:
        raise MissingComponentError(
            f"cannot draw {path}: matplotlib is not installed",
            hint="pip install 'onnxremat[plot]'; the page of onnxremat report needs none",
        )
    return suffix
