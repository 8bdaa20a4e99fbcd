"""Errors and the exit code of each kind.

    OnnxrematError            1   internal or unexpected
    +-- UsageError            2   wrong option, budget, shape or file name
    |   +-- ModelError        2   the model cannot be read, or is not valid
    +-- InfeasibleError       3   proven: no plan fits the budget
    +-- NoPlanError           4   no plan found in time, infeasibility not proven
    +-- VerificationError     5   outputs or executed order differ
    +-- OverBudgetError       6   the measured peak misses the budget
    +-- UnsupportedError      7   an operator or feature without support here
    +-- MissingComponentError 8   a runtime flavour, solver or licence is not there
    +-- ExhaustedError        9   memory or a disk of this machine ran out
    +-- StoppedError        130   stopped by Ctrl-C before any plan was found

An error says what went wrong, where, why, and what to try; the command line prints those four
parts and exits with ``exit_code``.
"""

from __future__ import annotations

import errno
import re

# Disk, quota, size of a file, open files.
USED_UP = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})

_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Text without what steers a terminal, as names in files may; lines and tabs stay."""
    return _STEERS.sub("?", text)


class OnnxrematError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: one sentence, what is wrong.
        where: file, node or option it is about.
        why: the fact behind it.
        hint: what to do next.

    Attributes:
        refusal: what an error that refuses a budget was made from
            (:class:`onnxremat.pipeline.refusal.Refusal`), for those who know more; None for others.
    """

    exit_code = 1
    refusal: object = None

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.hint = what, where, why, hint

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (("where", self.where), ("why", self.why), ("try", self.hint)):
            if text:
                lines.append(f"  {label:5s} {text}")
        return "\n".join(lines)


class UsageError(OnnxrematError):
    """A wrong option, budget, shape or file name."""

    exit_code = 2


class ModelError(UsageError):
    """The model cannot be read, or is not valid."""


class InfeasibleError(OnnxrematError):
    """Proven: no plan fits the budget.

    Args:
        smallest: smallest budget in bytes for which a plan was found, if any.
        lower_bound: proven lower bound on every feasible budget, in bytes.
    """

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        smallest: int | None = None,
        lower_bound: int = 0,
        where: str = "",
        why: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(what, where=where, why=why, hint=hint)
        self.smallest, self.lower_bound = smallest, lower_bound


class NoPlanError(OnnxrematError):
    """No plan found in time; infeasibility is not proven. ``smallest`` bytes do work."""

    exit_code = 4

    def __init__(
        self,
        what: str,
        *,
        smallest: int | None = None,
        where: str = "",
        why: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(what, where=where, why=why, hint=hint)
        self.smallest = smallest


class VerificationError(OnnxrematError):
    """The result does not compute what the original computes, or runs in another order."""

    exit_code = 5


class OverBudgetError(OnnxrematError):
    """The measured peak misses the budget, by ``excess`` bytes."""

    exit_code = 6

    def __init__(
        self, what: str, *, excess: int = 0, where: str = "", why: str = "", hint: str = ""
    ) -> None:
        super().__init__(what, where=where, why=why, hint=hint)
        self.excess = excess


class UnsupportedError(OnnxrematError):
    """An operator or feature that is not supported."""

    exit_code = 7


class MissingComponentError(OnnxrematError):
    """A runtime flavour, solver or licence is missing."""

    exit_code = 8


class ExhaustedError(OnnxrematError):
    """Memory or a disk of this machine ran out."""

    exit_code = 9


class StoppedError(OnnxrematError):
    """Stopped by Ctrl-C before there was anything to keep."""

    exit_code = 130


class EndedError(BaseException):
    """Work that nobody waits for any more, ended by Ctrl-C while there is something to keep without
    it. Raised between any two lines, so it is no Exception, which a line around it may take for an
    error of its own; whoever asked for the work catches it."""


class PressedError(BaseException):
    """Ctrl-C while there is nothing to keep. No Exception either: around what onnxruntime raises
    every line takes it for the runtime's refusal. The command line catches it."""


class TrainingWarning(UserWarning):
    """A training step may not be what its user thinks it is: something is not trained, guessed, or
    shared."""


# No plan keeps the budget: proven, not found, or only when carried out.
NO_FIT = (InfeasibleError, NoPlanError, OverBudgetError)
