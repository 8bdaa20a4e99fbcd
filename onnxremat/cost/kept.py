"""Where what was measured on this machine is kept. Imports nothing: sessions ask as they open."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Where measured costs and arenas are kept (``ONNXREMAT_CACHE`` overrides)."""
    if os.environ.get("ONNXREMAT_CACHE"):
        return Path(os.environ["ONNXREMAT_CACHE"])
    try:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"onnxremat-{os.getuid()}"
    return Path(home) / "onnxremat"
