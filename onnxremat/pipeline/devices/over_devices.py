"""Partitions over several devices: a plan cut and ready to run, and its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import onnx

from onnxremat.cost.table import CostTable
from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.execute.deployment import Deployment
from onnxremat.execute.metered import Recorded, record
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.profile import Feeds, owned, run_session
from onnxremat.ort.providers import beside_gpu
from onnxremat.ort.session import TUNED, open_session, session_options
from onnxremat.pipeline.artifact import Arrays, Check, Kind, Verified
from onnxremat.pipeline.bench import Contender, beside_devices
from onnxremat.pipeline.prepared import Prepared
from onnxremat.planner.solution import Solution
from onnxremat.rewrite.partition import Partition, part_graph
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.plan import Plan
from onnxremat.session.compare import TOLERANCE, Difference, compare
from onnxremat.units import format_bytes

# How far a provider's float32 results may be from the processor's, relative to the largest value
# of an output. The processor itself, running the same kernels, gives the same bits.
BFLOAT16 = 5e-2  # of products in bfloat16, which were asked for
FLOAT32 = {PROVIDERS["cpu"]: 0.0, PROVIDERS["cuda"]: 5e-3, PROVIDERS["openvino"]: 5e-3}
OTHERS = 1e-2
COPIES = ("MemcpyFromHost", "MemcpyToHost")  # onnxruntime's own, within a session


@dataclass(frozen=True)
class OverDevices:
    """A plan over devices, cut to partitions: an
    :class:`~onnxremat.pipeline.artifact.Artifact`.

    Attributes:
        solution: what the planner said, None where it was read from a file.
        tables: the costs it was planned with, per device; likewise empty.
        alone: seconds of the best device that can run all ops, by the same costs; None without.
    """

    made: Deployment
    solution: Solution | None = None
    tables: Mapping[str, CostTable] = field(default_factory=dict)
    alone: float | None = None

    @property
    def plan(self) -> Plan:
        return self.made.plan

    @property
    def seconds(self) -> float:
        """Of a run, devices side by side where they can be."""
        return self.made.makespan

    @property
    def beside(self) -> int:
        """Nothing: limits of devices are their whole budgets."""
        return 0

    @property
    def times(self) -> Mapping[str, float]:
        """Seconds per op, on the device where it is quickest."""
        found: dict[str, float] = {}
        for table in self.tables.values():
            for name, took in table.seconds.items():
                found[name] = min(took, found.get(name, took))
        return found

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that run ops."""
        used = {part.device for part in self.made.parts.partitions}
        return tuple(name for name in self.made.machine.names if name in used)

    def predict(self) -> Mapping[str, int]:
        return {name: found.peak for name, found in self.made.predicted.items()}

    def measure(self, feeds: Feeds) -> DevicesRun:
        return DevicesRun(self.made, feeds)

    def verified(self, prepared: Prepared, run: Any) -> Verified:
        """Outputs against one session of the same graph, order, placement."""
        assert isinstance(run, DevicesRun)
        worst = max(run.differences.values(), key=lambda one: one.rank)
        return Verified(worst, run.checks)

    def contenders(self, prepared: Prepared) -> list[Contender]:
        return beside_devices(self.made, prepared.whole or prepared.graph)

    def allows(self, difference: Difference) -> bool:
        """What the providers in use may differ by."""
        allowed = max(tolerance(self.made), difference.tolerance)
        return difference.bit_equal or difference.worst <= allowed

    def model(self, facts: Mapping[str, Any] | None = None) -> onnx.ModelProto:
        return self.made.model(facts)

    def planned(self) -> dict[str, Any]:
        """Figures of the plan as plain data; times are seconds."""
        made, found = self.made, self.solution
        assert found is not None
        return {
            "objective": found.objective,
            "seconds_planned": found.time,
            "makespan_planned": found.makespan,
            "makespan_of_costs": made.makespan_of_costs,
            "makespan_predicted": made.makespan,
            "tried": bool(made.tried),
            "bound_seconds": found.certificate.bound,
            "gap": found.gap,
            "best_single_device_seconds": self.alone,
        }

    def told(self, **facts: Any) -> Self:
        return replace(self, made=replace(self.made, plan=self.plan.with_provenance(**facts)))


@dataclass(frozen=True)
class DevicesRun:
    """A model run over devices: under the meter, and in every way it can be run."""

    made: Deployment
    feeds: Mapping[str, np.ndarray]

    @cached_property
    def recorded(self) -> Recorded:
        """The run under the meter; state is updated in place, as a trainer does it."""
        made = self.made
        state, given = made.state_and_rest(self.feeds)
        return record(made.parts, made.machine, given, folder=made.folder, state=state)

    @property
    def peaks(self) -> Mapping[str, int]:
        return {name: found.peak for name, found in self.recorded.bytes.items()}

    @property
    def unknowable(self) -> frozenset[str]:
        """What a provider that compiles its parts holds inside is not ours to know beforehand."""
        return frozenset(d.name for d in self.made.machine.devices if d.opaque)

    @property
    def in_order(self) -> bool:
        """Whether is looked at where each partition is placed (``checks``)."""
        return True

    @cached_property
    def outputs(self) -> Mapping[str, Arrays]:
        found = {}
        for overlap in (False, True) if self.made.side_by_side else (False,):
            with self.made.executor(overlap=overlap) as executor:
                found["side by side" if overlap else "one by one"] = executor.run(self.feeds)
        return found

    def shared(self) -> Difference | None:
        """A run in which new values are written over old ones, as a trainer has them, from one in
        which they are not; None of a model that updates nothing."""
        made, how = self.made, "side by side" if self.made.side_by_side else "one by one"
        if not made.parts.pairs:
            return None
        state, given = made.state_and_rest(self.feeds)
        with made.executor(state, made.side_by_side) as executor:
            found = dict(executor.run(given))
            executor.pull_state()
        found |= {new: state[old] for old, new in made.parts.pairs}
        return compare(found, self.outputs[how])

    @cached_property
    def differences(self) -> Mapping[str, Difference]:
        """Of each way from one session of the same graph."""
        whole = run_whole(self.made.graph, self.feeds, self.made)
        return {how: compare(outputs, whole) for how, outputs in self.outputs.items()}

    @property
    def checks(self) -> tuple[Check, ...]:
        same = [output_check(self.made, one, how) for how, one in self.differences.items()]
        return (*same, _order(self.made, self.recorded), _placement(self.made, self.recorded))

    @property
    def words(self) -> tuple[str, ...]:
        """Bytes per device, and how they were counted."""
        rows = self.recorded.bytes.items()
        return tuple(f"{name}: peak {format_bytes(row.peak)}, {row.how}" for name, row in rows)

    def figures(self) -> dict[str, Any]:
        return {"peak_measured_bytes": dict(self.peaks)}


def run_whole(
    graph: Graph, feeds: Mapping[str, np.ndarray], made: Deployment
) -> dict[str, np.ndarray]:
    """Outputs of one session on the processor that runs the graph as it is listed, with as many
    threads as the processor's partitions have."""
    options = session_options(replace(TUNED, threads=min(_threads(made), default=1)))
    session = open_session(to_model(graph), options, made.folder)
    return owned(graph.outputs, run_session(session, dict(feeds)))


def tolerance(made: Deployment) -> float:
    """What the providers in use may differ by, in float32. Another number of threads may sum in
    another order."""
    used = {made.machine.device(part.device) for part in made.parts.partitions}
    several = TOLERANCE["float32"] if len(_threads(made)) > 1 else 0.0
    return max(several, *map(_differs, used))


def _differs(device: Device) -> float:
    return BFLOAT16 if device.precision == "bf16" else FLOAT32.get(device.provider, OTHERS)


def _threads(made: Deployment) -> set[int]:
    devices = [made.machine.device(part.device) for part in made.parts.partitions]
    return {device.threads for device in devices if not device.opaque}


def output_check(made: Deployment, one: Difference, how: str) -> Check:
    """Whether outputs are one session's, as near as the providers in use allow."""
    allowed = max(tolerance(made), TOLERANCE["float32"]) if tolerance(made) else 0.0
    text = "bit-equal to one session"
    if not one.bit_equal:
        text = f"'{one.output}' within {one.worst:.1e} of the largest value (allowed {allowed:.0e})"
    ok = one.bit_equal or (allowed > 0 and one.worst <= allowed)
    return Check(Kind.OUTPUTS, f"same outputs, {how}", ok, text)


def _order(made: Deployment, found: Recorded) -> Check:
    """Executed order inside the partitions whose order is onnxruntime's to keep.

    Beside a GPU the processor counts sizes in a stream of its own, whose order says nothing of the
    GPU's bytes.
    """
    wrong, kernels = [], 0
    for index, part in enumerate(made.parts.actions):
        if not isinstance(part, Partition) or made.machine.device(part.device).opaque:
            continue
        ran = [k for k in found.profiles[index].kernels
               if k.op_type not in COPIES and not is_added(k.name)]  # fmt: skip
        kernels += len(ran)
        planned = [op.name for op in part.graph.ops]
        here = [k.name for k in ran if k.provider == made.machine.device(part.device).provider]
        among = set(here)
        wanted = [name for name in planned if name in among]
        first = next((pair for pair in zip(here, wanted, strict=False) if pair[0] != pair[1]), None)
        if first:
            wrong.append(f"{part.name} ('{first[0]}' where '{first[1]}' was planned)")
        elif sorted(planned) != sorted(k.name for k in ran):
            wrong.append(f"{part.name} ({len(ran)} kernels, {len(planned)} ops)")
    text = f"{kernels} kernels as planned" if not wrong else f"differs in {', '.join(wrong[:5])}"
    return Check(Kind.ORDER, "executed order", not wrong, text)


def _placement(made: Deployment, found: Recorded) -> Check:
    """Every op ran on the provider of its device, by onnxruntime's record and by the profile."""
    strays, count = [], 0
    for index, part in enumerate(made.parts.actions):
        if not isinstance(part, Partition):
            continue
        device = made.machine.device(part.device)
        taken = found.taken[index]
        count += len(part.graph.ops)
        graph = part_graph(part, device)
        ours = {op.name for op in graph.ops
                if not is_added(op.name) and not beside_gpu(graph, op, device)}  # fmt: skip
        strays += [
            f"{name} ({provider})"
            for name, provider in taken.items()
            if name in ours and provider != device.provider
        ]
        ran = {kernel.provider for kernel in found.profiles[index].kernels} - {"", device.provider}
        strays += [f"{part.name} ran on {provider}" for provider in ran if not taken]
    text = f"{count} ops on the providers of their devices"
    if strays:
        text = "not: " + ", ".join(strays[:5])
    return Check(Kind.PLACEMENT, "placement", not strays, text)
