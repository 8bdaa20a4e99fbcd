"""Ctrl-C at a process, at moments of its own processor time, and whether it answers."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ANSWER = 2.0  # seconds of a processor until Ctrl-C is answered; a second one ends the process
ANSWERED = ("interrupted", "stopping")


def seconds_of(process: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Presses:
    """Ctrl-C once a process has used ``at`` seconds, and again when that is answered, where
    ``twice``. What answers late is killed.

    Attributes:
        late: what was not answered in time, "" for nothing.
        pressed: seconds at which each was pressed.
    """

    at: float
    twice: bool
    said: Path
    late: str = ""
    pressed: list[float] = field(default_factory=list)
    answered: bool = False

    def look(self, process: int) -> None:
        """Called again and again while the process runs."""
        with suppress(OSError):  # it has ended just now
            self._look(process, seconds_of(process))

    def _look(self, process: int, used: float) -> None:
        if not self.pressed:
            if used >= self.at:
                self._press(process, used)
            return
        text = self.said.read_text(errors="replace")
        self.answered = self.answered or any(word in text for word in ANSWERED)
        if self.answered and self.twice and len(self.pressed) == 1:
            self._press(process, used)
        elif used - self.pressed[-1] > ANSWER and not (self.answered and not self.twice):
            which = "the second " if len(self.pressed) > 1 else ""
            self.late = f"{which}Ctrl-C at {self.pressed[-1]:.2f} s is not answered in {ANSWER} s"
            os.kill(process, signal.SIGKILL)

    def _press(self, process: int, used: float) -> None:
        self.pressed.append(used)
        os.kill(process, signal.SIGINT)
