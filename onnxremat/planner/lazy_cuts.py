"""Lazy cuts: solve the cut relaxation, read its solution as a schedule, cut where that breaks.

On one device the start is one cut at the peak of the base order; on several there is none, which is
the best placement with copies when memory is no matter. The optimum of the relaxation raises the
bound; its solution, with values remade and copied as late as possible, is a schedule. If that fits
the budgets it is optimal for the relaxation and the two meet. If not, it is repaired by the search
and by solving once more with the budgets shrunk by the excess, and a cut is added at the stage with
the largest excess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, log

import numpy as np

from onnxremat.planner.cut_places import CutPlaces
from onnxremat.planner.formulations.cut_model import CutModel
from onnxremat.planner.formulations.cuts import build
from onnxremat.planner.formulations.extract import late_schedule
from onnxremat.planner.formulations.project import project
from onnxremat.planner.formulations.spans import Spans
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.model import Model
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem import Bytes, Floats
from onnxremat.planner.relaxed import Relaxed, Row, add_rows, tighten
from onnxremat.planner.retime import retimed
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import occupancy, peaks
from onnxremat.planner.solvers import Limits, Outcome, Result, confirm_infeasible, minimise


@dataclass(frozen=True)
class Tuning:
    """Constants of the loop; rows are those of ``make bench-plan``.

    Attributes:
        slow: seconds of a solve from which cuts are placed by the continuous relaxation: below,
            one cut a round costs less than placing them (bert_12, mobilenet).
        far: share of the reference time above which the gap calls for that (resnet50/15%,
            random_500/80%); nearer, each round is solved to the end.
        many: cuts added then each time the relaxation is solved.
        stall, little: solves in a row that gain less than this share of the gap end the placing.
        placing: share of the time left for placing.
        loss: share of the gap that leaving cuts out again may cost the relaxation in the first
            round, and ``finer`` what it is multiplied by for each of the next (resnet50/15%: fewer
            cuts are dearer in the bound and far cheaper in the integers).
        out: share of the cuts left out at a time.
        swapped, slight: cuts of the least price that others are tried for, and the gain that an
            exchange must bring, in thousandths of the store-all time.
        dearer: times the seconds that one cut more makes a round take (resnet50/15%, measured
            1.5 to 2.5), and ``aimed`` the share of the seconds for a round that the next aims at.
        earns: share of the gap by which a round must have raised the bound each time that it took
            as long again as all before it; walks find more (resnet50/15%: 8.53 % with nine cuts
            after 60 s, 8.6 with eleven after 300).
        patience: share of the limit that a round has before that.
        near: share of the budget that the excess may be for a repair by smaller budgets.
        shrinks: re-solves with smaller budgets per round.
        brief, part: seconds of a solve, and share of the time left, up to which it is worth
            solving again like that.
        repair, enough: seconds of repair for each second of a solve, and per op at most.
        read: schedules over budget that are kept for the search to start from, and solutions of
            the continuous relaxation that are.
        low, high: what is above a number drawn between these counts as 1 where such a solution is
            read (resnet50/15%: walks from there end elsewhere each time, and are worth crossing).
        slack: share of the open gap within which a round is solved at first.
        exact, placed: shares of the gap that is asked for within which a round is solved at least:
            one cut more is worth more than that, but where cuts are placed the next ones may be too
            many for the time that is left (resnet50/15%, 200 s: 8.64 proven, with ``exact`` 8.49).
        loads: share of the time left for one model of loads (makespan): the search gains more.
        share, beside_share: of the time left for a round while cuts are added one by one, and
            while they are placed, with the search in turns or beside.
    """

    slow: float = 0.5
    far: float = 1.5e-3
    many: int = 3
    stall: int = 2
    little: float = 0.03
    placing: float = 0.06
    loss: float = 0.2
    finer: float = 0.8
    out: float = 0.15
    swapped: int = 3
    slight: float = 1e-2
    dearer: float = 2.0
    aimed: float = 0.6
    earns: float = 0.05
    patience: float = 0.2
    near: float = 0.1
    shrinks: int = 2
    brief: float = 2.0
    part: float = 0.05
    repair: float = 0.25
    enough: float = 0.02
    read: int = 3
    low: float = 0.25
    high: float = 0.75
    slack: float = 0.15
    exact: float = 0.3
    placed: float = 0.1
    loads: float = 0.2
    share: float = 0.3
    turns_share: float = 0.5
    beside_share: float = 0.9
    least_share: float = 10.0


TUNING = Tuning()


@dataclass
class Crawl:
    """Whether a round that begins now raises the bound too slowly to go on with."""

    made: CutModel
    incumbent: Incumbent
    tuning: Tuning
    bound: float = -inf  # seconds, so far

    def __post_init__(self) -> None:
        self.begin = self.incumbent.elapsed

    def see(self, _: float, bound: float) -> None:
        """Take what the solver has proven, in the scale of the model."""
        self.bound = self.made.seconds(bound)

    def over(self) -> bool:
        """The round is to end."""
        return self.incumbent.over() or self.slow()

    def slow(self) -> bool:
        """It has not earned its time."""
        incumbent = self.incumbent
        before = max(self.begin, self.tuning.patience * incumbent.limit)
        again = (incumbent.elapsed - self.begin) / before - 1
        if again < 0 or self.bound == -inf or incumbent.best is None:
            return False
        return self.bound < incumbent.bound + again * self.tuning.earns * incumbent.open_gap


@dataclass
class LazyCuts:
    """The loop for one order, that in which the ops of ``places`` are numbered.

    Attributes:
        places: where the budgets are kept so far.
        offer: takes a schedule in this numbering, with the name of the method.
        repair: turns a schedule over budget into one within, or None, in about the seconds given.
        best: the best schedule so far in this numbering, or None; with first runs in base order
            when it is asked for that.
        parallel: minimise the load of the busiest device or link instead of the sum.
    """

    places: CutPlaces
    incumbent: Incumbent
    options: PlanOptions
    offer: Callable[[Schedule, str], None]
    repair: Callable[[Schedule, float], Schedule | None]
    best: Callable[[bool], Schedule | None]
    parallel: bool = False
    tuning: Tuning = TUNING
    rows: list[Row] = field(default_factory=list)
    placing: bool = False  # cuts are placed by the continuous relaxation
    read: list[Schedule] = field(default_factory=list)  # the last rounds' schedules over budget
    points: list[tuple[CutModel, Floats]] = field(default_factory=list)  # continuous solutions
    last: Schedule | None = None  # schedule of the last solution, perhaps over budget
    asked: set[int] = field(default_factory=set)  # cuts where an integer solution broke a budget
    most: int = 0  # cuts, splits included, that the next round can afford

    def __post_init__(self) -> None:
        self.loss, self.slack = self.tuning.loss, self.tuning.slack
        self.lists, self.budgets = self.places.lists, self.places.budgets
        self.problem = self.lists.problem

    def round(self) -> bool:
        """Solve once and add a cut; False when there is nothing more to gain."""
        over = self.incumbent.over
        if not self.places.cuts and self.problem.devices == 1:
            first = self.places.first()
            if first is None:
                return False
            self.places.cuts.append(first)
        placed = self.placing
        if placed:
            self._place()
        spans = self.places.spans()
        self._tie()
        made = self._build(spans, self.budgets)
        self._relax(made)
        if over():
            return False
        before = placed and self.loss < self.tuning.loss  # a round ended, and its bound counts
        crawl = Crawl(made, self.incumbent, self.tuning) if before else None
        result = self._minimise(made, self._share(), crawl)
        given_up = crawl is not None and result.outcome is not Outcome.OPTIMAL and crawl.slow()
        self._raise(made, result)
        if result.outcome is Outcome.INFEASIBLE or result.point is None:
            return False
        schedule = self._extract(made, result.point)
        if schedule is None or over():
            return False
        if not self._excess(schedule).any():  # optimal: only the solver's gap is left
            self.slack *= 0.2
            return result.outcome is Outcome.OPTIMAL and self.slack > 1e-4
        self.read = [*self.read, schedule][-self.tuning.read :]
        self._repair(spans, schedule, result)
        if over() or given_up:
            return False
        self._set_pace(made, result)
        known = set(self.places.cuts)
        more = self._advance(made, result.point, schedule)
        if placed:
            ends = {cut for split in self.places.splits for cut in (split.start, split.end)}
            self.asked = set(self.places.cuts) - known | ends
        return more

    @property
    def tied_at_first(self) -> bool:
        """A cut at the peak proves something of one order alone."""
        cuts = self.places.cuts
        first = cuts[0] if cuts else self.places.first() if self.problem.devices == 1 else None
        return first is None or not self.places.holds_anywhere(first)

    def _tie(self) -> None:
        """Say whether bounds are of one order that the planner may leave; those of the makespan are
        for every order."""
        incumbent = self.incumbent
        free = self.places.free or incumbent.fixed_order or bool(self.options.method.rung)
        incumbent.tied = not (self.parallel or free)

    def _excess(self, schedule: Schedule) -> Bytes:
        """Bytes over budget per device, shape (D,)."""
        excess: Bytes = np.maximum(peaks(self.problem, schedule) - self.budgets, 0)
        return excess

    def _area(self, schedule: Schedule) -> float:
        """Bytes over budget, summed over the steps."""
        use = occupancy(self.problem, schedule)
        return float(np.maximum(use - self.budgets[:, None], 0).sum())

    def _repair(self, spans: Spans, schedule: Schedule, result: Result) -> None:
        """Make the schedule of a solution fit: by smaller budgets, then by the search."""
        tuning, incumbent = self.tuning, self.incumbent
        brief = result.seconds < max(tuning.brief, tuning.part * incumbent.left)
        if brief and (self._excess(schedule) <= tuning.near * self.budgets).all():
            self._shrink(spans, schedule)
        if not incumbent.over():
            most = tuning.enough * self.problem.ops
            repaired = self.repair(schedule, min(tuning.repair * result.seconds, most))
            if repaired is not None:
                self.offer(repaired, "lazy-cuts+search")

    def _shrink(self, spans: Spans, schedule: Schedule) -> None:
        """Solve again with the excess taken off the budgets."""
        budgets = self.budgets
        for _ in range(self.tuning.shrinks):
            excess = self._excess(schedule)
            budgets = budgets - excess
            if not excess.any() or (budgets <= 0).any() or self.incumbent.over():
                return
            made = self._build(spans, budgets)
            add_rows(made, self.rows)
            result = self._minimise(made, min(0.2 * self.incumbent.left, 10.0))
            found = None if result.point is None else self._extract(made, result.point)
            if found is None:
                return
            schedule = found

    def _set_pace(self, made: CutModel, result: Result) -> None:
        """Place cuts by the continuous relaxation where rounds are slow and the gap is wide."""
        tuning, incumbent = self.tuning, self.incumbent
        rounds = tuning.aimed * self._share() / max(result.seconds, tuning.slow)
        affordable = log(max(tuning.dearer, rounds), tuning.dearer)
        self.most = len(made.spans.cuts) + int(affordable)
        if self.parallel or incumbent.open_gap <= tuning.far * incumbent.total:
            self.placing = False
        elif not self.placing:
            self.placing = result.seconds > tuning.slow
        elif result.outcome is Outcome.OPTIMAL:
            self.loss *= tuning.finer

    def _place(self) -> None:
        """Cut where the continuous relaxation breaks a budget; keep the cuts that matter."""
        incumbent, tuning = self.incumbent, self.tuning
        end, stalled = incumbent.elapsed + tuning.placing * incumbent.left, 0
        best, solved, last = incumbent.bound, list(self.places.cuts), None
        while not incumbent.over():
            made = self._build(self.places.spans(), self.budgets)
            relaxed = self._relax(made, max(1.0, end - incumbent.elapsed))
            if relaxed is None:  # too many for the time: those before are thinned all the same
                self.places.cuts = solved
                break
            solved, last, bound = list(self.places.cuts), relaxed, made.seconds(relaxed.bound)
            read = replace(made, model=Model())  # without the rows, which are large
            self.points = [*self.points, (read, relaxed.point)][-tuning.read :]
            stalled = stalled + 1 if bound - best < tuning.little * incumbent.open_gap else 0
            best, schedule = max(best, bound), self._extract(made, relaxed.point)
            if stalled == tuning.stall or incumbent.elapsed > end or schedule is None:
                break
            if not self._excess(schedule).any() or not self.places.add(schedule, tuning.many, True):
                break
        if last is None or incumbent.over():
            return
        pool = list(self.places.cuts)
        few = self._thin(last, best - self.loss * incumbent.open_gap)
        self._swap(few, pool, incumbent.elapsed + 0.5 * tuning.placing * incumbent.left)

    def rounded(self, random: np.random.Generator) -> Schedule | None:
        """A schedule read from one of the last continuous solutions, rounded at a number drawn at
        random; perhaps over budget. None while there is none, or where it cannot be read."""
        points = self.points
        if not points:
            return None
        made, point = points[int(random.integers(len(points)))]
        on = (point > random.uniform(self.tuning.low, self.tuning.high)).astype(np.float64)
        return late_schedule(made, on, in_order=self.incumbent.fixed_order)

    def _thin(self, relaxed: Relaxed, least: float) -> Relaxed:
        """Leave out the cuts with the least price, while the relaxation still gives ``least``.

        Those that an integer solution asked for stay; if there are too many for the time that is
        left, more go.
        """
        kept, incumbent, tuning = self.places.cuts, self.incumbent, self.tuning
        while len(kept) > tuning.many and not incumbent.over():
            ranked = sorted(set(kept) - self.asked, key=relaxed.price.__getitem__, reverse=True)
            if not ranked:
                break
            out = ranked[len(ranked) - max(1, int(tuning.out * len(ranked))) :]
            self.places.cuts = [cut for cut in kept if cut not in out]
            made = self._build(self.places.spans(), self.budgets)
            fewer = self._relax(made, 0.5 * tuning.placing * incumbent.left)
            few = len(kept) <= self.most
            if few and fewer is not None and made.seconds(fewer.bound) < least:
                break
            kept, relaxed = self.places.cuts, fewer or relaxed
        self.places.cuts = kept
        return relaxed

    def _swap(self, relaxed: Relaxed, pool: list[int], end: float) -> None:
        """Exchange cuts with a low price for others of the pool while the relaxation gains."""
        kept, tried, tuning = self.places.cuts, set[tuple[int, int]](), self.tuning
        while not self.incumbent.over() and self.incumbent.elapsed < end:
            low = sorted(set(kept) - self.asked, key=relaxed.price.__getitem__)[: tuning.swapped]
            pairs = ((out, into) for out in low for into in pool if into not in kept)
            pair = next((pair for pair in pairs if pair not in tried), None)
            if pair is None:
                break
            tried.add(pair)
            self.places.cuts = [*(cut for cut in kept if cut != pair[0]), pair[1]]
            other = self._relax(self._build(self.places.spans(), self.budgets))
            if other is not None and other.bound > relaxed.bound + tuning.slight:
                kept, relaxed = self.places.cuts, other
                tried.clear()
        self.places.cuts = kept

    def _share(self) -> float:
        """Seconds for one round."""
        left, tuning = self.incumbent.left, self.tuning
        if self.parallel:
            return tuning.loads * left
        if len(self.places.cuts) <= 1 or (self.problem.devices > 1 and not self.placing):
            return left  # a round on several devices is mostly the last that there is time for
        beside = tuning.beside_share if self.options.beside else tuning.turns_share
        share = tuning.share if not self.placing else beside
        return max(tuning.least_share, share * left)

    def _relax(self, made: CutModel, seconds: float = inf) -> Relaxed | None:
        """Tighten the continuous relaxation (exact for one cut) and take its bound."""
        incumbent = self.incumbent
        if len(self.places.cuts) <= 1 or self.parallel:
            return None
        limits = Limits(
            seconds=min(seconds, 0.3 * incumbent.left), seed=self.options.seed,
            stop=incumbent.over, clock=incumbent.clock,
        )  # fmt: skip
        relaxed = tighten(made, self.rows, limits)
        if relaxed is not None:
            self.rows = relaxed.rows
            self._take_bound(made, relaxed.bound)
        return relaxed

    def _build(self, spans: Spans, budgets: Bytes) -> CutModel:
        return build(self.lists, spans, budgets.tolist(), makespan=self.parallel)

    def _minimise(self, made: CutModel, seconds: float, crawl: Crawl | None = None) -> Result:
        incumbent, options = self.incumbent, self.options
        limits = Limits(
            seconds=max(0.05, 0.9 * min(seconds, incumbent.left)),
            gap=self._tolerance() / made.unit,
            threads=max(1, options.solver_threads - 1),
            seed=options.seed,
            warm=self._warm(made),
            stop=incumbent.over if crawl is None else crawl.over,
            progress=None if crawl is None else crawl.see,
            target=incumbent.target / made.unit,
            clock=incumbent.clock,
        )
        result, notes = minimise(made.model, limits, options.solver)
        incumbent.notes.extend(note for note in notes if note not in incumbent.notes)
        return result

    def _tolerance(self) -> float:
        """Seconds within which a round is solved: tight only when that can close the gap."""
        incumbent = self.incumbent
        open_gap = incumbent.open_gap if incumbent.best is not None else 0.0
        most, asked = 1e-4 * incumbent.total, incumbent.gap * incumbent.total
        least = (self.tuning.placed if self.placing else self.tuning.exact) * asked
        return max(least, min(self.slack * open_gap, most))

    def _warm(self, made: CutModel) -> Floats | None:
        """The best schedule whose first runs respect the spans, as a point of the model."""
        schedule = self.best(not made.spans.any_order)
        if schedule is None:
            return None
        point = project(made, schedule)
        return point if made.model.violation(point) < 1e-6 else None

    def _raise(self, made: CutModel, result: Result) -> None:
        incumbent = self.incumbent
        if result.outcome is Outcome.INFEASIBLE:
            limits = Limits(
                seconds=max(1.0, incumbent.left), stop=incumbent.stop, clock=incumbent.clock
            )
            if confirm_infeasible(made.model, limits):
                any_order = made.spans.any_order
                incumbent.raise_bound(inf, self._kind(made), any_order=any_order)
        elif result.bound > -inf:
            self._take_bound(made, result.bound)

    def _take_bound(self, made: CutModel, objective: float) -> None:
        """Loads bound the makespan of the order that they were found for: only where every
        schedule keeps that order is it a bound for all."""
        any_order, bound = made.spans.any_order, made.seconds(objective)
        if not self.parallel:
            self.incumbent.raise_bound(bound, self._kind(made), any_order=any_order)
        elif any_order or self.incumbent.fixed_order:
            self.incumbent.raise_bound(bound, self._kind(made), any_order=any_order, parallel=True)

    def _kind(self, made: CutModel) -> str:
        count = len(made.spans.cuts)
        return ("placement", "single-cut")[count] if count < 2 else f"lazy-cuts({count})"

    def _extract(self, made: CutModel, point: Floats, *, within: bool = False) -> Schedule | None:
        """The schedule of a point, offered; where it says which interval ops of no certain one run
        in, those run in the base order or as soon as they can, whichever is less over budget."""
        fixed, spans = self.incumbent.fixed_order, made.spans
        loose = not fixed and spans.any_order and spans.earliest != spans.latest
        found = []
        for soon in (False, True) if loose else (False,):
            schedule = late_schedule(made, point, within=within, in_order=fixed, soon=soon)
            if schedule is not None:
                if self.lists.links:
                    schedule = retimed(self.problem, schedule, self.incumbent.budgets)
                found.append(schedule)
                self.offer(schedule, "lazy-cuts")
        if not found:
            return None
        self.last = found[0] if len(found) == 1 else min(found, key=self._area)
        return self.last

    def _advance(self, made: CutModel, point: Floats, schedule: Schedule) -> bool:
        """Cut where the schedule of a point breaks a budget; False when no cut can be added.

        Where nothing more can be learnt from the schedule, it is read again with all runs in the
        intervals that the point has them in.
        """
        if self._learn(made, schedule):
            return True
        strict = self._extract(made, point, within=True)
        if strict is None:
            return False
        if self._learn(made, strict):
            return True
        return self.places.free and self.placing and self.places.give_order()

    def _learn(self, made: CutModel, schedule: Schedule) -> bool:
        """Cut at first runs, or where that is done at second runs, that break a budget."""
        spare, places = self.most - len(made.spans.cuts), self.places
        many = max(1, min(self.tuning.many, spare)) if self.placing else 1
        return places.add(schedule, many, self.placing) or places.split(made.spans, schedule)
