"""Options that may be given with a number or without one: ``--pipeline 2``, ``--pipeline``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typer.core import TyperCommand

COUNTED = ("--data-parallel", "--pipeline")
REST = 0  # what an option without a number stands for: all that there are


class Counted(TyperCommand):
    """A command with such options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As every command, each of these options with a number."""
        return super().parse_args(ctx, list(numbered(args)))


def numbered(args: Sequence[str]) -> Iterator[str]:
    """Arguments, those options that no number follows with ``REST``."""
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        given = following.isascii() and following.lstrip("-").isdigit()
        yield f"{arg}={REST}" if arg in COUNTED and not given else arg
