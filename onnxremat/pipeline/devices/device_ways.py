"""Ways to use several devices, tried out against each other; the one that is quickest is taken.

A way is a plan of its own: ops of the whole batch placed one by one, a part of the batch for every
device, everything on one device. Each is a :class:`SeveralDevices` of its own that goes through the
same loop; further ways (a batch in a pipeline, ops in parts) are further such targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from onnxremat.cost.devices import device_costs
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Machine
from onnxremat.errors import (
    NO_FIT,
    InfeasibleError,
    NoPlanError,
    OnnxrematError,
    UnsupportedError,
    UsageError,
)
from onnxremat.execute.calibration import corrected, tried
from onnxremat.grad import is_step
from onnxremat.pipeline.bench import OnDevices, bench
from onnxremat.pipeline.closed_loop import Candidate, Unfit, as_given, attempt, load_search
from onnxremat.pipeline.devices.device_regions import in_regions
from onnxremat.pipeline.devices.over_devices import OverDevices
from onnxremat.pipeline.devices.several_devices import SeveralDevices, bounded, unplanned
from onnxremat.pipeline.in_parts.divided import prepare_split
from onnxremat.pipeline.phases import COSTS, MEASURE
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import Refusal
from onnxremat.pipeline.time_left import no_time
from onnxremat.pipeline.ways import choosers_of
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.plan_steps import provenance_of
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.solution import Solution

Costs = Callable[[Prepared], Mapping[str, CostTable]]
During = Callable[[], AbstractContextManager[object]]
Made = Candidate | Unfit[Solution]

TRIALS = 3  # plans of one way that are tried out
NEAR = 0.03  # share by which a trial may differ from the costs that a plan was made with
PART = 0.3  # of the time to plan, for the batch in parts: list scheduling is near the best there
FIRST, NEXT = 0.6, 0.5  # of the time of a way for its first plan; of what is left, for the next
ALONE = 0.15  # of the time, for plans on one device
SLOW, FAR = 5.0, 0.4  # times the quickest device's time from which another is not tried alone, and
# the share of the time for the quickest where all others are so slow
WORTH = 1.5  # times the best trial up to which a plan on one device is timed against it
SECONDS, ROUNDS = 2.0, (5, 40)  # of timing these


@dataclass(frozen=True)
class Trials:
    """How plans are tried out.

    Attributes:
        options: of planning; their time limit bounds all ways together.
        costs: prices the ops of a prepared model on every device.
        during: entered while something is timed (to keep other work away, say).
    """

    options: PlanOptions
    costs: Costs
    during: During = nullcontext

    def within(self, share: float) -> Trials:
        """The same with a share of the time that is left."""
        return replace(self, options=self.options.within(share))

    def run(self, target: SeveralDevices, found: Candidate) -> Candidate:
        """A plan with the seconds of its partitions, where they can be run."""
        if target.feeds is None:
            return found
        artifact = _over(found)
        with target.log.phase(MEASURE, "trying it out"), self.during():
            made = tried(artifact.made, target.feeds, stop=self.options.stop)
        return replace(found, artifact=replace(artifact, made=made))


def measured_on(machine: Machine, say: Callable[[str], None]) -> Costs:
    """What ops take on the devices of a machine: measured where they are here."""

    def costs(prepared: Prepared) -> dict[str, CostTable]:
        return device_costs(
            prepared.graph, machine, prepared.feeds,
            prepared.settings.measuring(prepared.folder), say=say,
        )  # fmt: skip

    return costs


def quickest(target: SeveralDevices, trials: Trials) -> Candidate:
    """The quickest of all ways that keep the limits, as measured where it can be run.

    Raises:
        InfeasibleError, NoPlanError, OverBudgetError: the limits cannot be kept; of the whole
            batch.
    """
    load_search(len(target.site.machine.devices), target.log)
    trials = replace(trials, options=trials.options.begun())
    several = sum(device.computes for device in target.site.machine.devices) > 1
    alone = several and not trials.options.method.formulation
    singles, start = _singles(target, trials) if alone else ([], None)
    try:
        best = whole_or_in_parts(target, trials, start)
    except NO_FIT as error:  # sessions of partitions take room of their own
        if singles:
            return _one_that_fits(target, singles, trials)
        return _in_regions(target, trials, error)
    return never_slower(target, best, singles, trials)


def _in_regions(target: SeveralDevices, trials: Trials, error: OnnxrematError) -> Candidate:
    def planned(split: SeveralDevices, options: PlanOptions) -> Made:
        with split.log.phase(COSTS):
            split = split.under(trials.costs(split.prepared))
        return best(split, replace(trials, options=options))

    choosers = choosers_of(target.prepared, trials.options, target.log, needed=True)
    return in_regions(target, choosers, trials.options, planned, error)


def whole_or_in_parts(
    target: SeveralDevices, trials: Trials, warm: Schedule | None = None
) -> Candidate:
    """The quicker of two plans in their trials: of the whole batch, and of a part of it for every
    device; the only one that keeps the limits where one does not.

    Raises:
        As :func:`quickest`.
    """
    split = in_parts(target, trials)
    made = best(target, trials.within(1 - PART) if split else trials, warm)
    if split is None or trials.options.stopped:
        return _found(made, target)
    target.log("planning the batch in parts")
    with target.log.phase(COSTS):
        split = split.under(trials.costs(split.prepared))
    parts = best(split, _for_parts(trials))
    if isinstance(parts, Unfit):
        return _found(made, target)
    rows = " + ".join(map(str, split.prepared.settings.split_batch or ()))
    text = f"the batch is computed in parts of {rows} rows: "
    if isinstance(made, Unfit):
        return parts.noted(f"{text}whole, it does not fit")
    ours, theirs = parts.artifact.seconds, made.artifact.seconds
    if ours >= theirs:
        return made
    return parts.noted(
        f"{text}{ours * 1e3:.3g} ms, whole {theirs * 1e3:.3g} ms (--split-batch 1 keeps it whole)"
    )


def _for_parts(trials: Trials) -> Trials:
    """With the time for the batch in parts, that of the whole left over or not: whether it fits may
    never be known."""
    options = trials.options
    if options.work is not None:
        return trials
    return replace(trials, options=options.lasting(PART * options.time_limit))


def best(target: SeveralDevices, trials: Trials, warm: Schedule | None = None) -> Made:
    """The plan that is quickest when tried out, or the only one.

    A trial that differs from the costs corrects them, and a plan is made with them from the best
    one so far. One that left no room for one slab of all sessions, whose pages came anew in each
    run, says nothing of costs: a plan is made for less.
    """
    options = trials.options.begun()
    made = attempt(target, options.within(FIRST), warm)
    if isinstance(made, Unfit):
        return made
    if made.aim is not None:
        target = replace(target, learned=replace(made.aim, limits={}))
    best = last = trials.run(target, made)
    if options.method.formulation:  # the plan of that model, with its costs
        return best
    opaque = {device.name: device.opaque for device in target.site.machine.devices}
    for _ in range(TRIALS - 1):
        tested, late = _over(last), options.left <= 0
        crowded = tested.made.crowded
        if options.stopped or (late and (not crowded or no_time(target.prepared, target.log))):
            break
        if not tested.made.tried or (_as_thought(tested) and not crowded):
            break
        if crowded:
            target = target.roomier(crowded)
        else:
            target = target.under(corrected(tested.tables, tested.made, opaque=opaque))
        solution = _over(best).solution
        assert solution is not None
        more = options.lasting(options.least) if late else options.within(NEXT)
        found = _another(target, more, solution.schedule)
        if found is None:
            break
        if found.plan.steps == best.plan.steps:
            return _tried_like(found, _over(best))
        last = trials.run(target, found)
        if last.artifact.seconds < best.artifact.seconds:
            best = last
    return best


def given(target: SeveralDevices, solution: Solution, trials: Trials) -> Candidate:
    """A solution from elsewhere carried out and tried.

    Raises:
        OverBudgetError: carried out it takes more than a limit.
    """
    return trials.run(target, as_given(target, solution))


def never_slower(
    target: SeveralDevices, best: Candidate, singles: list[Candidate], trials: Trials
) -> Candidate:
    """The plan, or that of one device which keeps its limit and is no slower: timed in turns, or
    as predicted where nothing can be run."""
    if len(_over(best).devices) < 2 or trials.options.stopped:
        return best
    if target.feeds is None:
        quicker = [one for one in singles if one.artifact.seconds <= best.artifact.seconds]
        if not quicker:
            return best
        took = quicker[0].artifact.seconds, best.artifact.seconds
        return _instead(_judged(target, quicker[0], best), best, "predicted", took)
    near = [one for one in singles if one.artifact.seconds <= WORTH * best.artifact.seconds]
    ways = [best, *near]
    if not near:
        return best
    contenders = [OnDevices(str(at), _over(way).made) for at, way in enumerate(ways)]
    with target.log.phase(MEASURE, "timing one device alone"), trials.during():
        stop = trials.options.stop
        times = bench(contenders, target.feeds, seconds=SECONDS, rounds=ROUNDS, stop=stop)
    least = min(times[1:], key=lambda time: time.ratio)
    if least.ratio > 1:
        return best
    alone = trials.run(target, _judged(target, ways[int(least.name)], best))
    return _instead(alone, best, "measured", (least.seconds, times[0].seconds))


def _instead(
    single: Candidate, best: Candidate, how: str, seconds: tuple[float, float]
) -> Candidate:
    """The plan of one device, with the seconds of both that are the reason."""
    alone, several = (each * 1e3 for each in seconds)
    return single.noted(
        f"'{_name(single)}' alone keeps its budget and is no slower, {how}: {alone:.3g} ms, "
        f"{several:.3g} ms over {len(_over(best).devices)} devices; it is written"
    )


def _able(target: SeveralDevices) -> dict[str, float]:
    """Devices that can run all ops, and the seconds that these take there."""
    ops = {op.name for op in target.prepared.graph.ops}
    return {
        name: table.total for name, table in target.tables.items() if ops <= table.seconds.keys()
    }


def _singles(target: SeveralDevices, trials: Trials) -> tuple[list[Candidate], Schedule | None]:
    """Plans of everything on one device that keep their limits, the quickest first; of devices
    that are not many times slower than the quickest. And the first of them as a schedule of all
    devices, where state lies as it does there."""
    pins = {device for _, device in target.site.pins}
    able = {name: took for name, took in _able(target).items() if pins <= {name}}
    near = [name for name, took in able.items() if took <= SLOW * min(able.values())]
    others = [name for name, table in target.tables.items() if table.seconds and name not in near]
    # What is far quicker than all others computes most of the best plan, too.
    share = FAR if len(near) == 1 and others else ALONE
    found = list[tuple[Candidate, SeveralDevices]]()
    for count, name in enumerate(near):
        alone = target.alone(name)
        made = _another(alone, trials.options.within(share / (len(near) - count)))
        found += [(made, alone)] if made is not None else []
    if not found:
        return [], None
    found.sort(key=lambda each: each[0].artifact.seconds)
    first, alone = found[0]
    solution = _over(first).solution
    same = solution is not None and alone.model.names == target.model.names
    return [made for made, _ in found], solution.schedule if solution and same else None


def _name(single: Candidate) -> str:
    return _over(single).devices[0]


def _judged(target: SeveralDevices, single: Candidate, best: Candidate | None) -> Candidate:
    """A plan of one device with what is proven of the plans over all: its own proof holds for
    those of that device alone."""
    artifact, problem = _over(single), target.model.problem
    own, joint = artifact.solution, _over(best).solution if best is not None else None
    assert own is not None
    own = replace(own, objective=target.site.objective)
    found = bounded(problem, own, joint or unplanned(problem), target.gap)
    about, kept = provenance_of(found), artifact.plan.provenance
    told = artifact.told(
        status=about.status, bound=about.bound, bound_kind=about.bound_kind, staged=about.staged,
        any_order=about.any_order, seconds=about.seconds, notes=kept.notes,
    )  # fmt: skip
    return replace(single, artifact=replace(told, solution=found))


def _one_that_fits(target: SeveralDevices, singles: list[Candidate], trials: Trials) -> Candidate:
    """The quickest plan of one device, where none of several keeps the limits."""
    return trials.run(target, _judged(target, singles[0], None)).noted(
        f"'{_name(singles[0])}' alone keeps its budget; of the plans over several devices "
        "that were found none does, carried out"
    )


def _another(
    target: SeveralDevices, options: PlanOptions, warm: Schedule | None = None
) -> Candidate | None:
    """A plan beside one that is there already; None for none, and when planning was stopped."""
    try:
        found = attempt(target, options, warm)
    except NoPlanError:
        return None
    return found if isinstance(found, Candidate) else None


def in_parts(target: SeveralDevices, trials: Trials) -> SeveralDevices | None:
    """The model with a part of the batch for every device, not priced yet; None where devices do
    not work side by side, it cannot be tried out, or something that was asked for names ops of the
    whole."""
    prepared, settings = target.prepared, target.prepared.settings
    whole = settings.split_batch is not None or settings.fixed_order or prepared.in_place
    fixed = target.site.pins or trials.options.method.formulation
    if whole or fixed or target.site.objective != "makespan" or target.feeds is None:
        return None
    rows = shares(prepared.batch, list(_able(target).values()))
    if len(rows) < 2:
        return None
    try:
        split = prepare_split(prepared, tuple(rows), target.log, trials.options.left)
    except (UsageError, UnsupportedError):  # rows that depend on each other, a training step
        return None
    return target.of(split)


def shares(batch: int, seconds: list[float]) -> list[int]:
    """Rows for each device, so that those that need ``seconds`` for all rows end together; devices
    that would get none are left out.

    >>> shares(8, [1.0, 1.0]), shares(8, [1.0, 3.0]), shares(1, [1.0, 1.0])
    ([4, 4], [6, 2], [1])
    """
    rows = [0] * len(seconds)
    for _ in range(batch):
        ends = [(count + 1) * took for count, took in zip(rows, seconds, strict=True)]
        rows[ends.index(min(ends))] += 1
    return [count for count in rows if count]


def _over(found: Candidate) -> OverDevices:
    assert isinstance(found.artifact, OverDevices)
    return found.artifact


def _found(made: Made, target: SeveralDevices) -> Candidate:
    """The plan.

    Raises:
        InfeasibleError, NoPlanError, OverBudgetError: there is none.
    """
    if not isinstance(made, Unfit):
        return made
    error = made.error()
    if not isinstance(error, InfeasibleError) or not _may_be_in_parts(target):
        raise error
    raise replace(
        Refusal.of(error),
        proven=False,
        why=f"none is possible with the batch whole: {error.why}",
        first=f"--split-batch {target.prepared.batch}, or fewer parts; {error.hint}",
    ).error()


def _may_be_in_parts(target: SeveralDevices) -> bool:
    """Whether smaller parts of the batch than were tried may do with less."""
    prepared = target.prepared
    asked = prepared.settings.split_batch is not None or prepared.feeds is None
    if asked or is_step(prepared.original) or prepared.batch < 2:
        return False
    return not target.hopeless


def _tried_like(found: Candidate, other: OverDevices) -> Candidate:
    """With the trial of another deployment of the same plan."""
    artifact = _over(found)
    made = replace(artifact.made, tried=other.made.tried, around=other.made.around)
    return replace(found, artifact=replace(artifact, made=made))


def _as_thought(artifact: OverDevices) -> bool:
    """A trial took what the costs of ops had told."""
    return abs(artifact.made.makespan_of_costs / artifact.seconds - 1) <= NEAR
