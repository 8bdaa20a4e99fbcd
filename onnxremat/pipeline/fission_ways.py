"""A model within a budget: as it is, its batch in parts, or regions of its graph in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxremat.errors import NO_FIT, InfeasibleError
from onnxremat.fission.choose import Choosers
from onnxremat.fission.pricing import Priced
from onnxremat.fission.region import Region
from onnxremat.fission.remade import remade
from onnxremat.pipeline.batch_split import LITTLE, plan_best
from onnxremat.pipeline.closed_loop import Candidate, load_search
from onnxremat.pipeline.divided import prepare_fission
from onnxremat.pipeline.in_regions import wholes_of
from onnxremat.pipeline.in_session import OneSession
from onnxremat.pipeline.limits import Limit, limit_of
from onnxremat.pipeline.phases import PLAN, Phases
from onnxremat.pipeline.plan_again import plan_again
from onnxremat.pipeline.prepare import Prepared
from onnxremat.pipeline.refusal import Refusal
from onnxremat.pipeline.step_ways import StepInParts, applies_to_step, why_whole
from onnxremat.pipeline.time_left import for_regions
from onnxremat.pipeline.ways_in_parts import INTERRUPTED, WHOLE, InParts, attempt_in_parts
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.reasons import named
from onnxremat.units import Budget, format_bytes

TRIES = 4  # graphs in parts that are carried out for one budget
REFUSING = 4.0  # seconds for the smallest budget that works, where none is proven to fit
REMADE = 0.25  # share of the time that is left for the choice of pieces that are made again
GATES = 1 << 16  # bytes left for what keeps second runs apart
SEARCH = 0.5  # share of the time that is left for the choice of regions
NOT_EVERY = "with regions in parts none was found, which is no proof that there is none"
UNFINISHED = "the choice of regions ended before it was done (a longer --time-limit goes on)"


def plan_within_budget(
    prepared: Prepared,
    budget: Budget,
    options: PlanOptions,
    log: Phases | None = None,
    choosers: Choosers | None = None,
) -> Candidate:
    """A plan of the model whole, or with its batch in parts, where that keeps the budget without
    recomputation; else the quicker of it and of one with regions in parts. For ``min`` the leaner.

    Args:
        choosers: of :func:`choosers_of`, which know what was found for other budgets.

    Raises:
        As :func:`plan_best`.
    """
    log = log or Phases()
    try:
        return _planned(prepared, budget, options, log, choosers)
    except NO_FIT:
        found = plan_again(prepared, budget, options, log)
        if found is None:
            raise
        return found


def _planned(
    prepared: Prepared,
    budget: Budget,
    options: PlanOptions,
    log: Phases,
    choosers: Choosers | None,
) -> Candidate:
    kind = _kind(prepared, options)
    limit = limit_of(prepared, budget)
    if kind is None:
        try:
            return plan_best(_told(prepared, budget, options), budget, options, log)
        except InfeasibleError as error:
            untried = _untried(prepared, options)
            if limit is None or prepared.floor.above(limit) or not untried:
                raise
            raise Refusal.of(error).unproven(untried).error() from error
    if limit is not None and prepared.store_all_peak <= limit.planned:
        return plan_best(prepared, budget, options, log)
    load_search(1, log)
    options = options.begun()
    hopeless = limit is not None and prepared.floor.above(limit)
    if hopeless and options.work is None:  # what is left to say is a budget that works
        options = replace(options, until=min(options.until, options.now() + REFUSING))
    parts = kind(prepared, budget, options, log)
    if isinstance(parts, _Regions):
        parts.known = choosers
    if limit is None:
        return parts.leaner(plan_best(prepared, budget, options.within(WHOLE), log))
    need = prepared.reduced.need
    if need.bytes > limit.planned and (prepared.batch < 2 or kind is StepInParts):
        text = f"{format_bytes(need.bytes)} are needed: {named(need.why, prepared.names)}"
        found = parts.within(limit, f"no plan of the whole fits, {text}")
        if found is not None:
            return found
    try:
        whole = plan_best(prepared, budget, options.within(WHOLE), log)
    except NO_FIT as error:
        if options.stopped:
            if hopeless or not isinstance(error, InfeasibleError):
                raise
            untried = parts.unfinished or INTERRUPTED
            raise Refusal.of(error).unproven(untried).error() from error
        if hopeless and getattr(error, "smallest", None) and prepared.batch > 1:
            raise parts.refusal(error, limit) from error
        found = parts.within(limit, error.what)
        if found is None:
            raise parts.refusal(error, limit) from error
        return found
    if whole.plan.provenance.overhead <= LITTLE or options.stopped:
        return whole
    over = f"recomputing in the whole takes {whole.plan.provenance.overhead:+.1%}"
    parts.whole = whole
    found = parts.within(limit, over)
    if found and found.artifact.seconds < whole.artifact.seconds:
        return found
    return whole.noted(f"planned whole: {parts.late}") if parts.late else whole


def choosers_of(
    prepared: Prepared, options: PlanOptions, log: Phases | None = None
) -> Choosers | None:
    """What finds regions of a model, None where these are not tried."""
    if _kind(prepared, options) is not _Regions:
        return None
    until = for_regions(prepared, options, log or Phases(), SEARCH)
    return Choosers(
        wholes_of(prepared.graph, prepared.costs, prepared.folder),
        lambda: until.stopped or until.left <= 0,
    )


def _kind(prepared: Prepared, options: PlanOptions) -> type[InParts] | None:
    """What of a model may be computed in parts: regions of an inference, the forward pass of a step
    that is made here; None where it cannot be run, or somebody asked for another way."""
    if _as_asked(prepared, options):
        return None
    if applies_to_step(prepared):
        return StepInParts
    return None if prepared.in_place else _Regions


def _as_asked(prepared: Prepared, options: PlanOptions) -> bool:
    """Nothing runs, or somebody asked for another way."""
    settings = prepared.settings
    given = settings.fission is not None or settings.split_batch is not None
    return given or settings.fixed_order or not options.method.ladder or prepared.feeds is None


def _untried(prepared: Prepared, options: PlanOptions) -> str:
    """Why nobody knows what parts take, "" where nothing is in parts or it was said what is."""
    settings = prepared.settings
    given = settings.fission is not None or settings.split_batch is not None
    if given or settings.fixed_order or prepared.in_place:
        return ""
    if not options.method.ladder:
        return f"{options.method.name} plans the whole alone; --planner auto tries parts, too"
    return "parts are not tried without a run" if prepared.feeds is None else ""


def _told(prepared: Prepared, budget: Budget, options: PlanOptions) -> Prepared:
    """With a note why a training step stays whole that its order alone does not fit, where nobody
    asked for that."""
    step = prepared.settings.train is not None or prepared.in_place
    if not step or _as_asked(prepared, options):
        return prepared
    limit = limit_of(prepared, budget)
    if limit is not None and prepared.store_all_peak <= limit.planned:
        return prepared
    note = f"the step is planned whole, not in parts: {why_whole(prepared)}"
    return prepared.noted(note)


@dataclass
class _Regions(InParts):
    """Plans of an inference with regions in parts."""

    known: Choosers | None = None
    times: float = 1.0

    @property
    def choosers(self) -> Choosers:
        """Of the whole graph."""
        if self.known is None:
            self.known = choosers_of(self.prepared, self.options, self.log)
        assert self.known is not None  # regions are what is tried
        return self.known

    def _within(self, limit: Limit, why: str) -> Candidate | None:
        room = limit.planned - self.prepared.weights
        for turn in range(TRIES):
            chosen = self._chosen(room)
            split = self._split(chosen, why)
            if split is None:
                return None
            allowed = limit_of(split, self.budget) or limit
            over = split.store_all_peak - allowed.planned
            if over <= 0 or chosen.peak > room or turn == TRIES - 1:
                target = OneSession(split, allowed, self.log)
                warm = self._remade(split, allowed) if over > 0 else None
                found = attempt_in_parts(target, self.options.within(WHOLE), self.whole, warm)
                if isinstance(found, Candidate):
                    self._seen(found.kept)
                    return found
                over = max(over, *(found.over.values() if found else ()), 0)
            if chosen.peak > room or room <= 0 or self.options.stopped:
                return None  # nothing smaller is known
            room = min(room, chosen.peak) - max(over, 1)
        return None

    def _remade(self, split: Prepared, allowed: Limit) -> Sequence[int] | None:
        """Ops of a graph in parts with pieces made again that it has no room for."""
        until, limit = self.options.within(REMADE), allowed.planned - GATES
        with self.log.phase(PLAN, "choosing pieces to make again"):
            return remade(split.reduced.problem, limit, lambda: until.stopped or until.left <= 0)

    def _why_not_proven(self, limit: Limit) -> str:
        reduced = self.prepared.reduced
        need = reduced.need
        if need.op >= 0 and need.bytes > limit.planned:
            name = self.prepared.graph.ops[reduced.index[need.op]].name
            if self.choosers.never(name):
                return ""
        return NOT_EVERY

    def _leanest(self) -> Prepared | None:
        return self._split(self._chosen(0), "needs more")

    def _chosen(self, room: int) -> Priced:
        with self.log.phase(PLAN, "choosing regions to compute in parts"):
            found = self.choosers.within(room)
            if late := self._late(found):
                other = self.choosers.instead(room, lambda each: not self._late(each))
                if other.regions:
                    found, self.unfinished = other, late
        if found.peak > room and self.choosers.ended:
            self.unfinished = UNFINISHED
        return found

    def _late(self, chosen: Priced) -> str:
        """Why a graph in these parts is not tried, "" where there is time for it."""
        return self._out_of_time(self._longer(chosen))

    def _longer(self, chosen: Priced) -> float:
        """How many times the ops of the whole a graph in these parts has, copies aside."""
        more = sum(region.pieces - len(region.ops) for region in chosen.regions)
        return 1 + more / len(self.prepared.graph.ops)

    def _split(self, chosen: Priced, why: str) -> Prepared | None:
        """The model with regions in parts, None where that gains nothing, does not go or nobody
        waits for it any more."""
        if not chosen.regions or chosen.peak >= self.choosers.whole.peak:
            return None
        left = self.options.left
        split = self._made(
            lambda: prepare_fission(self.prepared, chosen.regions, self.log, left),
            self._longer(chosen),
        )
        if split is None:
            return None
        more = chosen.seconds / self.choosers.whole.seconds - 1
        what = (
            f"{described(chosen.regions)} (whole: {why}; --fission off keeps it whole), at an "
            f"estimated {more:+.1%} of the whole's time"
        )
        return self._noted(split, what, "graph")


def described(regions: Sequence[Region]) -> str:
    """Regions, for people."""
    texts: dict[str, int] = {}
    for region in regions:
        axis = max(region.axes.values())
        text = f"{len(region.ops)} ops in {len(region.parts)} parts along axis {axis}"
        texts[text] = texts.get(text, 0) + 1
    return ", ".join(f"{count} x {text}" if count > 1 else text for text, count in texts.items())
