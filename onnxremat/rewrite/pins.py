"""Pins: make onnxruntime's default order the planned order.

The default order walks back from the leaves, the leaf with the highest index first. When every
leaf is a dangling ``Size`` op, and these are listed last in reverse, they are reached in planned
order, and each runs exactly those ancestors of its tensor that have not run yet. So a pin at the
end of every stretch that the walk itself runs in planned order fixes the whole order. A pin costs
0.3 us; onnxruntime removes no dangling op. Sessions that follow the listed order ignore them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.unforeseen import SHOWN, is_left, none_of
from onnxremat.rewrite.gates import PREFIX as GATE
from onnxremat.rewrite.gates import SIZE

PREFIX = "onnxremat.pin"


def add_pins(
    graph: Graph, extra: Collection[str] = (), lasting: Collection[str] | None = None
) -> Graph:
    """The graph with the fewest pins (greedily) that make its listed order the default order.

    Every graph output and every value nobody reads is pinned too: no other op may stay a leaf
    (a fused leaf would run first), and a value nobody reads would stay to the end.

    Args:
        graph: ops in planned order, without pins.
        extra: ops to pin besides, because onnxruntime moves their successors when it fuses.
        lasting: tensors that onnxruntime keeps when it fuses at load; only these are pinned, so
            that a pin never stands in the way of a fusion. All when None.
    """
    read = {name for op in graph.ops for name in op.reads}
    wanted: dict[str, int] = {}
    pinnable = [_pinnable(graph, op, lasting) for op in graph.ops]
    ends = {step for step, op in enumerate(graph.ops) if op.name in extra and pinnable[step]}
    for step in stretches(graph, ends, [bool(name) for name in pinnable]):
        if pinnable[step]:
            wanted[pinnable[step]] = step
    for step, op in enumerate(graph.ops):
        for name in op.writes:
            if name not in read and graph.tensors[name].dtype:
                wanted.setdefault(name, step)
    pins = _Pins(graph)
    for name, step in sorted(wanted.items(), key=lambda item: -item[1]):
        pins.add(name, step)
    return pins.made()


class _Pins:
    """Pins of a graph, and what those on values of half precision read in their place: none of
    their rows, since onnxruntime would run Size on a copy of all as float32."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.tensors = graph, dict(graph.tensors)
        self.pins: list[Op] = []
        self.after: dict[int, list[Op]] = {}  # what is listed after a step
        self.nowhere = ""

    def add(self, name: str, step: int) -> None:
        """A pin on what a step makes."""
        pin = f"{PREFIX}{len(self.pins)}"
        while pin in self.graph.tensors or pin in self.graph.names_inside:
            pin += "_"  # of the plan that this model, or one in its bodies, had before
        tensor = self.tensors[name]
        if not is_left(tensor) and tensor.shape:
            self.nowhere = self.nowhere or self._nowhere()
            made = none_of(tensor, self.nowhere, f"{pin}_rows", name := f"{pin}_none")
            self.after.setdefault(step, []).extend(op for op, _ in made)
            self.tensors |= {each.name: each for _, each in made}
        node = helper.make_node("Size", [name], [pin], name=pin)
        self.pins.append(Op(pin, "Size", "", (name,), (pin,), (), node))
        self.tensors[pin] = Tensor(pin, TensorProto.INT64, (), 8, Role.ACTIVATION)

    def made(self) -> Graph:
        """The graph with all of them."""
        ops = list(self.graph.ops)
        for step in sorted(self.after, reverse=True):
            ops[step + 1 : step + 1] = self.after[step]
        made = self.graph.with_ops([*ops, *self.pins], self.tensors)
        if not self.nowhere:
            return made
        return made.with_weights([numpy_helper.from_array(np.zeros(0, np.int64), self.nowhere)])

    def _nowhere(self) -> str:
        name = "onnxremat.nowhere"
        while name in self.tensors or name in self.graph.names_inside:
            name += "_"
        self.tensors[name] = Tensor(name, TensorProto.INT64, (0,), 0, Role.WEIGHT)
        return name


def open_ends(graph: Graph) -> list[str]:
    """Values nobody reads that no pin can be put on, being no tensors (a sequence of maps): where
    there are any, the default order is onnxruntime's."""
    read = {name for op in graph.ops for name in op.reads}
    return [
        name
        for op in graph.ops
        for name in op.writes
        if name not in read and not graph.tensors[name].dtype
    ]


def is_added(name: str) -> bool:
    """Whether an op is a pin or a gate rather than a planned step."""
    return name.startswith("onnxremat.")


def _pinnable(graph: Graph, op: Op, lasting: Collection[str] | None) -> str:
    """The output of an op that a pin may be put on, "" when there is none: of half precision
    onnxruntime would copy all of it to float32 for a Size. When shapes are found does not matter.
    """
    if op.name.startswith(SHOWN):
        return ""
    names = [name for name in op.writes if is_left(graph.tensors[name])]
    if lasting is not None and not _is_gate_size(op):
        names = [name for name in names if name in lasting]
    return next(iter(names), "")


def misplaced(graph: Graph, executed: Sequence[str]) -> set[str]:
    """Ops to pin because the op planned after each of them ran too early.

    Args:
        graph: ops in planned order.
        executed: op names in executed order; ops fused away are absent, new names are ignored.
    """
    ran = set(executed)
    planned = [
        op.name for op in graph.ops if op.name in ran and not op.name.startswith((PREFIX, SHOWN))
    ]
    place = {name: step for step, name in enumerate(planned)}
    found = set()
    reached = -1
    for name in executed:
        step = place.get(name)
        if step is None:
            continue
        if step > reached + 1:
            found.add(planned[step - 1])
        reached = max(reached, step)
    return found


def stretches(
    graph: Graph, ends_at: Collection[int] = (), allowed: Sequence[bool] | None = None
) -> list[int]:
    """Last steps of the longest stretches that a depth-first walk from that step alone would run
    in listed order, given that everything before the stretch has run.

    Args:
        ends_at: steps at which a stretch has to end.
        allowed: steps at which one may end; where none runs in listed order, it ends at the
            first allowed step and its inner order is left to onnxruntime.
    """
    before = graph.predecessors()
    count = len(before)
    ends = []
    start = 0
    while start < count:
        best = _longest(before, start, ends_at, allowed)
        # A pin on a value that a gate waits for would be the same Size op as the gate's, and
        # onnxruntime would make one of the two: pin the gate's Size instead, listed next.
        while best + 1 < count and _is_gate_size(graph.ops[best + 1]):
            best += 1
        ends.append(best)
        start = best + 1
    return ends


def _longest(
    before: list[list[int]], start: int, ends_at: Collection[int], allowed: Sequence[bool] | None
) -> int:
    """The last step of the longest stretch from ``start``.

    A walk takes the predecessor that is listed last first, and leaves it when all before it has
    run. So it runs in listed order where every step but the first reads the one before it.
    """
    best, end = -1, start
    while True:
        if allowed is None or allowed[end]:
            best = end
        if end in ends_at or end + 1 == len(before) or end not in before[end + 1][-1:]:
            break
        end += 1
    if best >= 0:
        return best
    rest = range(start, len(before))
    return next((e for e in rest if allowed is None or allowed[e]), len(before) - 1)


def _is_gate_size(op: Op) -> bool:
    return op.name.startswith(GATE) and op.name.endswith(SIZE)
