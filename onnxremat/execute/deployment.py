"""A plan over devices made ready to run: settled, cut, checked against budgets, written, read."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxremat import plain_json
from onnxremat.cost.table import CostTable
from onnxremat.device.files import machine_toml, parse_machine
from onnxremat.device.machine import Machine
from onnxremat.errors import ModelError, UsageError
from onnxremat.execute.action_times import action_seconds
from onnxremat.execute.cyclic import Rounds
from onnxremat.execute.device_memory import DeviceBytes, device_bytes
from onnxremat.execute.executor import Executor, Kept, Opening
from onnxremat.execute.in_flight import places
from onnxremat.execute.inside import insides
from onnxremat.execute.partition_cuts import Terms, partition_within
from onnxremat.execute.pipelined import Event, Flow, Pipeline, pipeline_stages, rounds_of
from onnxremat.execute.read_back import (
    read_counted,
    read_seconds,
    read_sizes,
    read_waits,
    whole,
)
from onnxremat.execute.streams import finish_times, overlaps
from onnxremat.execute.waits import waits_within, worst_case
from onnxremat.grad import training_of
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import read_model
from onnxremat.graph.wire import existing, read_light
from onnxremat.memory.mapped import can_own
from onnxremat.memory.native import missing
from onnxremat.ort.infer import build_graph
from onnxremat.ort.providers import CPU
from onnxremat.ort.session import TUNED
from onnxremat.rewrite.annotate import annotated, summary
from onnxremat.rewrite.emit import metadata, pack, set_metadata, unpack
from onnxremat.rewrite.partition import Partitioned, partition
from onnxremat.rewrite.restore import restored
from onnxremat.schedule.devices import follow, inputs_first, settled
from onnxremat.schedule.plan import Plan, graph_hash

FORMAT = 1

CLEARLY = 0.99  # share of the predicted time at which more partitions are taken
EARLY = (1 << 62, 1 << 16)  # bytes of inputs that are tried to be brought over at the start


@dataclass(frozen=True)
class Deployment:
    """A model on several devices.

    Attributes:
        graph: the graph the plan belongs to.
        plan: runs, moves and frees on devices.
        parts: the partitions.
        limits: bytes per device, for those that have a limit.
        waits: (before, after) actions, so that devices side by side keep their limits.
        folder: where external weights are.
        file: that has the big weights inside, which were not read; None where they were.
        predicted: bytes per device, one action after the other; empty when read from a file.
        worst: bytes no device can exceed side by side; likewise.
        seconds: predicted seconds per action, of the costs of its ops; when read from a file, what
            :attr:`expected` was.
        tried: seconds per action, in each run of a trial (:mod:`onnxremat.execute.calibration`).
        around: seconds of a run of the trial beside its actions: inputs are bound, results handed
            out.
        crowded: bytes by which one slab for all sessions was over the limits in it
            (:attr:`~onnxremat.execute.calibration.TimedExecutor.crowded`).
        scratch: bytes of workspace per device and op.
        in_flight: samples that are inside at most when it is run as a pipeline, which it was
            planned for; 0 when it was not. ``worst`` is then of so many.
        replicas: of a pipeline: devices that take the samples of a stage in turn with its own.
    """

    graph: Graph
    plan: Plan
    machine: Machine
    parts: Partitioned
    limits: Mapping[str, int]
    waits: tuple[tuple[int, int], ...]
    folder: Path | None
    predicted: Mapping[str, DeviceBytes] = field(default_factory=dict)
    worst: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    tried: tuple[Mapping[int, float], ...] = ()
    around: float = 0.0
    crowded: int = 0
    scratch: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    in_flight: int = 0
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    file: Path | None = None

    @cached_property
    def side_by_side(self) -> bool:
        """Some partitions can run at the same time."""
        return overlaps(self.parts, self.machine)

    @property
    def kept(self) -> bool:
        """One action after the other, every device keeps its limit, as predicted."""
        return all(self.predicted[name].peak <= limit for name, limit in self.limits.items())

    @cached_property
    def makespan(self) -> float:
        """Predicted seconds of a run, devices side by side where they can be: of what its actions
        took in the runs of a trial, if there was one. Each run is simulated, and the median taken:
        actions that are now quick, now slow make others wait longer than their medians tell."""
        return self.around + statistics.median(map(self.makespan_of, self.tried or (self.seconds,)))

    @property
    def expected(self) -> Mapping[int, float]:
        """Seconds per action: the median of the runs of a trial, else of the costs of ops."""
        if not self.tried:
            return self.seconds
        return {i: statistics.median(run.get(i, 0.0) for run in self.tried) for i in self.tried[0]}

    @property
    def makespan_of_costs(self) -> float:
        """The same of the costs of ops alone."""
        return self.makespan_of(self.seconds)

    def makespan_of(self, seconds: Mapping[int, float]) -> float:
        """When the last action ends, given the seconds of each."""
        times = finish_times(
            self.parts, self.machine, seconds, self.waits, overlap=self.side_by_side
        )
        return max((end for _, end in times), default=0.0)

    def state_and_rest(
        self, feeds: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Copies of the inputs that a run updates in place, and the other inputs."""
        state = {old: np.array(feeds[old]) for old, _ in self.parts.pairs}
        return state, {name: value for name, value in feeds.items() if name not in state}

    def executor(
        self,
        state: Mapping[str, np.ndarray] | None = None,
        overlap: bool | None = None,
        kind: type[Executor] = Executor,
        only: Sequence[int] | None = None,
    ) -> Executor:
        """Ready to run.

        Args:
            only: see :class:`Opening`.

        Raises:
            MissingComponentError, ModelError, UsageError: see :class:`Executor`.
        """
        return kind(
            self.parts, self.machine, Opening(self.folder, file=self.file, only=only),
            Kept(self.waits, self.limits), state=state, overlap=overlap,
        )  # fmt: skip

    def rounds(self, in_flight: int) -> Rounds:
        """What each device of a pipeline does in a round, with so many samples inside."""
        return rounds_of(self.parts, self.machine, self.expected, in_flight)

    def stages_in_rounds(self) -> dict[str, Any]:
        """What the threads of the pipeline that it was planned as do, as plain data: stages in the
        order in which a sample passes them, and how many samples one is behind the first of its
        device; the order in which a device does its own; samples that may wait behind each."""
        rounds = self.rounds(self.in_flight)
        stages = pipeline_stages(self.parts, self.machine, self.replicas)
        rows = [
            {"devices": list(stage.devices), "actions": list(stage.actions), "behind": lag}
            for stage, lag in zip(stages, rounds.lags, strict=True)
        ]
        return {
            "in_flight": self.in_flight, "stages": rows, "order": list(rounds.order),
            "queues": list(rounds.queues), "period_seconds": rounds.period,
        }  # fmt: skip

    def pipeline(self, in_flight: int | None = None, log: list[Event] | None = None) -> Pipeline:
        """Ready to take one sample after the other, devices working on different ones.

        Args:
            in_flight: samples that are inside at most; what it was planned for when None.
            log: see :class:`Pipeline`.

        Raises:
            MissingComponentError, ModelError, UnsupportedError, UsageError: see :class:`Executor`
                and :class:`Pipeline`.
        """
        inside = self.in_flight if in_flight is None else in_flight
        pipeline_stages(self.parts, self.machine, self.replicas)  # refused before sessions are made
        flow = Flow(inside, self.replicas, self.rounds(inside) if inside > 0 else None)

        def another(actions: Sequence[int]) -> Executor:
            return self.executor(overlap=False, only=actions)

        return Pipeline(self.executor(overlap=False), flow, log, another)

    def model(self, facts: Mapping[str, Any] | None = None) -> onnx.ModelProto:
        """One valid model with all of this in its metadata."""
        made = annotated(self.parts)
        about = {
            "format": FORMAT,
            "machine": machine_toml(self.machine),
            "limits": dict(self.limits),
            "counted": asdict(self.parts.counted),
            "cuts": list(self.parts.cuts),
            "waits": [list(pair) for pair in self.waits],
            **({"in_flight": self.in_flight} if self.in_flight else {}),
            **({"replicas": dict(self.replicas)} if self.replicas else {}),
            "seconds": {str(index): float(f"{took:.4g}") for index, took in self.expected.items()},
            "scratch": {
                device: {op: size for op, size in row.items() if size}
                for device, row in self.scratch.items()
            },
            **summary(self.parts),
        }
        set_metadata(
            made,
            {
                "plan": pack(self.plan),
                "options": json.dumps(TUNED.to_json()),
                "devices": json.dumps(about),
                **({"facts": json.dumps(dict(facts))} if facts else {}),
            },
        )
        return made


def deploy(
    graph: Graph,
    plan: Plan,
    machine: Machine,
    costs: Mapping[str, CostTable],
    terms: Terms | None = None,
    *,
    insist: bool = True,
) -> Deployment:
    """Cut a plan to partitions that keep the limits, and predict bytes and seconds.

    Args:
        graph: the graph the plan belongs to.
        costs: per device.
        insist: a limit that is not kept one by one is an error; else see ``predicted``.

    Raises:
        UsageError: the plan does not fit the graph or the machine.
        OverBudgetError: a device does not keep its limit.
    """
    terms = terms or Terms()
    plan = settled(graph, plan, terms.pairs)
    _check_machine(plan, machine)
    plan = plan.with_provenance(graph_hash=graph_hash(graph))
    found = list[Deployment]()
    for most in EARLY:
        early = inputs_first(graph, plan, most)
        if early is not plan:
            found.append(_whole(graph, early, machine, costs, terms, insist=False))
    kept = [made for made in found if made.kept]
    least = min(kept, key=lambda made: len(made.parts.partitions), default=None)
    if least is not None and len(least.parts.partitions) == 1:
        return least
    made = _whole(graph, plan, machine, costs, terms, insist=insist and least is None)
    if least is None or (made.kept and made.makespan <= least.makespan):
        return made
    return least


def _whole(
    graph: Graph,
    plan: Plan,
    machine: Machine,
    costs: Mapping[str, CostTable],
    terms: Terms,
    *,
    insist: bool,
) -> Deployment:
    """A settled plan, cut in the better of two ways; see :func:`deploy`."""
    parts = partition(follow(graph, plan), pairs=terms.pairs, counted=terms.counted)
    scratch = {name: table.scratch for name, table in costs.items()}
    limits = dict(terms.limits)
    bare = Deployment(graph, plan, machine, parts, limits, (), terms.folder, scratch=scratch)
    made = _cut(bare, costs, terms, insist=insist, eager=False)
    several = len({part.device for part in made.parts.partitions}) > 1
    if several and not any(device.opaque for device in machine.devices):
        # Partitions of the processor are cheap: more of them may let devices wait less.
        other = _cut(bare, costs, terms, insist=insist, eager=True)
        if (not other.kept, other.makespan) < (not made.kept, CLEARLY * made.makespan):
            return other
    return made


def _cut(
    bare: Deployment, costs: Mapping[str, CostTable], terms: Terms, *, insist: bool, eager: bool
) -> Deployment:
    """One way to cut a plan, with all that is predicted of it; see :func:`deploy`."""
    machine, scratch, limits = bare.machine, bare.scratch, bare.limits
    parts = partition_within(bare.parts.followed, machine, scratch, terms, eager=eager)
    inside = insides(parts, machine, scratch, terms.known, terms.folder)
    made = replace(
        bare,
        parts=parts,
        predicted=device_bytes(parts, machine, inside),
        seconds=action_seconds(parts, machine, costs),
    )
    waits = waits_within(parts, machine, inside, limits) if insist or made.kept else []
    worst = worst_case(parts, machine, inside, waits)
    return replace(made, waits=tuple(waits), worst=worst)


def deploy_pipeline(
    graph: Graph,
    plan: Plan,
    machine: Machine,
    costs: Mapping[str, CostTable],
    terms: Terms,
    flow: Flow,
) -> Deployment:
    """Cut a plan to stages of devices, for the samples inside; see ``worst`` for what each
    device then holds. A stage whose device is over its limit is cut to several partitions, which
    let its inputs go.

    Args:
        graph: the graph the plan belongs to.
        costs: per device.

    Raises:
        UsageError: the plan does not fit the graph or the machine.
        UnsupportedError: samples come back to devices that take them in turn.
    """
    plan = settled(graph, plan, terms.pairs)
    _check_machine(plan, machine)
    plan = plan.with_provenance(graph_hash=graph_hash(graph))
    scratch = {name: table.scratch for name, table in costs.items()}
    followed = follow(graph, plan)

    def cut(parts: Partitioned) -> Deployment:
        inside = insides(parts, machine, scratch, terms.known, terms.folder)
        seconds = action_seconds(parts, machine, costs)
        rounds = rounds_of(parts, machine, seconds, flow.in_flight)
        return Deployment(
            graph, plan, machine, parts, dict(terms.limits), (), terms.folder,
            predicted=device_bytes(parts, machine, inside),
            worst=places(parts, machine, inside, rounds, flow.replicas).most(flow.in_flight),
            seconds=seconds,
            scratch=scratch, in_flight=flow.in_flight, replicas=flow.replicas,
        )  # fmt: skip

    made = cut(partition(followed, pairs=terms.pairs, counted=terms.counted))
    over = {name for name, limit in terms.limits.items() if made.worst[name] > limit}
    if not over:
        return made
    left = {  # for the sample a stage works on
        name: terms.limits[name] - made.worst[name] + made.predicted[name].peak
        for name in over.intersection(part.device for part in made.parts.partitions)
    }
    other = cut(partition_within(followed, machine, scratch, replace(terms, limits=left)))
    return min(made, other, key=lambda one: max(one.worst[n] - terms.limits[n] for n in over))


def _check_machine(plan: Plan, machine: Machine) -> None:
    for step in plan.steps:
        if hasattr(step, "device"):
            machine.device(step.device)
        else:
            machine.link(step.source, step.target)


def read_deployment(path: str | os.PathLike[str], *, mapped: bool = False) -> Deployment:
    """What :meth:`Deployment.model` wrote.

    Args:
        mapped: it will be run, by sessions of the processor, which map big weights from the file
            instead of getting copies of them.

    Raises:
        UsageError: the model carries no plan over devices, or a damaged one.
        ModelError: the file cannot be read, or was changed after it was planned.
    """
    model, file = _opened(existing(path), mapped)
    facts = metadata(model)
    if "devices" not in facts or "plan" not in facts:
        raise UsageError(
            f"{path} carries no plan over several devices",
            hint="make one with: onnxremat optimize IN OUT --devices machine.toml",
        )
    try:
        about = plain_json.loads(facts["devices"])
        if about["format"] != FORMAT:
            raise UsageError(
                f"the partitions of {path} are of format {about['format']}",
                why=f"this onnxremat reads format {FORMAT}",
                hint="plan again",
            )
        machine = parse_machine(about["machine"])
        limits = read_sizes(about["limits"])
        counted = read_counted(about.get("counted", {}))  # of a version that counted less
        cuts = [str(name) for name in about["cuts"]]
        scratch = {str(name): read_sizes(row) for name, row in about.get("scratch", {}).items()}
        in_flight = whole(about.get("in_flight", 0))
        replicas = {str(d): tuple(map(str, row)) for d, row in about.get("replicas", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    if file is not None and any(device.provider != CPU for device in machine.devices):
        return read_deployment(path)  # other providers are given weights with their model
    plan = unpack(facts["plan"])
    folder = Path(path).parent
    graph = build_graph(restored(model), folder)
    if graph_hash(graph) != plan.provenance.graph_hash:
        raise ModelError(
            f"{path} was changed after it was planned",
            why="its ops or sizes are not those of the plan it carries",
            hint="plan again",
        )
    pairs = training_pairs(model)
    parts = partition(follow(graph, plan), pairs=pairs, cuts=cuts, counted=counted)
    try:
        waits = read_waits(about["waits"], len(parts.actions))
        seconds = read_seconds(about.get("seconds", {}), len(parts.actions))
        if unknown := set(cuts).difference(op.name for op in parts.graph.ops):
            raise ValueError(f"it is cut before '{min(unknown)}', which it does not run")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    for device in (*limits, *replicas, *(name for row in replicas.values() for name in row)):
        machine.device(device)
    return Deployment(
        graph, plan, machine, parts, limits, waits, folder, seconds=seconds, scratch=scratch,
        in_flight=in_flight, replicas=replicas, file=file,
    )  # fmt: skip


def _damaged(path: str | os.PathLike[str], error: Exception) -> UsageError:
    why = plain_json.why_damaged(error)
    return UsageError(f"the device plan in {path} is damaged", why=why, hint="plan again")


def _opened(path: Path, mapped: bool) -> tuple[onnx.ModelProto, Path | None]:
    """A model, and its file where that keeps the big weights: sessions map them from there."""
    if mapped and can_own() and not missing() and not path.is_symlink():
        light = read_light(path)
        if light.weights and not light.elsewhere:
            return onnx.ModelProto.FromString(light.content), path.resolve()
    return read_model(path), None


def training_pairs(model: onnx.ModelProto) -> tuple[tuple[str, str], ...]:
    """Inputs and outputs of a training step that a trainer binds to one buffer; none otherwise."""
    try:
        return tuple((v.input, v.output) for v in training_of(model).variables)
    except ModelError:
        return ()
