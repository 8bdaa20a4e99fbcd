"""Ways to use several devices, tried out against each other; the one that is quickest is taken.

A way is a plan of its own: ops of the whole batch placed one by one, a part of the batch for every
device, everything on one device. Each is a :class:`SeveralDevices` of its own that goes through the
same loop; further ways (a batch in a pipeline, ops in parts) are further such targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import inf

from onnxremat.cost.devices import device_costs
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Machine
from onnxremat.errors import (
    InfeasibleError,
    NoPlanError,
    OverBudgetError,
    UnsupportedError,
    UsageError,
)
from onnxremat.execute.calibration import corrected, tried
from onnxremat.grad import is_step
from onnxremat.pipeline.bench import OnDevices, bench
from onnxremat.pipeline.closed_loop import Candidate, Unfit, as_given, attempt, load_search
from onnxremat.pipeline.divided import prepare_split
from onnxremat.pipeline.over_devices import OverDevices
from onnxremat.pipeline.phases import COSTS, MEASURE
from onnxremat.pipeline.prepare import Prepared
from onnxremat.pipeline.refusal import Refusal
from onnxremat.pipeline.several_devices import SeveralDevices
from onnxremat.planner.options import PlanOptions
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
    alone = several and target.feeds is not None and not trials.options.method.formulation
    most = trials.within(1 - ALONE) if alone else trials
    try:
        best = whole_or_in_parts(target, most)
    except (NoPlanError, OverBudgetError):  # sessions of partitions take room of their own
        one = _one_that_fits(target, trials) if alone else None
        if one is None:
            raise
        return one
    return never_slower(target, best, trials) if alone else best


def whole_or_in_parts(target: SeveralDevices, trials: Trials) -> Candidate:
    """The quicker of two plans in their trials: of the whole batch, and of a part of it for every
    device; the only one that keeps the limits where one does not.

    Raises:
        As :func:`quickest`.
    """
    split = in_parts(target, trials)
    made = best(target, trials.within(1 - PART) if split else trials)
    if split is None or trials.options.stopped:
        return _found(made, target)
    target.log("planning the batch in parts")
    with target.log.phase(COSTS):
        split = split.under(trials.costs(split.prepared))
    parts = best(split, trials)
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


def best(target: SeveralDevices, trials: Trials) -> Made:
    """The plan that is quickest when tried out, or the only one.

    A trial that differs from the costs corrects them, and a plan is made with them from the best
    one so far.
    """
    options = trials.options.begun()
    made = attempt(target, options.within(FIRST))
    if isinstance(made, Unfit):
        return made
    best = last = trials.run(target, made)
    if options.method.formulation:  # the plan of that model, with its costs
        return best
    opaque = {device.name: device.opaque for device in target.site.machine.devices}
    for _ in range(TRIALS - 1):
        tested, over = _over(last), options.stopped or options.left <= 0
        if not tested.made.tried or over or _as_thought(tested):
            break
        costs = corrected(tested.tables, tested.made, opaque=opaque)
        solution = _over(best).solution
        assert solution is not None
        found = _another(target.under(costs), options.within(NEXT), solution.schedule)
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


def never_slower(target: SeveralDevices, best: Candidate, trials: Trials) -> Candidate:
    """The plan, or that of one device which keeps its limit and is no slower, timed in turns."""
    assert target.feeds is not None
    if len(_over(best).devices) < 2 or trials.options.stopped:
        return best
    ways = [best]
    for device in target.site.machine.devices:
        if device.computes:
            found = _alone(target, device.name, trials)
            if found is not None and found.artifact.seconds <= WORTH * best.artifact.seconds:
                ways.append(found)
    if len(ways) == 1:
        return best
    contenders = [OnDevices(str(at), _over(way).made) for at, way in enumerate(ways)]
    with target.log.phase(MEASURE, "timing one device alone"), trials.during():
        stop = trials.options.stop
        times = bench(contenders, target.feeds, seconds=SECONDS, rounds=ROUNDS, stop=stop)
    least = min(times[1:], key=lambda time: time.ratio)
    if least.ratio > 1:
        return best
    alone = trials.run(target, ways[int(least.name)])
    name, count = _over(alone).devices[0], len(_over(best).devices)
    took = f"{least.seconds * 1e3:.3g} ms, {times[0].seconds * 1e3:.3g} ms over {count} devices"
    return alone.noted(
        f"'{name}' alone keeps its budget and is no slower, measured: {took}; it is written"
    )


def _alone(target: SeveralDevices, name: str, trials: Trials) -> Candidate | None:
    """Everything on one device, None where that does not keep its limit or is not allowed."""
    ops = {op.name for op in target.prepared.graph.ops}
    pinned = any(device != name for _, device in target.site.pins)
    if pinned or not ops <= target.tables[name].seconds.keys():
        return None
    return _another(target.alone(name), trials.options.within(NEXT))


def _one_that_fits(target: SeveralDevices, trials: Trials) -> Candidate | None:
    """Everything on the quickest device that keeps its limit so; None where none does in time."""
    ways = list[Candidate]()
    for device in target.site.machine.devices:
        if device.computes and trials.options.left > 0:
            found = _alone(target, device.name, trials)
            ways += [found] if found is not None else []
    if not ways:
        return None
    least = min(ways, key=lambda found: found.artifact.seconds)
    return trials.run(target, least).noted(
        f"'{_over(least).devices[0]}' alone keeps its budget; of the plans over several devices "
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
    ops = {op.name for op in prepared.graph.ops}
    able = [table.total for table in target.tables.values() if ops <= table.seconds.keys()]
    rows = shares(prepared.batch, able)
    if len(rows) < 2:
        return None
    try:
        split = prepare_split(prepared, tuple(rows), target.log, trials.options.left)
    except (UsageError, UnsupportedError):  # rows that depend on each other, a training step
        return None
    return replace(target, prepared=split, known={})


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
    prepared, limits = target.prepared, target.limits
    asked = prepared.settings.split_batch is not None or prepared.feeds is None
    if asked or is_step(prepared.original) or prepared.batch < 2:
        return False
    room = sum(limits.get(name, inf) for name in target.site.machine.names)
    return room >= prepared.floor.fixed


def _tried_like(found: Candidate, other: OverDevices) -> Candidate:
    """With the trial of another deployment of the same plan."""
    artifact = _over(found)
    made = replace(artifact.made, tried=other.made.tried, around=other.made.around)
    return replace(found, artifact=replace(artifact, made=made))


def _as_thought(artifact: OverDevices) -> bool:
    """A trial took what the costs of ops had told."""
    return abs(artifact.made.makespan_of_costs / artifact.seconds - 1) <= NEAR
