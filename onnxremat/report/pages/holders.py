"""Who made the bytes held at a step, and who still reads them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from onnxremat.graph.ir import Graph
from onnxremat.report.pages.composition import Kind, kinds_of
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.simulate import Rules, Timeline, assign_buffers


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for one value after the other: what takes over in place, and views, share it.

    Attributes:
        first, last: steps between which it is held, both included.
        written: (step, tensor) of every value in it, in order.
        read: (step, tensor) of every reading of one, by ops that compute.
    """

    bytes: int
    kind: Kind
    first: int
    last: int
    written: tuple[tuple[int, str], ...]
    read: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """A value held at a step.

    Attributes:
        shape: None where unknown.
        producer: the op that made it.
        readers: ops that read it, or what shares its memory, at this step or later; none for what
            is held for another reason (a graph output).
    """

    tensor: str
    bytes: int
    shape: tuple[int, ...] | None
    kind: Kind
    producer: str
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Holders:
    """All buffers of a run."""

    graph: Graph
    timeline: Timeline
    buffers: tuple[Buffer, ...]

    @classmethod
    def of(cls, graph: Graph, timeline: Timeline, rules: Rules | None = None) -> Holders:
        """The buffers of a timeline that :func:`simulate` made of ``graph`` by these rules."""
        home, _, _ = assign_buffers(graph, rules or Rules())
        written: dict[str, list[tuple[int, str]]] = {}
        read: dict[str, list[tuple[int, str]]] = {}
        for step, op in enumerate(graph.ops):
            for name in () if is_added(op.name) else op.reads:
                read.setdefault(home[name], []).append((step, name))
            for name in op.writes:
                written.setdefault(home[name], []).append((step, name))
        kinds = kinds_of(graph, timeline)
        buffers = tuple(
            Buffer(size, kind, first, last, tuple(written[name]), tuple(read.get(name, ())))
            for (name, first, last, size), kind in zip(timeline.buffers, kinds, strict=True)
        )
        return cls(graph, timeline, buffers)

    def at(self, step: int, count: int) -> list[Holder]:
        """The largest values held at a step, largest first; not the few bytes of gates and pins."""
        alive = [
            buffer
            for buffer in self.buffers
            if buffer.first <= step <= buffer.last and not self._added(buffer)
        ]
        alive.sort(key=lambda buffer: (-buffer.bytes, buffer.first))
        return [self._holder(buffer, step) for buffer in alive[:count]]

    def _added(self, buffer: Buffer) -> bool:
        return is_added(self.graph.ops[buffer.written[0][0]].name)

    def _holder(self, buffer: Buffer, step: int) -> Holder:
        ops = self.graph.ops
        place = bisect_right(buffer.written, (step, chr(0x10FFFF))) - 1
        made, tensor = buffer.written[place]
        begin = step + (made == step)  # what it was made from in place has been read
        later = dict.fromkeys(ops[at].name for at, _ in buffer.read if at >= begin)
        shape = self.graph.tensors[tensor].shape
        return Holder(tensor, buffer.bytes, shape, buffer.kind, ops[made].name, tuple(later))
