"""How an example is started, and how it talks."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxremat.units import format_bytes


class Said:
    """Prints what an example finds, and keeps it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines += line.splitlines()
        print(line, flush=True)

    def memory(self, what: str, facts: Mapping[str, Any]) -> None:
        """Before and after, of an optimisation."""
        before, after = facts["baseline_peak_bytes"], facts["peak_measured_bytes"]
        self(
            f"{what}: {format_bytes(before)} -> {format_bytes(after)} measured, "
            f"{after / before:.0%}, for {facts['overhead_planned']:+.1%} time as planned"
        )

    def skip(self, why: str) -> None:
        """What cannot be done on this machine."""
        self(f"skipped: {why}")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class Example:
    """An example: ``main(small, folder, say)``."""

    main: Callable[[bool, Path, Said], None]

    def __call__(self, small: bool, folder: Path) -> Said:
        """Run it, with files in a folder; returns what it said."""
        said = Said()
        self.main(small, folder, said)
        return said

    def run(self) -> None:
        """Run it from a command line."""
        parser = argparse.ArgumentParser(description=self.main.__globals__["__doc__"])
        parser.add_argument("--small", action="store_true", help="at the size of a test")
        parser.add_argument("--folder", type=Path, help="keep the files here")
        asked = parser.parse_args()
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as temporary:
            folder = asked.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            said = self(asked.small, folder)
        said(f"took {time.perf_counter() - begin:.0f} s")


example = Example
