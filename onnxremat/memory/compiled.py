"""The compiled library: found and loaded."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any


@cache
def compiled() -> Any:
    """The library, or a sentence that says why there is none."""
    built = sorted(Path(__file__).parent.glob("_slab*.so"))
    if not built:
        return "the package was installed without its compiled allocator"
    try:
        return ctypes.CDLL(str(built[0]))
    except OSError as error:
        return f"the compiled allocator does not load: {error}"
