"""What a partition holds while it runs, beside what others left on its device: predicted, counted,
or by how much the process grows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from onnxremat.device.machine import Device, Machine
from onnxremat.execute.pools import pooled, ready_made
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.memory.taken import heap_bytes
from onnxremat.ort.binding import wrap
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.profile import Profile
from onnxremat.ort.providers import missing, open_on, tiny_model
from onnxremat.ort.session import TUNED
from onnxremat.ort.values import Stage
from onnxremat.ort.weights import held_by
from onnxremat.rewrite.partition import Counted, Partition, Partitioned, part_graph
from onnxremat.schedule.simulate import Rules, Timeline, simulate
from onnxremat.schedule.updates import written_over
from onnxremat.session.measure import executed
from onnxremat.session.process import further_bytes


@dataclass(frozen=True)
class Inside:
    """What a partition holds beside what others left on the device.

    Attributes:
        weights: bytes of its session's weights.
        session: bytes that onnxruntime keeps of its nodes, 0 where they are not counted or are
            among the weights, as of providers that allocate on their own.
        ops, held: bytes of live values and scratch while each of its ops runs.
        how: ``predicted``, ``counted`` (by the allocator) or ``heap of the process`` (its growth,
            for providers that allocate on their own).
    """

    weights: int
    ops: tuple[str, ...]
    held: tuple[int, ...]
    how: str
    session: int = 0

    @property
    def peak(self) -> int:
        """Bytes at the worst op, weights excluded."""
        return max(self.held, default=0)


# By device, ops, results, and those of them that get their buffer before.
Known = dict[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], Inside]


def structures(part: Partition, device: Device, counted: Counted) -> int:
    """Bytes that are kept of the session of a partition and its nodes; 0 where they are not
    counted."""
    return further_bytes(part_graph(part, device)) if counted.sessions else 0


def predicted_inside(
    part: Partition,
    device: Device,
    scratch: Mapping[str, int],
    updated: Collection[str] = (),
    pool: Collection[str] = (),
) -> Inside:
    """What a partition will hold.

    Args:
        scratch: bytes per op.
        updated: outputs that are written into state.
        pool: values that get their buffer before the partition that makes them starts.
    """
    early = ready_made(part, pool, updated)
    graph, line = simulated(part, device, scratch, {*updated, *early})
    there = sum(part.graph.tensors[name].bytes for name in early)
    held = tuple(a + b + there for a, b in zip(line.live, line.scratch, strict=True))
    return Inside(held_by(graph), line.ops, held, "predicted")


def simulated(
    part: Partition, device: Device, scratch: Mapping[str, int], given: Collection[str]
) -> tuple[Graph, Timeline]:
    """A run of a partition on paper: its graph in the order in which it runs, and the bytes.

    Args:
        scratch: bytes per op.
        given: outputs that are written into buffers that are there before.
    """
    graph = executed(written_over(part_graph(part, device), set(given)), TUNED)
    return graph, simulate(graph, Rules(), scratch=scratch)


def measured_inside(
    part: Partition, found: Profile, updated: Collection[str] = (), pool: Collection[str] = ()
) -> Inside:
    """What a partition held, from its session's profile; see :func:`predicted_inside`."""
    weights = max(held_by(part.graph), found.weight_bytes)
    # The session was given these, so that its own counters miss them.
    early = ready_made(part, pool, updated)
    there = sum(part.graph.tensors[name].bytes for name in early)
    held = tuple(kernel.live + kernel.scratch + there for kernel in found.kernels)
    return Inside(weights, tuple(k.name for k in found.kernels), held, "counted")


def opaque_inside(part: Partition, device: Device, folder: Path | None) -> Inside:
    """What a partition takes whose provider allocates on its own: by how much the process grows
    when it is opened and run, results aside. Everything of it stays: weights in the provider's own
    form, the model as onnxruntime and the provider keep it, and the buffers it computes in."""
    least = held_by(part.graph)
    results = sum(part.graph.tensors[name].bytes for name in part.graph.outputs)
    _loaded(device)
    feeds = {name: wrap(array) for name, array in seeded_feeds(part.graph).items()}
    before = heap_bytes()
    stage = Stage(
        open_on(device, to_model(part_graph(part, device)), TUNED, folder),
        device,
        part.graph.outputs,
        {},
    )
    for name, value in feeds.items():
        stage.bind(name, value)
    values = stage.run([])
    grown = heap_bytes() - before - results if before else 0
    values.clear()
    return Inside(max(least, grown), (part.name,), (results,), "heap of the process")


_open: dict[Device, object] = {}  # a session per provider, so that its library stays loaded


def _loaded(device: Device) -> None:
    """The library of a provider is loaded: it belongs to no partition."""
    if device not in _open:
        _open[device] = open_on(device, tiny_model(), TUNED)


def insides(
    parts: Partitioned,
    machine: Machine,
    scratch: Mapping[str, Mapping[str, int]],
    known: Known | None = None,
    folder: Path | None = None,
    *,
    measure: bool = True,
) -> dict[int, Inside]:
    """What each partition will hold, by action.

    Args:
        scratch: bytes per device and op.
        known: kept from call to call while only some partitions change.
        folder: where external weights are.
        measure: open and run partitions of providers that allocate on their own; else, and where
            such a provider is not here, they count as if the processor ran them.
    """
    updated = [new for _, new in parts.pairs]
    known = {} if known is None else known
    pool, counted = pooled(parts, machine), parts.counted
    found = {}
    for index, part in enumerate(parts.actions):
        if isinstance(part, Partition):
            ops = tuple(op.name for op in part.graph.ops)
            early = tuple(sorted(ready_made(part, pool, updated)))
            key = (part.device, ops, part.graph.outputs, early)
            if key not in known:
                device = machine.device(part.device)
                if measure and device.opaque and not missing(device):
                    known[key] = opaque_inside(part, device, folder)
                else:
                    row, session = scratch.get(device.name, {}), structures(part, device, counted)
                    held = predicted_inside(part, device, row, updated, pool)
                    known[key] = replace(held, session=session)
            found[index] = known[key]
    return found
