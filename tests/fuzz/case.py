"""What a case is."""

from __future__ import annotations

from dataclasses import dataclass

FAST = ("--time-limit", "0.5", "--bench-seconds", "0", "--threads", "1")


@dataclass(frozen=True)
class Case:
    """A command in a folder of its own.

    Attributes:
        files: by name; written before.
        command: arguments of ``onnxremat``.
        same: name of a model and of what the command writes, which has to compute the same.
        allowed: exit codes that are right beside those of any command.
    """

    kind: str
    files: dict[str, bytes]
    command: tuple[str, ...]
    same: tuple[str, str] | None = None
    allowed: tuple[int, ...] = ()
