"""Plans of a model of which something is computed in parts: what all ways of doing so share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from onnxremat.errors import EndedError, OnnxrematError, UnsupportedError
from onnxremat.pipeline.closed_loop import Candidate, Unfit, attempt
from onnxremat.pipeline.floor import WORDS, beside_too
from onnxremat.pipeline.in_session import OneSession
from onnxremat.pipeline.kept_plans import Known, keep, plan_of
from onnxremat.pipeline.limits import Limit
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import Refusal, Works
from onnxremat.pipeline.time_left import no_time, out_of_time
from onnxremat.pipeline.within_budget import applied, at_minimum, no_less, smallest
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.solution import Solution
from onnxremat.units import Budget, format_bytes

WHOLE = 0.5  # share of the time for plans of the whole, where parts are another way
INTERRUPTED = "interrupted before it was known what parts take"
LEANER = 0.98  # share of the least bytes so far from which a graph in parts is worth its search


def attempt_in_parts(
    target: OneSession,
    options: PlanOptions,
    whole: Candidate | None,
    warm: Sequence[int] | None = None,
) -> Candidate | Unfit[Solution] | None:
    """Plan a model in parts. None where onnxruntime runs the plan in another order, and once
    planning is stopped, but where it fits as it is and there is no plan of the whole to keep.

    Args:
        warm: ops of the reduced problem to start from.
    """
    if options.stopped:
        if whole is not None or target.prepared.store_all_peak > target.limit.planned:
            return None
        options = replace(options.lasting(options.least), stop=None)
    found = attempt(target, options, warm)
    return None if isinstance(found, Candidate) and not found.in_order else found


def proven_of(found: Candidate, what: str, why: str) -> Candidate:
    """The smallest plan of some, with what is proven of these alone: of all that there are it is
    what is there in any plan.

    Args:
        what: it is proven for.
        why: others may need less.
    """
    proof, floor = no_less(found.lower), found.prepared.floor.total
    notes = [n for n in found.plan.provenance.notes if not n.startswith(proof)]
    notes += [f"{proof} can work {what}: {found.why}", why]
    return replace(found.told(notes=tuple(notes)), lower=min(floor, found.lower), why=WORDS)


def of_these_parts(of: str) -> str:
    """What the figures of a plan are of, for people.

    Args:
        of: what is in parts.
    """
    return (
        f"figures and proof of the plan are of the {of} in these parts; other parts may do better"
    )


@dataclass
class InParts(ABC):
    """Plans with something in parts.

    Attributes:
        smallest: the plan of least memory of such a graph.
        tried: limits that it was looked for.
        whole: the plan of the whole that is at hand, None where there is none.
        times: as many ops as the model a graph in parts has, at least.
        late: why there is no time for parts, "" where there was.
        unfinished: why parts may be there that were not found, "" where all were looked at.
        refused: why the last graph in parts did not go, None where each did.
    """

    prepared: Prepared
    budget: Budget
    options: PlanOptions
    log: Phases
    smallest: Known | None = None
    tried: dict[Limit, Candidate | None] = field(default_factory=dict)
    whole: Candidate | None = None
    times: float = 2.0
    late: str = ""
    unfinished: str = ""
    refused: UnsupportedError | None = None

    def within(self, limit: Limit, why: str) -> Candidate | None:
        """A plan that keeps the budget, ``limit`` of the whole graph, None where there is none.

        Args:
            why: the whole is not taken, for people.
        """
        if limit not in self.tried:
            begins = self._begins()
            self.tried[limit] = self._within(limit, why) if begins else None
        return self.tried[limit]

    @abstractmethod
    def _within(self, limit: Limit, why: str) -> Candidate | None:
        """As :meth:`within`."""

    @abstractmethod
    def _why_not_proven(self, limit: Limit) -> str:
        """Why some parts may keep a limit though none are known to, "" where none can."""

    @abstractmethod
    def _leanest(self) -> Prepared | None:
        """The model in the parts that need least, None where that gains nothing."""

    def leaner(self, whole: Candidate) -> Candidate:
        """The least memory: that of a candidate, or of one in parts."""
        self.whole = whole
        split, found = self._leanest(), None
        if split and not self.options.stopped:
            needs = split.reduced.need.bytes + split.beside.total
            if needs <= LEANER * whole.process:  # recomputation may bring it down to that
                found = self._at_minimum(split, self.options)
        if found and found.process < whole.process:
            return found
        return self.of_whole_alone(whole)

    def _at_minimum(self, split: Prepared, options: PlanOptions) -> Candidate | None:
        """The least memory of a graph in parts; None where onnxruntime runs it in another order."""
        least = smallest(split, options.within(WHOLE), self.log)
        floor = self.prepared.floor.total
        found = at_minimum(split, replace(least, lower=floor, why=WORDS), options, self.log)
        return found if found.in_order else None

    def of_whole_alone(self, whole: Candidate) -> Candidate:
        """The smallest plan of the whole; where parts may do with less what is proven is of the
        whole alone, and it says so."""
        if whole.lower <= self.prepared.floor.total:
            return whole
        below = Limit(whole.lower - 1 - self.prepared.beside.total)
        why = self._untried or self._why_not_proven(below)
        return (
            proven_of(whole, "for the model as a whole", f"parts may need less: {why}")
            if why
            else whole
        )

    @property
    def _untried(self) -> str:
        """Why parts were not tried to the end, "" where they were."""
        return self.late or self.unfinished or (INTERRUPTED if self.options.stopped else "")

    def _begins(self) -> bool:
        """Whether parts are looked for at all; else it is known why not."""
        return self._in_time()

    def _in_time(self) -> bool:
        """Whether there is time for parts; else it is known why not."""
        self.late = self.late or self._no_time()
        return not self.late

    def _no_time(self) -> str:
        """Why there is no time for parts, "" where there is."""
        return out_of_time(self.prepared, self.options, self.log, self.times)

    def _made(self, make: Callable[[], Prepared], needed: bool = False) -> Prepared | None:
        """A model in parts; None where it does not go, or nobody waits for it any more.

        Args:
            needed: it is made however late it is.
        """
        if self.options.stopped or not (needed or self._in_time()):
            return None
        try:
            with self.log.ending(self.whole is not None):
                return make()
        except UnsupportedError as error:
            self.refused = error
        except EndedError:
            pass
        return None

    def _noted(self, split: Prepared, what: str, of: str) -> Prepared:
        """A model in parts that goes: its bytes are known, and it says what it is.

        Args:
            what: is computed in parts, why, and at what price.
            of: what its plan is of.
        """
        names = tuple(op.name for op in split.graph.ops)
        self._seen(Known(split, split.store_all_peak, split.beside.total, names, False))
        return split.noted(f"computed in parts: {what}", of_these_parts(of))

    def _seen(self, known: Known) -> None:
        if self.smallest is None or self._works(known) < self._works(self.smallest):
            self.smallest = known

    @property
    def _share(self) -> bool:
        """The budget is a share of the original's weights and values."""
        return self.budget.of_peak

    def _works(self, known: Known) -> int:
        """Bytes that a plan keeps, of those that the budget counts."""
        return known.fits if self._share else known.works

    def _least(self) -> Known | None:
        """The plan of least memory, with what carrying it out takes, as far as there is time."""
        found = self.smallest
        if found is None or found.tried:
            return found
        split, late = found.prepared, self.options.stopped or no_time(found.prepared, self.log)
        with suppress(OnnxrematError):  # a refusal stays one
            plan = plan_of(split, found.ops)
            made = applied(split.unmeasured if late else split, plan, self.log)
            return replace(made.kept, prepared=split, tried=not late) if made.in_order else None
        return found

    def _less(self, found: Known, works: Works) -> bool:
        """A plan keeps a budget that is less than one that is known to work."""
        known = works.fits if self._share else works.size
        return not known or self._works(found) <= LEANER * known

    def refusal(self, error: OnnxrematError, limit: Limit) -> OnnxrematError:
        """What is known of plans of the whole and of parts: no proof of the whole alone."""
        known, found, least = Refusal.of(error), self._least(), None
        if found and (known.works is None or self._less(found, known.works)):
            keep(self.prepared, found, self._share)
            least = Works.found(found.works, "regions in parts", found.fits)
            known = known.leaner(least)
        floor = self.prepared.floor
        if floor.above(limit):
            needs = f"at least {format_bytes(floor.total)} ({floor.total} B) are needed: {WORDS}"
            why = beside_too(needs, floor.beside)
            return replace(known, proven=True, why=why, lower=floor.total).error()
        untried = self._untried
        if least is None and not untried:
            untried = self._why_not_proven(limit) if known.proven else ""
            if not untried:
                return error
        return known.unproven(untried).error()
