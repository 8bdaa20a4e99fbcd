"""Why something cannot be, when that is about one op: its number stays data beside the words."""

from __future__ import annotations

from collections.abc import Sequence


class Reason(str):
    """A sentence about an op, by its number: ``Reason("{op} needs 5 bytes", 3)``.

    Attributes:
        text: the sentence, ``{op}`` standing for the op.
        op: its number.
    """

    text: str
    op: int

    def __new__(cls, text: str, op: int) -> Reason:
        made = super().__new__(cls, text.replace("{op}", f"op {op}"))
        made.text, made.op = text, op
        return made

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]
        return self.text, self.op


def named(why: str, names: Sequence[str]) -> str:
    """A sentence with the op's name instead of its number, where it is about one."""
    return why.text.replace("{op}", names[why.op]) if isinstance(why, Reason) else why
