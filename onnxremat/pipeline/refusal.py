"""Why there is no plan for a budget, and what would work: one object, whoever finds out what of it.

It becomes an error in one place: :meth:`Refusal.error` alone says proven (exit code 3) or not found
(4). The error carries its refusal, so that who knows more (parts of the model, the original) goes
on from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxremat.device.host import memory_bytes
from onnxremat.errors import InfeasibleError, NoPlanError, OnnxrematError
from onnxremat.planner.solution import Solution, Status
from onnxremat.units import Budget, format_bytes, share_of

FOUND = "the smallest budget that a plan was found for"
ORIGINAL = "what the original takes: it is written as it is then"
AS_OPTIMISED = "that is of the graph as it is optimised, which takes more than the original"


@dataclass(frozen=True)
class Works:
    """A budget that works, for a hint.

    Attributes:
        size: its bytes, of the process.
        words: what is known of it.
        asked: how it is asked for, "" in bytes.
        fits: bytes of weights and values among them, 0 where that is not known: a share of the
            original's is a limit of these alone.
    """

    size: int
    words: str
    asked: str = ""
    fits: int = 0

    @classmethod
    def found(cls, size: int, how: str = "", fits: int = 0) -> Works:
        """The smallest that there is a plan for.

        Args:
            how: what it takes.
        """
        return cls(size, f"{FOUND}, {how}" if how else FOUND, fits=fits)

    def __str__(self) -> str:
        size = format_bytes(self.size)
        if self.asked and self.fits:  # a share of these alone, whatever is beside them
            beside = format_bytes(self.size - self.fits)
            size = f"{format_bytes(self.fits)} for weights and values and {beside} beside them"
        return f"--budget {self.asked or self.size} ({size}, {self.words})"


@dataclass(frozen=True)
class Refusal:
    """No plan keeps a budget.

    Attributes:
        what: was asked for, in a sentence.
        why: there is none.
        proven: whether there can be none.
        works: a budget that works, None where none is known.
        smallest: bytes that a plan is known for.
        lower: proven lower bound on every budget in bytes.
        first, more: what else to try, said before and after the budget that works.
    """

    what: str
    why: str
    proven: bool
    works: Works | None = None
    smallest: int | None = None
    lower: int = 0
    first: str = ""
    more: Sequence[str] = ()

    @classmethod
    def of(cls, error: OnnxrematError) -> Refusal:
        """What an error refuses: what it was made from, else what it says."""
        if isinstance(error.refusal, Refusal):
            return error.refusal
        return cls(
            error.what,
            error.why,
            isinstance(error, InfeasibleError),
            smallest=getattr(error, "smallest", None),
            lower=getattr(error, "lower_bound", 0),
            first=error.hint,
        )

    @property
    def hint(self) -> str:
        """What to try next."""
        rest = "; ".join([*([str(self.works)] if self.works else []), *self.more])
        return f"{self.first}, or {rest}" if self.first and rest else self.first or rest

    def error(self) -> InfeasibleError | NoPlanError:
        """To be raised."""
        made: InfeasibleError | NoPlanError
        if self.proven:
            made = InfeasibleError(
                self.what, why=self.why, hint=self.hint, smallest=self.smallest,
                lower_bound=self.lower,
            )  # fmt: skip
        else:
            made = NoPlanError(self.what, why=self.why, hint=self.hint, smallest=self.smallest)
        made.refusal = self
        return made

    def unproven(self, untried: str) -> Refusal:
        """Of a whole, where parts may do with less: no proof.

        Args:
            untried: why it is not known what they take.
        """
        whole = "no plan of the whole is possible" if self.proven else "none was found of the whole"
        why = "; ".join(filter(None, (f"{whole}: {self.why}", untried)))
        return replace(self, proven=False, why=why, lower=0)

    def leaner(self, works: Works) -> Refusal:
        """Another plan is known to do with less: that is what to try."""
        return replace(self, works=works, smallest=works.size, first="", more=())

    def in_unit(self, budget: Budget, peak: int, beside: int) -> Refusal:
        """With the budget that works asked for as a share of what the refused one was a share of.

        Args:
            peak: bytes of the original, weights and values.
            beside: bytes beside those of the model as it is, which shares of them do not count.
        """
        works = self.works
        if works is None or works.asked or budget.kind not in ("peak", "device"):
            return self
        if budget.kind == "device":
            works = replace(works, fits=0)
            asked = share_of(works.size, memory_bytes(), "%")
        elif peak:
            works = replace(works, fits=works.fits or works.size - beside)
            asked = share_of(works.fits, peak, "x")
        else:  # of what takes nothing, no share is enough
            return self
        return replace(self, works=replace(works, asked=asked))

    def also(self, hint: str) -> Refusal:
        """With one more thing to try, "" for none."""
        return replace(self, more=(*self.more, hint)) if hint else self

    def or_original(self, takes: int, opens: bool, of_peak: int = 0) -> Refusal:
        """No budget beyond what the original takes is a hint: the original keeps that.

        Args:
            takes: bytes of the original, of what budgets count.
            opens: opening it takes no more for certain; else a share is what keeps it.
            of_peak: bytes of its weights and values, where a share of these was asked for.
        """
        if self.smallest is None:
            return self
        fits = self.works.fits if of_peak and self.works else 0
        if fits < of_peak if fits else takes >= self.smallest:
            return self
        works = self.works and Works(takes, ORIGINAL, "" if opens else "1.0x")
        made = replace(
            self, works=works, smallest=min(takes, self.smallest) if opens else self.smallest
        )
        if takes >= self.lower:
            return made
        return replace(made, lower=takes, why=f"{self.why}; {AS_OPTIMISED}")


def given_up(method: str, name: str, limit: int, solution: Solution) -> NoPlanError:
    """A planner or formulation of the user's choice has no plan; others may have."""
    return NoPlanError(
        f"{method} has no plan for {name} within {format_bytes(limit)} ({limit} B)",
        why="; ".join(solution.notes) or "none was found in time",
        hint="--planner auto, a longer --time-limit, or a larger --budget",
    )


def unexplained(
    name: str, limit: int, solution: Solution, fixed_order: bool
) -> InfeasibleError | NoPlanError:
    """No plan, when nobody asked what would work."""
    any_order = solution.certificate.any_order or fixed_order
    return Refusal(
        f"no plan for {name} fits {format_bytes(limit)} ({limit} B)",
        "; ".join(solution.notes),
        proven=solution.status is Status.INFEASIBLE and any_order,
        lower=limit + 1,
    ).error()


@dataclass(frozen=True)
class Least:
    """What would work.

    Attributes:
        works: smallest budget with a plan, in bytes.
        lower: proven lower bound on every budget in bytes, ``why`` its reason.
        how: what the smallest budget takes.
        fits: bytes of weights and values in it.
    """

    works: int
    lower: int
    why: str
    how: str = ""
    fits: int = 0


def refusal(
    name: str,
    limit: int,
    solution: Solution,
    least: Least,
    *,
    all_ways: bool,
    notes: Sequence[str] = (),
) -> InfeasibleError | NoPlanError:
    """Proven, with the smallest budget that works; or not found in time.

    A proof for one order of first runs counts only when that order is asked for.

    Args:
        name: of the model.
        limit: the budget in bytes.
        solution: the planner's answer without a sequence.
        all_ways: the answer is about all that may be done; no other order or way is left.
        notes: further things to try.
    """
    size = f"{format_bytes(limit)} ({limit} B)"
    need = f"at least {format_bytes(least.lower)} ({least.lower} B) are needed: {least.why}"
    works = Works.found(least.works, least.how, least.fits)
    below = limit < least.lower
    if below or (solution.status is Status.INFEASIBLE and all_ways):
        return Refusal(
            f"no plan for {name} fits {size}",
            need if below else f"proven by {solution.certificate.kind}; {need}",
            proven=True,
            works=works,
            smallest=least.works,
            lower=least.lower if below else max(least.lower, min(limit + 1, least.works)),
            more=notes,
        ).error()
    return Refusal(
        f"no plan for {name} within {size} found in time",
        f"not proven impossible in every order; {need}",
        proven=False,
        works=works,
        smallest=least.works,
        first="raise --time-limit",
        more=notes,
    ).error()
