"""The kind of a file is in its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxremat.errors import UsageError


def check_suffix(path: Path, accepted: Sequence[str]) -> str:
    """The suffix of ``path`` in lower case.

    Raises:
        UsageError: not one of ``accepted``.
    """
    suffix = path.suffix.lower()
    if suffix not in accepted:
        raise UsageError(
            f"cannot write {path}: unknown suffix '{path.suffix}'",
            hint="end the name in " + " or ".join(accepted),
        )
    return suffix
