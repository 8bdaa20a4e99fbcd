"""An inference within a budget: its batch whole, or in parts where that is quicker or leaner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from onnxremat.errors import (
    EndedError,
    InfeasibleError,
    OnnxrematError,
    UnsupportedError,
    UsageError,
)
from onnxremat.pipeline.closed_loop import Candidate, Unfit, attempt, load_search
from onnxremat.pipeline.floor import beside_too
from onnxremat.pipeline.in_parts.divided import prepare_split
from onnxremat.pipeline.in_parts.ways_in_parts import INTERRUPTED, attempt_in_parts
from onnxremat.pipeline.in_session import OneSession
from onnxremat.pipeline.kept_plans import keep
from onnxremat.pipeline.limits import Limit, limit_of
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import Least, Refusal, refusal
from onnxremat.pipeline.time_left import out_of_time
from onnxremat.pipeline.within_budget import (
    Smallest,
    at_minimum,
    plan_within,
    smallest,
)
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.reasons import named
from onnxremat.planner.solution import Solution
from onnxremat.session.process import Beside
from onnxremat.units import Budget

LITTLE = 0.01  # overhead of the whole batch up to which parts are not tried
WHOLE = 0.6  # share of the time for a plan of the whole batch, where parts are another way
MOST_OPS = 8000  # of a graph in parts
LEANER = 0.99  # share of the bytes needed by half as many parts from which more are tried


def plan_best(
    prepared: Prepared, budget: Budget, options: PlanOptions, log: Phases | None = None
) -> Candidate:
    """The quicker of two plans that keep the budget: of the whole batch, and of as few parts of it
    as fit without recomputation; or, for ``min``, the leaner of them. Training steps, and what was
    asked for as it is, stay whole.

    Raises:
        As :func:`plan_within`, of the whole batch and of its parts.
    """
    log, limit = log or Phases(), limit_of(prepared, budget)
    if limit is None or prepared.store_all_peak > limit.planned:
        load_search(1, log)
    options = options.begun()
    batch = _batch(prepared, options)
    if batch < 2:
        return plan_within(prepared, budget, options, log=log)
    parts = _Parts(prepared, budget, batch, options, log)
    if limit is None:
        return parts.at_minimum()
    made = attempt(OneSession(prepared, limit, log), options.within(WHOLE))
    whole = made if isinstance(made, Candidate) else None
    if whole and (whole.plan.provenance.overhead <= LITTLE or options.stopped):
        return whole
    if isinstance(made, Unfit) and options.stopped:
        error = made.error()
        proven = isinstance(error, InfeasibleError)
        raise Refusal.of(error).unproven(INTERRUPTED).error() if proven else error
    parts.whole = whole
    found = parts.within()
    if found and (whole is None or found.artifact.seconds < whole.artifact.seconds):
        return found
    if isinstance(made, Unfit):
        return parts.settled(made)
    return made.noted(parts.words) if parts.why else made


@dataclass
class _Parts:
    """Plans with the batch in parts.

    Attributes:
        splits: the model in so many parts, whole included, as far as it was asked for.
        why: why it does not go in parts, or in no more, "" where it does.
        fails: the fewest parts that it is known not to go in: parts of one row may be what an op
            does not take, so that this says nothing of fewer.
        untried: there was no time to find that out.
        whole: the plan of the whole that is at hand, None where there is none.
    """

    prepared: Prepared
    budget: Budget
    batch: int
    options: PlanOptions
    log: Phases
    splits: dict[int, Prepared] = field(default_factory=dict)
    why: str = ""
    fails: float = inf
    untried: bool = False
    whole: Candidate | None = None

    def __post_init__(self) -> None:
        self.splits[1] = self.prepared

    @property
    def words(self) -> str:
        """Why the batch is whole, or in no more parts, for people."""
        most = max(self.splits)
        kept = "stays whole" if most == 1 else f"is in {most} parts at most"
        return f"the batch {kept}: {self.why}"

    def split(self, parts: int) -> Prepared | None:
        """The model in so many parts, None where it does not go."""
        if parts not in self.splits and parts < self.fails and not self.untried:
            why = out_of_time(self.prepared, self.options, self.log, parts)
            self.untried = bool(why)
            try:
                if not why:
                    with self.log.ending(self.whole is not None):
                        self.splits[parts] = prepare_split(
                            self.prepared, (parts,), self.log, self.options.left
                        )
            except (UsageError, UnsupportedError) as error:
                why = _sentence(error)
            except EndedError:
                why = INTERRUPTED
                self.untried = True
            if why:
                self.why, self.fails = why, parts
        return self.splits.get(parts)

    def limit(self, split: Prepared) -> Limit:
        """What the budget leaves for so many parts."""
        found = limit_of(split, self.budget)
        assert found is not None
        return found

    def within(self) -> Candidate | None:
        """A plan of as few parts as need no recomputation, or of the most there can be."""
        whole, options = self.whole, self.options
        limit = self.limit(self.prepared)
        if self.prepared.floor.above(limit):
            return None
        room = limit.planned - self.prepared.weights
        parts = 2
        while parts * room < self._values and self._may_be(2 * parts):
            parts *= 2
        split = self.split(parts)
        if split is None and parts > 2:
            parts, split = 2, self.split(2)
        while split and self._may_be(2 * parts):
            if split.store_all_peak <= self.limit(split).planned or options.stopped:
                break
            more = self.split(2 * parts)
            if more is None:
                break
            parts, split = 2 * parts, more
        if split is None:
            return None
        over = f"recomputing takes {whole.plan.provenance.overhead:+.1%}" if whole else ""
        split = _noted(split, parts, over or "does not fit")
        made = attempt_in_parts(OneSession(split, self.limit(split), self.log), options, whole)
        return made if isinstance(made, Candidate) else None

    def _may_be(self, parts: int) -> bool:
        """Whether the batch has as many rows, and the graph in parts is one to be planned."""
        return parts <= self.batch and parts * len(self.prepared.graph.ops) <= MOST_OPS

    @property
    def _values(self) -> int:
        """Bytes of the whole batch beside the weights."""
        return self.prepared.store_all_peak - self.prepared.weights

    def least(self, refused: Limit | None = None) -> tuple[int, Smallest]:
        """The smallest plan found of whole and parts, and in how many; its ``lower`` holds for all
        that were tried. ``refused`` as of :func:`smallest`."""
        needs = self._needs()
        best: tuple[int, Smallest] | None = None
        for parts in sorted(needs, key=lambda count: needs[count]):
            lower, _ = needs[parts]
            late = self.options.left <= 0 or self.options.stopped
            if best and (late or lower >= best[1].candidate.limit):
                break
            split = self.splits[parts]
            noted = _noted(split, parts, "needs more") if parts > 1 else split
            found = smallest(noted, self.options.within(0.5), self.log, refused)
            if parts > 1 and not found.candidate.in_order:
                continue
            if best is None or found.candidate.limit < best[1].candidate.limit:
                best = parts, found
        assert best is not None
        beside = {parts: self._beside(parts) for parts in needs}
        leanest = min(needs, key=lambda parts: (needs[parts][0] + beside[parts].total, parts))
        need, why = needs[leanest]
        lower = need + beside[leanest].total
        return best[0], replace(best[1], lower=lower, why=beside_too(why, beside[leanest]))

    def _beside(self, parts: int) -> Beside:
        """What is beside weights and values in a budget for so many parts. A share of the
        original's weights and values leaves what is beside them out, however much that is."""
        shared = self.budget.kind == "peak"
        return (self.prepared if shared else self.splits[parts]).beside

    def _needs(self) -> dict[int, tuple[int, str]]:
        """Bytes that no plan of so many parts goes below, and why: of those that are there, and of
        more and more while they need clearly less."""
        needs = {1: self._need(1)}
        parts = 1
        while parts < self.batch and not self.options.stopped:
            more = min(2 * parts, self.batch)
            if not self._may_be(more) or self.split(more) is None:
                break
            needs[more] = self._need(more)
            if needs[more][0] > LEANER * needs[parts][0] and more > 2:
                break
            parts = more
        return {count: needs.get(count) or self._need(count) for count in self.splits}

    def _need(self, parts: int) -> tuple[int, str]:
        split = self.splits[parts]
        need = split.reduced.need
        return need.bytes, named(need.why, split.names)

    def tried(self) -> str:
        """The numbers of parts that were looked at."""
        counts = [str(count) for count in sorted(self.splits) if count > 1]
        return f"with the batch whole or in {', '.join(counts)} parts" if counts else ""

    def at_minimum(self) -> Candidate:
        """The least memory, at the least time."""
        parts, least = self.least()
        split = self.splits[parts]
        if parts > 1:
            split = _noted(split, parts, "needs more")
        least = replace(least, why=", ".join(filter(None, (self.tried(), least.why))))
        made = at_minimum(split, least, self.options, self.log)
        if parts > 1 and not made.in_order:
            made = replace(least.candidate, lower=least.lower, why=least.why)
        return made.noted(self.words) if self.why else made

    def settled(self, unfit: Unfit[Solution]) -> Candidate:
        """The smallest plan, where it keeps the budget.

        Raises:
            InfeasibleError, NoPlanError: it does not; with the smallest budget that works.
        """
        parts, least = self.least(self.limit(self.prepared))
        limit = self.limit(least.candidate.prepared)
        if least.keeps(limit):
            return least.as_answer(limit, unfit)
        keep(self.prepared, least.known, self.budget.of_peak)
        whole, tried = len(self.splits) == 1, self.tried()
        goes = self.batch in self.splits or (whole and self.why)
        every = bool(goes) and not self.untried  # a limit of ops ends it without either
        works = Least(
            least.known.works,
            least.lower if every else self.prepared.floor.total,
            ", ".join(filter(None, (tried, least.why)))
            if every
            else beside_too("weights and results", self.prepared.floor.beside),
            ", ".join(filter(None, (f"the batch in {parts} parts" * (parts > 1), least.how))),
            least.known.fits,
        )
        raise refusal(
            self.prepared.name,
            self.limit(self.prepared).asked(self.prepared.beside.total),
            unfit.found,
            works,
            all_ways=every and whole and unfit.found.certificate.any_order,
            notes=(*self.prepared.notes, *([self.words] if self.why else [])),
        )


def _noted(split: Prepared, parts: int, why: str) -> Prepared:
    note = f"the batch is computed in {parts} parts (whole: {why}; --split-batch 1 keeps it whole)"
    return split.noted(note)


def _sentence(error: OnnxrematError) -> str:
    return f"{error.what} ({error.why})" if error.why else error.what


def _batch(prepared: Prepared, options: PlanOptions) -> int:
    """Rows that may be computed in parts, 0 for none."""
    settings = prepared.settings
    asked = settings.split_batch is not None or settings.fixed_order or not options.method.ladder
    return 0 if asked or prepared.in_place or prepared.feeds is None else prepared.batch
