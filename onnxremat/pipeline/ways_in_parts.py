"""Plans of a model of which something is computed in parts: what all ways of doing so share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from onnxremat.errors import (
    EndedError,
    InfeasibleError,
    NoPlanError,
    OnnxrematError,
    UnsupportedError,
)
from onnxremat.pipeline.closed_loop import Candidate, Unfit, attempt
from onnxremat.pipeline.in_session import OneSession
from onnxremat.pipeline.limits import (
    Limit,
    beside_in_parts,
    beside_too,
    is_hopeless,
    least_in_parts,
)
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import Prepared
from onnxremat.pipeline.time_left import out_of_time
from onnxremat.pipeline.within_budget import at_minimum, smallest
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.solution import Solution
from onnxremat.units import Budget, format_bytes

WHOLE = 0.5  # share of the time for plans of the whole, where parts are another way
LEANER = 0.98  # share of the least bytes so far from which a graph in parts is worth its search


def attempt_in_parts(
    target: OneSession, options: PlanOptions, whole: Candidate | None
) -> Candidate | Unfit[Solution] | None:
    """Plan a model in parts. None once planning is stopped, but where it fits as it is and there is
    no plan of the whole to keep."""
    if options.stopped:
        if whole is not None or target.prepared.store_all_peak > target.limit.planned:
            return None
        options = replace(options.lasting(options.least), stop=None)
    return attempt(target, options)


@dataclass
class InParts(ABC):
    """Plans with something in parts.

    Attributes:
        least: the smallest budget of such a graph that was carried out, in bytes.
        tried: limits that it was looked for.
        whole: the plan of the whole that is at hand, None where there is none.
        late: why there is no time for parts, "" where there was.
        unfinished: why parts may be there that were not found, "" where all were looked at.
    """

    prepared: Prepared
    budget: Budget
    options: PlanOptions
    log: Phases
    least: int | None = None
    tried: dict[Limit, Candidate | None] = field(default_factory=dict)
    whole: Candidate | None = None
    late: str = ""
    unfinished: str = ""

    def within(self, limit: Limit, why: str) -> Candidate | None:
        """A plan that keeps the budget, ``limit`` of the whole graph, None where there is none.

        Args:
            why: the whole is not taken, for people.
        """
        if limit not in self.tried:
            self.late = self.late or out_of_time(self.prepared, self.options, self.log)
            self.tried[limit] = None if self.late else self._within(limit, why)
        return self.tried[limit]

    @abstractmethod
    def _within(self, limit: Limit, why: str) -> Candidate | None:
        """As :meth:`within`."""

    @abstractmethod
    def _leanest(self) -> Prepared | None:
        """The model in the parts that need least, None where that gains nothing."""

    def leaner(self, whole: Candidate) -> Candidate:
        """The least memory: that of a candidate, or of one in parts."""
        self.whole = whole
        split = self._leanest()
        if split is None or split.store_all_peak > whole.held / LEANER or self.options.stopped:
            return whole
        floor = least_in_parts(self.prepared)
        why = "weights and results, which are there in any parts"
        least = smallest(split, self.options.within(WHOLE), self.log)
        found = at_minimum(split, replace(least, lower=floor, why=why), self.options, self.log)
        return found if found.held < whole.held else whole

    def _made(self, make: Callable[[], Prepared]) -> Prepared | None:
        """A model in parts; None where it does not go, or nobody waits for it any more."""
        self.late = self.late or out_of_time(self.prepared, self.options, self.log)
        if self.options.stopped or self.late:
            return None
        try:
            with self.log.ending(self.whole is not None):
                return make()
        except (UnsupportedError, EndedError):
            return None

    def _noted(self, split: Prepared, what: str, of: str) -> Prepared:
        """A model in parts that goes: its bytes are known, and it says what it is.

        Args:
            what: is computed in parts, why, and at what price.
            of: what its plan is of.
        """
        self._seen(split.store_all_peak + split.beside.total)
        proof = (
            f"figures and proof of the plan are of the {of} in these parts; other parts may do "
            "better"
        )
        return replace(split, notes=(*split.notes, f"computed in parts: {what}", proof))

    def _seen(self, budget: int) -> None:
        self.least = min(budget, self.least or budget)

    def refusal(self, error: OnnxrematError, limit: Limit) -> OnnxrematError:
        """What is known of plans of the whole and of parts: no proof where parts need less."""
        works = getattr(error, "smallest", None)
        hopeless, untried = is_hopeless(self.prepared, limit), self.late or self.unfinished
        if self.least is None and not hopeless and not untried:
            return error
        if works is None or (self.least is not None and self.least <= LEANER * works):
            works = self.least
            said = "the smallest budget that a plan was found for, regions in parts"
            hint = f"--budget {works} ({format_bytes(works)}, {said})" if works else error.hint
        elif not hopeless and not untried:
            return error
        else:
            hint = error.hint
        if hopeless:
            least = least_in_parts(self.prepared)
            text = f"at least {format_bytes(least)} ({least} B) are needed: weights and results"
            why = beside_too(
                text + ", which are there in any parts", beside_in_parts(self.prepared)
            )
            return InfeasibleError(
                error.what, why=why, hint=hint, smallest=works, lower_bound=least
            )
        whole = "no plan of the whole is possible" if isinstance(error, InfeasibleError) else ""
        why = "; ".join(filter(None, (whole or "none was found of the whole", error.why, untried)))
        return NoPlanError(error.what, why=why, hint=hint, smallest=works)
