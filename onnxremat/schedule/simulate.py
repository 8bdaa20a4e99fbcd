"""The one judge: bytes and seconds of a graph run in its listed order, as onnxruntime does it.

The rules are those of onnxruntime's allocation planner (``allocation_planner.cc``), found by
measurement and kept true by ``tests/ort/test_contract.py``:

1. outputs of an op are allocated before it runs; a buffer is given back right after its last
   reader;
2. alias ops (Reshape and the like) share their input's buffer, except into a graph output;
3. in-place ops take over a dying input's buffer of the same shape and element size;
4. with ``reuse`` a dead buffer is held for the next value of the same shape;
5. a named output that nobody reads takes no dead buffer and stays to the end of the run;
6. graph outputs are buffers of their own and stay to the end; inputs belong to the caller.

Bytes are those asked of the allocator; the arena rounds each request up to 256, which is part of
what it holds on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from onnxremat.graph.ir import Graph, Op, Role
from onnxremat.graph.traits import is_alias, takeover_inputs

Alike: TypeAlias = tuple[tuple[int, ...] | None, int]  # shape and bytes


@dataclass(frozen=True)
class Rules:
    """Which of the runtime's rules are on.

    Attributes:
        reuse: hold dead buffers for values of the same shape (onnxruntime's default; off in the
            sessions plans are made for).
    """

    reuse: bool = False


@dataclass(frozen=True)
class Timeline:
    """Bytes and seconds of a run, one entry per executed op.

    Attributes:
        ops: op names in executed order.
        live: bytes in use while each op runs: inputs, outputs and held buffers; weights and
            scratch excluded.
        scratch: bytes each op takes and gives back inside.
        seconds: of each op.
        weight_bytes: resident throughout.
        buffers: (tensor, first step, last step, bytes) of every buffer.
    """

    ops: tuple[str, ...]
    live: tuple[int, ...]
    scratch: tuple[int, ...]
    seconds: tuple[float, ...]
    weight_bytes: int
    buffers: tuple[tuple[str, int, int, int], ...] = field(repr=False)

    @property
    def peak(self) -> int:
        """Weights + live values + scratch at the worst step, in bytes."""
        return self.weight_bytes + self.live_peak

    @property
    def live_peak(self) -> int:
        """Live values + scratch at the worst step, in bytes."""
        return max((a + b for a, b in zip(self.live, self.scratch, strict=True)), default=0)

    @property
    def peak_step(self) -> int:
        """Index of the worst step."""
        totals = [a + b for a, b in zip(self.live, self.scratch, strict=True)]
        return max(range(len(totals)), key=totals.__getitem__, default=0)

    @property
    def total_seconds(self) -> float:
        """Compute time of the run."""
        return sum(self.seconds)


def simulate(
    graph: Graph,
    rules: Rules | None = None,
    *,
    scratch: Mapping[str, int] | None = None,
    seconds: Mapping[str, float] | None = None,
    weight_bytes: int | None = None,
) -> Timeline:
    """Run ``graph`` in its listed order on paper.

    Args:
        scratch: bytes per op name; a recomputation takes its origin's.
        seconds: per op name, likewise.
        weight_bytes: resident bytes of the weights; the initializers' own bytes when None.
    """
    rules = rules or Rules()
    _, opened, closed = assign_buffers(graph, rules)
    steps = len(graph.ops)
    change = [0] * (steps + 1)
    buffers = []
    for name, start in opened.items():
        size = graph.tensors[name].bytes
        end = closed.get(name, steps - 1)
        buffers.append((name, start, end, size))
        change[start] += size
        change[end + 1] -= size
    live, total = [], 0
    for step in range(steps):
        total += change[step]
        live.append(total)
    return Timeline(
        tuple(op.name for op in graph.ops),
        tuple(live),
        tuple(_per_op(op, scratch) for op in graph.ops),
        tuple(_per_op(op, seconds) for op in graph.ops),
        graph.weight_bytes if weight_bytes is None else weight_bytes,
        tuple(buffers),
    )


def _per_op(op: Op, table: Mapping[str, Any] | None) -> Any:
    if table is None:
        return 0
    return table.get(op.name) or table.get(op.origin) or 0


def assign_buffers(
    graph: Graph, rules: Rules
) -> tuple[dict[str, str], dict[str, int], dict[str, int]]:
    """Which buffer every value lives in, and when buffers open and close.

    Returns:
        value to the name of its buffer; buffer to the step that allocates it; buffer to its last
        step (absent when it stays to the end).
    """
    outputs = set(graph.outputs)
    uses = _use_counts(graph)
    buffer_of = {name: name for name, t in graph.tensors.items() if t.role is Role.INPUT}
    buffer_of |= {name: name for name, t in graph.tensors.items() if t.role is Role.WEIGHT}
    opened: dict[str, int] = {}
    last_read: dict[str, int] = {}
    free: dict[Alike, list[str]] = {}  # dead buffers of a size and shape, most recent last
    for step, op in enumerate(graph.ops):
        for position, name in enumerate(op.outputs):
            if not name:
                continue
            home = None
            if name not in outputs:
                home = _home(graph, op, position, buffer_of, uses)
                if home is None and rules.reuse and uses[name] > 1:  # somebody reads it
                    home = _same_shape(graph, name, free)
            if home is None:
                buffer_of[name] = name
                opened[name] = step
            else:
                buffer_of[name] = home
                uses[home] += uses[name]
        for name in op.reads:
            last_read[buffer_of[name]] = step
        for name in _mentions(op):
            home = buffer_of[name]
            uses[home] -= 1
            if uses[home] == 0:
                free.setdefault(_alike(graph, home), []).append(home)
    closed = {
        home: step for home, step in last_read.items() if home in opened and home not in outputs
    }
    return buffer_of, opened, closed


def _mentions(op: Op) -> list[str]:
    return [name for name in (*op.inputs, *op.captures, *op.outputs) if name]


def _use_counts(graph: Graph) -> Counter[str]:
    """Mentions of each value; inputs, weights and graph outputs have one more, so never die."""
    uses: Counter[str] = Counter()
    for op in graph.ops:
        uses.update(_mentions(op))
    for name, tensor in graph.tensors.items():
        if tensor.role in (Role.INPUT, Role.WEIGHT):
            uses[name] += 1
    uses.update(graph.outputs)
    return uses


def _home(
    graph: Graph, op: Op, position: int, buffer_of: Mapping[str, str], uses: Mapping[str, int]
) -> str | None:
    """The existing buffer an output moves into by alias or in place, if any."""
    if position != 0:
        return None
    if is_alias(op):
        return buffer_of[op.inputs[0]]
    out = graph.tensors[op.outputs[0]]
    for index in takeover_inputs(op):
        name = op.inputs[index]
        same = name and out.shape is not None and _alike(graph, name) == _alike(graph, out.name)
        if same and uses[buffer_of[name]] == 1:
            return buffer_of[name]
    return None


def _alike(graph: Graph, name: str) -> Alike:
    """Of two values with the same one may live in the other's buffer, where the shape is known."""
    tensor = graph.tensors[name]
    return tensor.shape, tensor.bytes


def _same_shape(graph: Graph, name: str, free: Mapping[Alike, list[str]]) -> str | None:
    if not graph.tensors[name].shape:  # unknown or scalar: never shared
        return None
    found = free.get(_alike(graph, name))
    return found.pop() if found else None
