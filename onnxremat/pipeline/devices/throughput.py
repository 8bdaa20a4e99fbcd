"""Stages over devices that pass the most samples per second, as far as is proven.

A chain of stages, or a placement of any shape where that is quicker
(:mod:`onnxremat.pipeline.devices.any_shape`). The placement of a chain is that of
:mod:`onnxremat.placement` for the model's placement graph, or one whose stages are on several
devices in turn, where that has less load and fits: the whole model on each of them has the load of
perfect balance. Samples in flight are as many as the budgets allow. It is tried out, and placed
again with the seconds that its stages took, as other plans over devices are
(:mod:`onnxremat.pipeline.devices.device_ways`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from onnxremat.cost.table import CostTable
from onnxremat.errors import InfeasibleError, NoPlanError, UsageError
from onnxremat.execute.calibration import AS_TRIED, MOST
from onnxremat.execute.deployment import Deployment
from onnxremat.execute.pipelined import Flow
from onnxremat.ort.providers import CPU
from onnxremat.pipeline.artifact import excess
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.devices.any_shape import any_shape
from onnxremat.pipeline.devices.device_ways import NEAR, TRIALS, Trials
from onnxremat.pipeline.devices.pipelined import Pipelined, tried
from onnxremat.pipeline.devices.placed import (
    BALANCE,
    EACH,
    Wanted,
    as_pipelined,
    deployed,
    floor,
    impossible,
    kept,
    none_in_time,
    work_of,
)
from onnxremat.pipeline.devices.placement_bridge import Bridge, bridge, kinds
from onnxremat.pipeline.devices.several_devices import SeveralDevices
from onnxremat.pipeline.devices.stage_cuts import along_order
from onnxremat.pipeline.devices.stage_remakes import Remakes
from onnxremat.pipeline.phases import BUILD, MEASURE, PLAN
from onnxremat.pipeline.refusal import Refusal
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.contiguous import solve
from onnxremat.planner.bounds import misfit
from onnxremat.planner.incumbent import NO_LIMIT
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.reasons import named
from onnxremat.rewrite.partition import Partition
from onnxremat.session.process import SESSION, further_bytes

ROUNDS = 4  # plans for less memory after one that took more than was predicted
CUT = (
    "the placement of least load does not keep the budgets with samples in flight: the best cut of "
    "the listed order that does"
)
AGAIN = "ops are run again inside stages that are over their budget otherwise"
CLEARLY = 0.98  # of a chain's time, that a placement of any shape is to take at most

Place: TypeAlias = Callable[[SeveralDevices, Trials, Mapping[str, int]], Pipelined | None]


def fullest(target: SeveralDevices, trials: Trials, wanted: Wanted) -> Candidate:
    """The pipeline that is quickest when tried out.

    Raises:
        UsageError: pins, a formulation, a training step, or replicas of a placement of any shape.
        UnsupportedError: a machine with more than two kinds of devices.
        InfeasibleError, NoPlanError: the budgets cannot be kept.
    """
    _check(target, trials, wanted)
    trials = replace(trials, options=trials.options.begun())
    if wanted.contiguous is False:
        found = _settled(target, trials, partial(any_shape, wanted=wanted, below=inf))
        if found is None:
            raise _nowhere(target)
        return found[0]
    chain = partial(_placed, wanted=wanted)
    if wanted.contiguous:
        found = _settled(target, trials, chain)
        assert found is not None
        return found[0]
    return _quicker(target, trials, wanted, chain)


def _quicker(target: SeveralDevices, trials: Trials, wanted: Wanted, chain: Place) -> Candidate:
    """The best chain, or a placement of any shape that is quicker; where there is no chain, one
    that fits."""
    try:
        found = _settled(target, trials, chain)
        assert found is not None
    except (InfeasibleError, NoPlanError) as refused:
        other = _settled(target, trials, partial(any_shape, wanted=wanted, below=inf))
        if other is not None:
            return other[0]
        if isinstance(refused, _NoChainError):
            raise _nowhere(target) from refused
        raise
    best, target = found
    below = CLEARLY * _pipelined(best).seconds
    try:
        other = _settled(target, trials, partial(any_shape, wanted=wanted, below=below))
    except NoPlanError:  # its runs took more than there is
        return best
    return other[0] if other is not None and _rate(other[0]) < _rate(best) else best


class _NoChainError(InfeasibleError):
    """Proven of chains."""


def _settled(
    target: SeveralDevices, trials: Trials, place: Place
) -> tuple[Candidate, SeveralDevices] | None:
    """The pipeline that is quickest when tried out, of one way to place, and the target at the
    costs that it took; None where the way has none to try."""
    made = _carried_out(target, trials, place)
    if made is None:
        return None
    best = last = _tried(target, trials, made)
    for _ in range(TRIALS - 1):
        artifact = _pipelined(last)
        if artifact.trial is None or trials.options.stopped or trials.options.left <= 0:
            break
        if _as_thought(artifact):
            break
        target = target.under(corrected(target, artifact))
        found = _carried_out(target, trials, place)
        if found is None:
            break
        if _same(found, last):
            # The same stages at corrected costs: what was tried is what is predicted.
            same = replace(_pipelined(found), trial=artifact.trial)
            last = replace(found, artifact=same)
            best = last if best.artifact.plan.steps == last.artifact.plan.steps else best
            break
        last = _tried(target, trials, found)
        if _rate(last) < _rate(best):
            best = last
    artifact = _pipelined(best)
    told = target.under(artifact.tables)
    return best, told.under(corrected(told, artifact)) if artifact.trial else told


def _check(target: SeveralDevices, trials: Trials, wanted: Wanted) -> None:
    if wanted.contiguous is False and wanted.replicas not in (None, 1):
        raise UsageError(
            f"--replicas {wanted.replicas} does not go with --any",
            why="in a placement of any shape every op is on one device",
            hint="leave out --any, or --replicas",
        )
    if target.site.pins:
        raise UsageError(
            "--pin does not go with --objective throughput",
            why="the placement tells kinds of devices apart, not devices",
            hint="leave out --pin, or --objective makespan",
        )
    if trials.options.method.formulation:
        raise UsageError(
            "--formulation does not go with --objective throughput",
            why="formulations minimise the time of one run",
            hint="leave it out",
        )
    if target.prepared.in_place:
        raise UsageError(
            "a training step cannot be pipelined",
            why="a step reads what the step before it wrote",
            hint="--objective makespan",
        )


def _carried_out(target: SeveralDevices, trials: Trials, place: Place) -> Candidate | None:
    """The best placement that keeps the limits, run once under the meter where that can be; None
    where there is none to try."""
    limits = dict(target.limits)
    for round_ in range(ROUNDS):
        try:
            with target.log.phase(PLAN, "placing"):
                artifact = place(target, trials, limits)
        except InfeasibleError:
            if round_ == 0:
                raise
            break  # proven of less than the budgets
        if artifact is None:
            return None
        measured = None
        if target.feeds is not None:
            with target.log.phase(MEASURE):
                measured = artifact.measure(target.feeds)
                over = excess(measured.peaks, target.limits)
            if over:
                limits.update({name: limits[name] - more for name, more in over.items()})
                continue
        return Candidate(target.prepared, artifact, target.limits, measured, round_)
    raise NoPlanError(
        f"no pipeline found for {target.prepared.name} within its budgets",
        why="the last ones took more than was predicted when they were run",
        hint="give more memory, or fewer samples in flight: --in-flight",
    )


def _placed(
    target: SeveralDevices, trials: Trials, limits: Mapping[str, int], wanted: Wanted
) -> Pipelined:
    """The placement with the least largest load, with the most samples in flight that fit; where
    none fit, the best cut of the listed order that does."""
    made = bridge(target.model, target.tables, limits)
    counts = _counts(target, wanted.in_flight)
    several = None
    if wanted.replicas != 1 and _alike(made):
        several = _in_turn(target, made, limits, counts, wanted.replicas)
    if several is not None and several[0].status == "optimal":
        return as_pipelined(target, made, *several)
    answer = _chain(target, made, trials)
    if wanted.replicas != 1 and _alike(made) and len(made.devices) > 2:
        least = floor(made)  # of what is no chain of single devices, too
        answer = replace(answer, bound=min(least, answer.bound), bound_by=BALANCE)
    found = _fitting(target, made, answer, limits, counts)
    if several is not None and (found is None or several[0].value < answer.value):
        return as_pipelined(target, made, *several)
    if found is not None:
        return as_pipelined(target, made, answer, found)
    with target.log.phase(PLAN, "placing within the budgets"):
        again = Remakes(target.model, trials.options.seed, target.prepared.settings.fixed_order)
        return _within(target, made, answer, limits, counts, again)


def _chain(target: SeveralDevices, made: Bridge, trials: Trials) -> Answer:
    """The best chain of devices, samples in flight not regarded."""
    try:
        answer = solve(made.graph, work_of(trials))
    except InfeasibleError as error:
        raise impossible(target, error, " as a chain of stages", _NoChainError) from error
    if answer.where is None:
        raise none_in_time()
    return answer


def _fitting(
    target: SeveralDevices,
    made: Bridge,
    answer: Answer,
    limits: Mapping[str, int],
    counts: Sequence[int],
) -> Deployment | None:
    """A chain of devices with the most samples in flight that keep the limits."""
    assert answer.where is not None
    with target.log.phase(BUILD):
        for count in counts:
            for names in made.orders(answer.order):
                plan = made.plan(answer.where.tolist(), answer.order, names)
                found = deployed(target, plan, answer, limits, Flow(count))
                if not excess(found.worst, limits):
                    return found
    return None


def _alike(made: Bridge) -> bool:
    """Some processors could take samples in turn."""
    kinds = made.devices[: made.graph.accelerators], made.devices[made.graph.accelerators :]
    machine = made.model.machine
    return any(len(row) > 1 and machine.device(row[0]).provider == CPU for row in kinds)


def _in_turn(
    target: SeveralDevices,
    made: Bridge,
    limits: Mapping[str, int],
    counts: Sequence[int],
    replicas: int | None,
) -> tuple[Answer, Deployment] | None:
    """The best cut of the listed order whose stages may be on several devices, as far as the limits
    allow. No pipeline has less than the load of perfect balance, which the whole model on each of
    some devices that are all alike has."""
    unknown = Answer("", inf, floor(made), BALANCE, None)
    best: tuple[Answer, Deployment] | None = None
    for count in counts:
        found = _kept_cut(target, made, limits, Inside(count, replicas), unknown)
        if found is not None and (best is None or found[0].value < best[0].value):
            best = found
        if best is not None and best[0].status == "optimal":
            break
    return best


def _counts(target: SeveralDevices, in_flight: int | None) -> list[int]:
    """Samples in flight to try, most first: a stage that waits for the next one keeps its device
    idle, so that there should be more than devices."""
    if in_flight is not None:
        return [in_flight]
    devices = sum(device.computes for device in target.site.machine.devices)
    return list(range(EACH * devices, devices - 1, -1))


def _within(
    target: SeveralDevices,
    made: Bridge,
    answer: Answer,
    limits: Mapping[str, int],
    counts: Sequence[int],
    again: Remakes,
) -> Pipelined:
    """The best chain along the listed order that keeps the limits, with recomputation inside stages
    where that is quicker; the most samples in flight of the least load."""
    answer = replace(answer, notes=(*answer.notes, CUT))
    rows = [_kept_cut(target, made, limits, Inside(n, 1), answer, again) for n in counts]
    found = [row for row in rows if row is not None]
    if not found:
        raise _refusal(target, limits, counts[-1])
    return as_pipelined(target, made, *min(found, key=lambda row: row[0].value))


class Inside(NamedTuple):
    """Samples in flight, and devices at most that take those of one stage in turn."""

    in_flight: int
    replicas: int | None


def _kept_cut(
    target: SeveralDevices,
    made: Bridge,
    limits: Mapping[str, int],
    inside: Inside,
    answer: Answer,
    again: Remakes | None = None,
) -> tuple[Answer, Deployment] | None:
    """The best cut of the listed order that keeps the limits, with so many samples in flight.

    Args:
        answer: bound and notes of what is answered.
        again: what recomputation inside a stage takes; None for none.
    """
    aim, work = _less_beside(target, limits), Work(inf)
    for _ in range(ROUNDS):
        cut = along_order(target.model, made, aim, *inside, again)
        if cut is None:
            return None
        plan = made.plan(cut.where, range(len(cut.names)), cut.names, cut.runs)
        method = "stages on several devices" if cut.replicas else "cut of the listed order"
        chosen = replace(
            answer, method=method, value=max(cut.value, answer.bound),
            notes=(*answer.notes, *[AGAIN] * bool(cut.runs)),
            where=np.asarray(cut.where), seconds=answer.seconds + work.taken,
        )  # fmt: skip
        made_of = deployed(target, plan, chosen, limits, Flow(inside.in_flight, cut.replicas))
        over = excess(made_of.worst, limits)
        if not over:
            return chosen, made_of
        aim.update({name: aim[name] - more for name, more in over.items()})
    return None


def _less_beside(target: SeveralDevices, limits: Mapping[str, int]) -> dict[str, int]:
    """What limits leave for weights and values of a stage, its nodes aside."""
    counted = target.site.counted
    session = SESSION + further_bytes() if counted.sessions else 0
    return {n: limit - counted.given.get(n, 0) - session for n, limit in limits.items()}


def _refusal(
    target: SeveralDevices, limits: Mapping[str, int], count: int
) -> InfeasibleError | NoPlanError:
    """Why nothing fits; proven where some op takes too much everywhere."""
    name, problem, text = target.prepared.name, target.model.problem, kept(target.limits)
    budgets = [limits.get(device, NO_LIMIT) for device in problem.names]
    found = misfit(ProblemLists(problem), budgets)
    if found is not None:
        ops = [f"op '{op}'" for op in target.model.names.ops]
        return Refusal(
            f"{name} cannot run within {text}",
            f"proven: {named(found.why, ops)}",
            proven=True,
            first="give a device more, or a smaller batch",
        ).error()
    return Refusal(
        f"no pipeline found for {name} within {text} with {count} samples in flight",
        "no cut of the listed order fits; that none does at all is not proven",
        proven=False,
        first="give the devices more, fewer samples in flight (--in-flight), or a smaller batch; "
        "--objective makespan moves values away where memory is short",
    ).error()


def _nowhere(target: SeveralDevices) -> NoPlanError:
    within = f" within {kept(target.limits)}" if target.limits else ""
    return NoPlanError(
        f"no placement of any shape found for {target.prepared.name}{within}",
        why="none that was found fits, or has few enough pieces; that there is none is not proven",
        hint="give the devices more, or leave out --any: chains of stages are cut to fit",
    )


def _tried(target: SeveralDevices, trials: Trials, found: Candidate) -> Candidate:
    if target.feeds is None:
        return found
    with target.log.phase(MEASURE, "trying it out"), trials.during():
        artifact = tried(_pipelined(found), target.feeds, trials.options.stop)
    return replace(found, artifact=artifact)


def corrected(target: SeveralDevices, artifact: Pipelined) -> dict[str, CostTable]:
    """Costs under which every stage takes what it took in the trial; devices of one kind stay
    alike: what ran on one of them costs the same on all."""
    groups = [group for group in kinds(artifact.made.machine) if group]
    factors: dict[str, list[float]] = {}
    rows: dict[str, dict[str, float]] = {}
    for name, factor, ops in _factors(target, artifact):
        factors.setdefault(name, []).append(factor)
        rows.setdefault(name, {}).update(dict.fromkeys(ops, factor))
    found = {}
    for name, table in target.tables.items():
        group = next(row for row in groups if name in row)
        usual = [factor for device in group for factor in factors.get(device, ())] or [1.0]
        of_op: dict[str, float] = {}
        for device in group:
            of_op |= rows.get(device, {})
        rest = sum(usual) / len(usual)
        seconds = {op: took * of_op.get(op, rest) for op, took in table.seconds.items()}
        source = table.source.removesuffix(AS_TRIED) + AS_TRIED
        found[name] = replace(table, seconds=seconds, source=source, apart=table.alone)
    return found


def _factors(target: SeveralDevices, artifact: Pipelined) -> Iterator[tuple[str, float, list[str]]]:
    """Device, what its ops took over what their costs had told, and the ops, of every stage."""
    made, thought = artifact.made, artifact.stages_of_costs
    took = artifact.trial.stages if artifact.trial else thought
    for number, stage in enumerate(artifact.stages):
        actions = [made.parts.actions[index] for index in stage.actions]
        ops = [op.name for part in actions if isinstance(part, Partition) for op in part.graph.ops]
        told = sum(target.tables[stage.name].seconds.get(op, 0.0) for op in ops) if ops else 0.0
        if told:
            beside = thought[number] - told  # calls and boundaries
            share = (took[number] - beside) / told
            yield stage.name, min(MOST, max(1 / MOST, share)), ops


def _as_thought(artifact: Pipelined) -> bool:
    """Every stage took what its costs had told."""
    thought = artifact.loads_of_costs
    return all(abs(thought[n] / took - 1) <= NEAR for n, took in artifact.loads.items())


def _same(found: Candidate, last: Candidate) -> bool:
    """The same stages of as many samples."""
    one, other = _pipelined(found).made, _pipelined(last).made
    flows = [(made.in_flight, made.replicas) for made in (one, other)]
    return one.plan.steps == other.plan.steps and flows[0] == flows[1]


def _rate(found: Candidate) -> float:
    artifact = _pipelined(found)
    return artifact.trial.seconds if artifact.trial else artifact.seconds


def _pipelined(found: Candidate) -> Pipelined:
    assert isinstance(found.artifact, Pipelined)
    return found.artifact
