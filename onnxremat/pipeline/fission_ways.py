"""A model within a budget: as it is, its batch in parts, or regions of its graph in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onnxremat.errors import NO_FIT, InfeasibleError, NoPlanError, OnnxrematError, UnsupportedError
from onnxremat.fission.choose import Choosers
from onnxremat.fission.pricing import Priced
from onnxremat.fission.region import Region
from onnxremat.pipeline.batch_split import LITTLE, plan_best
from onnxremat.pipeline.closed_loop import Candidate, attempt, load_search
from onnxremat.pipeline.in_regions import wholes_of
from onnxremat.pipeline.in_session import OneSession
from onnxremat.pipeline.limits import Limit, beside_too, fixed_bytes, limit_of
from onnxremat.pipeline.phases import PLAN, Phases
from onnxremat.pipeline.prepare import Prepared, prepare_fission
from onnxremat.pipeline.within_budget import at_minimum, smallest
from onnxremat.planner.bounds import largest_need
from onnxremat.planner.options import AUTO, PlanOptions
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.reasons import named
from onnxremat.units import Budget, format_bytes

TRIES = 4  # graphs in parts that are carried out for one budget
WHOLE = 0.5  # share of the time for plans of the whole, where parts are another way
SEARCH = 0.5  # share of the time that is left for the choice of regions
LEANER = 0.98  # share of the least bytes so far from which a graph in parts is worth its search


def plan_within_budget(
    prepared: Prepared, budget: Budget, options: PlanOptions, log: Phases | None = None
) -> Candidate:
    """A plan of the model whole, or with its batch in parts, where that keeps the budget without
    recomputation; else the quicker of it and of one with regions in parts. For ``min`` the leaner.

    Raises:
        As :func:`plan_best`.
    """
    log = log or Phases()
    if not _applies(prepared, options):
        return plan_best(prepared, budget, options, log)
    limit, options = limit_of(prepared, budget), options.begun()
    if limit is not None and prepared.store_all_peak <= limit.planned:
        return plan_best(prepared, budget, options, log)
    load_search(1, log)
    fission = _Fission(prepared, budget, options, log)
    if limit is None:
        return fission.leaner(plan_best(prepared, budget, options.within(WHOLE), log))
    need = largest_need(ProblemLists(prepared.reduced.problem))
    if need.bytes > limit.planned and prepared.batch < 2:
        text = f"{format_bytes(need.bytes)} are needed: {named(need.why, prepared.names)}"
        found = fission.within(limit, f"no plan of the whole fits, {text}")
        if found is not None:
            return found
    try:
        whole = plan_best(prepared, budget, options.within(WHOLE), log)
    except NO_FIT as error:
        found = fission.within(limit, error.what)
        if found is None:
            raise fission.refusal(error, limit) from error
        return found
    if whole.plan.provenance.overhead <= LITTLE or options.stopped:
        return whole
    over = f"recomputing in the whole takes {whole.plan.provenance.overhead:+.1%}"
    found = fission.within(limit, over)
    return found if found and found.artifact.seconds < whole.artifact.seconds else whole


def _applies(prepared: Prepared, options: PlanOptions) -> bool:
    """Whether regions of the model may be computed in parts: an inference that can be run, and
    nobody asked for another way."""
    settings = prepared.settings
    given = settings.fission is not None or settings.split_batch is not None
    if given or settings.fixed_order or options.method != AUTO or prepared.in_place:
        return False
    return prepared.feeds is not None


@dataclass
class _Fission:
    """Plans with regions in parts.

    Attributes:
        least: the smallest budget of such a graph that was carried out, in bytes.
        tried: limits that it was looked for.
    """

    prepared: Prepared
    budget: Budget
    options: PlanOptions
    log: Phases
    least: int | None = None
    tried: dict[Limit, Candidate | None] = field(default_factory=dict)
    _choosers: Choosers | None = None

    @property
    def choosers(self) -> Choosers:
        """Of the whole graph."""
        if self._choosers is None:
            prepared, until = self.prepared, self.options.within(SEARCH)
            self._choosers = Choosers(
                wholes_of(prepared.graph, prepared.costs, prepared.folder),
                lambda: until.stopped or until.left <= 0,
            )
        return self._choosers

    def within(self, limit: Limit, why: str) -> Candidate | None:
        """A plan that keeps the budget, ``limit`` of the whole graph, None where there is none.

        Args:
            why: the whole is not taken, for people.
        """
        if limit not in self.tried:
            self.tried[limit] = self._within(limit, why)
        return self.tried[limit]

    def _within(self, limit: Limit, why: str) -> Candidate | None:
        room = limit.planned - self.prepared.weights
        for _ in range(TRIES):
            chosen = self._chosen(room)
            split = self._split(chosen, why)
            if split is None:
                return None
            allowed = limit_of(split, self.budget) or limit
            over = split.store_all_peak - allowed.planned
            if over <= 0 or chosen.peak > room:
                found = attempt(OneSession(split, allowed, self.log), self.options.within(WHOLE))
                if isinstance(found, Candidate):
                    self._seen(found.held + found.artifact.beside)
                    return found
                over = max(over, *found.over.values(), 0)
            if chosen.peak > room or room <= 0 or self.options.stopped:
                return None  # nothing smaller is known
            room = min(room, chosen.peak) - max(over, 1)
        return None

    def leaner(self, whole: Candidate) -> Candidate:
        """The least memory: that of a candidate, or of one with regions in parts."""
        split = self._split(self._chosen(0), "needs more")
        if split is None or split.store_all_peak > whole.held / LEANER:
            return whole
        floor = fixed_bytes(self.prepared) + self.prepared.beside.total
        why = "weights and results, which are there in any parts"
        least = smallest(split, self.options.within(WHOLE), self.log)
        found = at_minimum(split, replace(least, lower=floor, why=why), self.options, self.log)
        return found if found.held < whole.held else whole

    def _chosen(self, room: int) -> Priced:
        with self.log.phase(PLAN, "choosing regions to compute in parts"):
            return self.choosers.within(room)

    def _split(self, chosen: Priced, why: str) -> Prepared | None:
        """The model with regions in parts, None where that gains nothing or does not go."""
        if not chosen.regions or chosen.peak >= self.choosers.whole.peak:
            return None
        try:
            split = prepare_fission(self.prepared, chosen.regions, self.log)
        except UnsupportedError:
            return None
        self._seen(split.store_all_peak + split.beside.total)
        more = chosen.seconds / self.choosers.whole.seconds - 1
        notes = (
            f"computed in parts: {described(chosen.regions)} (whole: {why}; --fission off keeps "
            f"it whole), at an estimated {more:+.1%} of the whole's time",
            "figures and proof of the plan are of the graph in these parts; other parts may do "
            "better",
        )
        return replace(split, notes=(*split.notes, *notes))

    def _seen(self, budget: int) -> None:
        self.least = min(budget, self.least or budget)

    def refusal(self, error: OnnxrematError, limit: Limit) -> OnnxrematError:
        """What is known of plans of the whole and of parts: no proof where parts need less."""
        works = getattr(error, "smallest", None)
        floor = fixed_bytes(self.prepared)
        if self.least is None and limit.planned >= floor:
            return error
        if works is None or (self.least is not None and self.least <= LEANER * works):
            works = self.least
            said = "the smallest budget that a plan was found for, regions in parts"
            hint = f"--budget {works} ({format_bytes(works)}, {said})" if works else error.hint
        elif limit.planned >= floor:
            return error
        else:
            hint = error.hint
        if limit.planned < floor:
            least = floor + self.prepared.beside.total
            text = f"at least {format_bytes(least)} ({least} B) are needed: weights and results"
            why = beside_too(text + ", which are there in any parts", self.prepared.beside)
            return InfeasibleError(
                error.what, why=why, hint=hint, smallest=works, lower_bound=least
            )
        proven = "proven" if isinstance(error, InfeasibleError) else "found"
        why = f"none is {proven} for the whole: {error.why}"
        return NoPlanError(error.what, why=why, hint=hint, smallest=works)


def described(regions: Sequence[Region]) -> str:
    """Regions, for people."""
    texts: dict[str, int] = {}
    for region in regions:
        axis = max(region.axes.values())
        text = f"{len(region.ops)} ops in {len(region.parts)} parts along axis {axis}"
        texts[text] = texts.get(text, 0) + 1
    return ", ".join(f"{count} x {text}" if count > 1 else text for text, count in texts.items())
