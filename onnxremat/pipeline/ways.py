"""A model in one session within a budget: which ways there are, and which of them are tried."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxremat.errors import NO_FIT, InfeasibleError, OnnxrematError
from onnxremat.fission.choosers import Choosers
from onnxremat.pipeline.closed_loop import Candidate, load_search
from onnxremat.pipeline.in_parts.batch_split import LITTLE, plan_best
from onnxremat.pipeline.in_parts.fission_ways import RegionsInParts, choosers_for
from onnxremat.pipeline.in_parts.step_ways import StepInParts, applies_to_step, why_whole
from onnxremat.pipeline.in_parts.ways_in_parts import INTERRUPTED, WHOLE, InParts, proven_of
from onnxremat.pipeline.lean_weights import narrower
from onnxremat.pipeline.limits import Limit, hopeless, limit_of
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.plan_again import plan_again
from onnxremat.pipeline.prepare import for_planning
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import Refusal
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.reasons import named
from onnxremat.units import Budget, format_bytes

OTHERS = "with other weights in half precision a plan may need less"
REFUSING = 4.0  # seconds for the smallest budget that works, where none is proven to fit


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
        return _of_these_weights(Ways(prepared, budget, options, log, choosers))
    except NO_FIT:
        narrow = None if options.stopped else narrower(prepared.unsplit, prepared.settings)
        if narrow is None:
            raise
        log("planning with weights in half precision")
        made = replace(
            for_planning(narrow, prepared.settings, log), as_it_is=prepared.as_it_is,
            optimising=prepared.optimising, passing=prepared.passing,
        )  # fmt: skip
        # They are as many as it takes to fit with nothing else given up: little time is needed.
        options = options.lasting(min(options.time_limit, REFUSING))
        return _of_these_weights(Ways(made, budget, options, log))


def _of_these_weights(ways: Ways) -> Candidate:
    """The plan; what is proven of a graph some weights of which are narrow is so of these alone: a
    weight that is wide while it is read may need less where it is always.

    Raises:
        As :meth:`Ways.best`.
    """
    narrow = ways.prepared.settings.narrow
    try:
        found = ways.best()
    except InfeasibleError as error:
        if not narrow or ways.hopeless:
            raise
        raise Refusal.of(error).unproven(OTHERS).error() from error
    if not narrow or found.lower <= found.prepared.floor.total:
        return found
    return proven_of(found, "with these weights in half precision", OTHERS)


@dataclass(frozen=True)
class Ways:
    """What is tried for a budget; see :func:`plan_within_budget`.

    The whole graph (its batch in parts or not) is one way, something of it in parts the other. Both
    share the time. Each is asked only where the one before does not settle it.
    """

    prepared: Prepared
    budget: Budget
    options: PlanOptions
    log: Phases
    choosers: Choosers | None = None

    def best(self) -> Candidate:
        """The plan, or the one that an earlier refusal has named.

        Raises:
            As :func:`plan_best`.
        """
        try:
            return self._found()
        except NO_FIT:
            kept = plan_again(self.prepared, self.budget, self.options, self.log)
            if kept is None:
                raise
            return kept

    def _found(self) -> Candidate:
        kind, limit = _kind(self.prepared, self.options), self.limit
        if kind is None:
            return self._whole_alone()
        if limit is not None and self.prepared.store_all_peak <= limit.planned:
            return self._whole(self.options)
        load_search(1, self.log)
        options = self.options.begun()
        if self.hopeless and options.work is None:  # what is left to say is a budget that works
            options = replace(options, until=min(options.until, options.now() + REFUSING))
        parts = kind(self.prepared, self.budget, options, self.log)
        if isinstance(parts, RegionsInParts):
            parts.known = self.choosers
        if limit is None:
            return self._least(parts)
        return self._in_parts_first(parts, limit) or self._whole_first(parts, limit)

    def _least(self, parts: InParts) -> Candidate:
        """The least memory. Regions that surely need less than the whole come first; a batch in
        parts may need less still."""
        options, first = parts.options, None
        if isinstance(parts, RegionsInParts):
            first = parts.surely_leanest(WHOLE if self.prepared.batch > 1 else 1.0)
        if first is None:
            return parts.leaner(self._whole(options.within(WHOLE)))
        if self.prepared.batch < 2 or options.stopped or options.left <= 0:
            return first
        whole = self._whole(options)
        return parts.of_whole_alone(whole) if whole.process < first.process else first

    @property
    def limit(self) -> Limit | None:
        """Bytes for the whole graph, None for ``min``."""
        return limit_of(self.prepared, self.budget)

    @property
    def hopeless(self) -> bool:
        """No way keeps the budget."""
        return hopeless(self.prepared, self.budget)

    def _whole(self, options: PlanOptions) -> Candidate:
        return plan_best(self.prepared, self.budget, options, self.log)

    def _whole_alone(self) -> Candidate:
        """Nothing is computed in parts: somebody asked for that, or it does not go."""
        told = _told(self.prepared, self.budget, self.options)
        try:
            return plan_best(told, self.budget, self.options, self.log)
        except InfeasibleError as error:
            untried = _untried(self.prepared, self.options)
            if self.limit is None or self.hopeless or not untried:
                raise
            raise Refusal.of(error).unproven(untried).error() from error

    def _in_parts_first(self, parts: InParts, limit: Limit) -> Candidate | None:
        """A plan in parts where some op of the whole needs more than the limit by itself."""
        prepared = self.prepared
        need = prepared.reduced.need
        batch = prepared.batch >= 2 and not isinstance(parts, StepInParts)  # may do with less
        if need.bytes <= limit.planned or batch:
            return None
        text = f"{format_bytes(need.bytes)} are needed: {named(need.why, prepared.names)}"
        return parts.within(limit, f"no plan of the whole fits, {text}")

    def _whole_first(self, parts: InParts, limit: Limit) -> Candidate:
        """The whole; in parts where that is quicker, or the whole does not fit."""
        options = parts.options
        try:
            whole = self._whole(options.within(WHOLE))
        except NO_FIT as error:
            return self._parts_alone(parts, limit, error)
        if whole.plan.provenance.overhead <= LITTLE or options.stopped:
            return whole
        over = f"recomputing in the whole takes {whole.plan.provenance.overhead:+.1%}"
        parts.whole = whole
        found = parts.within(limit, over)
        if found and found.artifact.seconds < whole.artifact.seconds:
            return found
        return whole.noted(f"planned whole: {parts.late}") if parts.late else whole

    def _parts_alone(self, parts: InParts, limit: Limit, error: OnnxrematError) -> Candidate:
        """In parts, where the whole does not fit.

        Raises:
            InfeasibleError, NoPlanError, OverBudgetError: neither does that.
        """
        if parts.options.stopped:
            if self.hopeless or not isinstance(error, InfeasibleError):
                raise error
            untried = parts.unfinished or INTERRUPTED
            raise Refusal.of(error).unproven(untried).error() from error
        known = self.hopeless and Refusal.of(error).smallest and self.prepared.batch > 1
        found = None if known else parts.within(limit, error.what)
        if found is None:
            raise parts.refusal(error, limit) from error
        return found


def choosers_of(
    prepared: Prepared, options: PlanOptions, log: Phases | None = None, *, needed: bool = False
) -> Choosers | None:
    """What finds regions of a model, None where these are not tried.

    Args:
        needed: see :func:`choosers_for`.
    """
    if _kind(prepared, options) is not RegionsInParts:
        return None
    return choosers_for(prepared, options, log or Phases(), needed)


def _kind(prepared: Prepared, options: PlanOptions) -> type[InParts] | None:
    """What of a model may be computed in parts: regions of an inference, the forward pass of a step
    that is made here; None where it cannot be run, or somebody asked for another way."""
    if _as_asked(prepared, options):
        return None
    if applies_to_step(prepared):
        return StepInParts
    return None if prepared.in_place else RegionsInParts


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
