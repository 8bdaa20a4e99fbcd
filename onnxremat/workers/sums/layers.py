"""A training step cut along its layers: of each a forward part, a chain part and a weight part.

A *layer* here is a stretch of the forward pass between two cuts. Its backward ops are known by
their names, which ``differentiate`` makes of those of the forward ops they belong to; what has
another name goes where what it reads is. Parts only read what parts before them make, whatever the
names say: F of a layer reads from F of layers up to it, B from any F and from B of later layers,
W from any F, from B of its own and later layers, and from W of later ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from onnxremat.cost.analytic import analytic_costs
from onnxremat.grad.roles import roles_of
from onnxremat.graph.ir import Graph, Op
from onnxremat.workers.pipeline import B, F, W

# What joins gradients of several layers, and an update, beside the kinds of a pipeline's actions.
J, U = 4, 5
Key = tuple[int, int]  # (F, B, W, J or U; layer)
KINDS = {F: "F", B: "B", W: "W", J: "J"}


def label(key: Key) -> str:
    """``F3`` for people."""
    return f"{KINDS[key[0]]}{key[1]}"


@dataclass(frozen=True)
class Layers:
    """A step, each op in a part.

    Attributes:
        graph: the step.
        count: layers.
        parts: ops per part, in the order of the step; parts without ops are left out.
        home: output of the step to the part that makes it.
    """

    graph: Graph
    count: int
    parts: Mapping[Key, tuple[Op, ...]]
    home: Mapping[str, Key]


def in_turn(count: int, late: int = 0) -> list[Key]:
    """Parts in an order in which they can run: B and W of each layer together, but W of the first
    ``late`` layers after everything else, the first layer first (reverse first-k)."""
    order = [(F, layer) for layer in range(count)]
    for layer in reversed(range(count)):
        order.append((B, layer))
        if layer >= late:
            order.append((W, layer))
    return order + [(W, layer) for layer in range(late)]


def joined(layers: Layers) -> Layers:
    """The same with what runs one after the other in plain order as one part: B and W of each
    layer, and F of the last one with them. A value is read again while caches still hold it, and
    there are fewer sessions; but no W can come last."""
    last = layers.count - 1

    def key_of(key: Key) -> Key:
        kind, layer = key
        if layer == last:
            return F, last
        return (B, layer) if kind == W else key

    place = {op.name: at for at, op in enumerate(layers.graph.ops)}
    parts: dict[Key, list[Op]] = {}
    for key, ops in layers.parts.items():
        parts.setdefault(key_of(key), []).extend(ops)
    sorted_ = {k: tuple(sorted(v, key=lambda op: place[op.name])) for k, v in parts.items()}
    home = {name: key_of(key) for name, key in layers.home.items()}
    return Layers(layers.graph, layers.count, sorted_, home)


def most_late(layers: Layers) -> int:
    """The most layers whose W can come last, the first layer first: W of none of them may read
    from W of another (tied parameters do)."""
    maker = {n: key for key, ops in layers.parts.items() for op in ops for n in op.writes}
    limit = layers.count
    for (kind, layer), ops in layers.parts.items():
        read = {maker[n] for op in ops for n in op.reads if n in maker}
        if kind == W:
            limit = min([limit, *(of for k, of in read if k == W and of > layer)])
    return limit


def forward_ops(graph: Graph) -> list[Op]:
    """Ops of the forward pass, in order."""
    roles = roles_of(graph)
    return [op for op in graph.ops if roles[op.name] == "forward"]


def even_cuts(graph: Graph, count: int, seconds: Mapping[str, float] | None = None) -> list[str]:
    """Ops before which to cut the forward pass for layers that take about as long each.

    Near each even share the cut goes where the fewest bytes cross it.

    Args:
        count: layers wanted; fewer come back where there are fewer places.
        seconds: of each op of the step; estimated where they are not given.

    Returns:
        The first op of each layer but the first.
    """
    ops = forward_ops(graph)
    known = analytic_costs(graph).seconds if seconds is None else seconds
    passed, total = [], 0.0
    for op in ops:
        passed.append(total)
        total += known.get(op.name, 0.0)
    crossing, found = crossing_bytes(graph, ops), list[int]()
    for k in range(1, count):
        low = bisect_right(passed, total * (k - 0.4) / count)
        high = bisect_right(passed, total * (k + 0.4) / count)
        places = [at for at in range(low, high) if at > max(found, default=0)]
        if places:
            found.append(
                min(places, key=lambda at: (crossing[at], abs(passed[at] - total * k / count)))
            )
    return [ops[at].name for at in found]


def crossing_bytes(graph: Graph, ops: Sequence[Op]) -> list[int]:
    """Bytes of what is made before each op of a list and read by it or after it."""
    made = {name: at for at, op in enumerate(ops) for name in op.writes}
    change = [0] * (len(ops) + 1)
    last: dict[str, int] = {}
    for at, op in enumerate(ops):
        last.update((name, at) for name in op.reads if name in made)
    for name, at in last.items():
        change[made[name] + 1] += graph.tensors[name].bytes
        change[at + 1] -= graph.tensors[name].bytes
    total, found = 0, []
    for each in change[:-1]:
        total += each
        found.append(total)
    return found


def layers_of(
    graph: Graph, cuts: Sequence[str], sums: Sequence[str], moved: Collection[str] = ()
) -> Layers:
    """Every op of a step in its part.

    Args:
        graph: a step that gathers gradients.
        cuts: first op of each layer but the first.
        sums: outputs with the sums of gradients.
        moved: state that the step itself overwrites: what reads it alone is where its readers are.
    """
    return _Sorted(graph, cuts, sums, moved).layers()


def _shows_state(graph: Graph, op: Op, moved: Set[str]) -> bool:
    """An op reads state that the step overwrites, and makes little else of it: a copy for a kernel
    that writes over it, say."""
    own = moved & {*op.reads}
    made, kept = (sum(graph.tensors[n].bytes for n in names) for names in (op.writes, own))
    return bool(own) and (len(own) == len({*op.reads}) or made <= kept)


class _Sorted:
    """Sorts the ops of a step."""

    def __init__(
        self, graph: Graph, cuts: Sequence[str], sums: Sequence[str], moved: Collection[str]
    ) -> None:
        self.graph, self.count = graph, len(cuts) + 1
        self.roles, self.key = roles_of(graph), dict[str, Key]()
        self.forward: dict[str, int] = {}
        layer, places = 0, set(cuts)
        for op in graph.ops:
            if self.roles[op.name] == "forward":
                layer += op.name in places
                self.forward[op.name] = layer
        for op in reversed(graph.ops):
            if op.name in self.forward and _shows_state(graph, op, {*moved}):
                readers = {graph.ops[k].name for n in op.writes for k in graph.readers.get(n, ())}
                near = [self.forward[name] for name in readers if name in self.forward]
                self.forward[op.name] = min(near, default=self.forward[op.name])
        self.leading = self._leading(sums)

    def _leading(self, sums: Sequence[str]) -> set[str]:
        wanted, found = set(sums), set[str]()
        for op in reversed(self.graph.ops):
            if not wanted.isdisjoint(op.writes):
                wanted.update(op.reads)
                found.add(op.name)
        return found

    def layers(self) -> Layers:
        """Ops by part."""
        parts: dict[Key, list[Op]] = {}
        alone = [op for op in self.graph.ops if self._only_state(op)]
        for op in self.graph.ops:
            if not self._only_state(op):
                self.key[op.name] = self._of(op)
        for op in reversed(alone):
            self.key[op.name] = self._with_readers(op)
        for op in self.graph.ops:
            parts.setdefault(self.key[op.name], []).append(op)
        home = {name: self.key[self.graph.ops[self.graph.producer[name]].name]
                for name in self.graph.outputs if name in self.graph.producer}  # fmt: skip
        return Layers(self.graph, self.count, {k: tuple(v) for k, v in parts.items()}, home)

    def _only_state(self, op: Op) -> bool:
        """An op that moves statistics and reads nothing that is made in the step: its place is
        where its readers are."""
        made = any(n in self.graph.producer for n in op.reads)
        return self.roles[op.name] == "update" and not made and op.name not in self.leading

    def _with_readers(self, op: Op) -> Key:
        readers = [self.graph.ops[k].name for n in op.writes for k in self.graph.readers.get(n, ())]
        return min((self.key[name] for name in readers), default=(F, 0))

    def _of(self, op: Op) -> Key:
        role, last = self.roles[op.name], self.count - 1
        makers = [self.graph.ops[self.graph.producer[n]].name for n in op.reads
                  if n in self.graph.producer]  # fmt: skip
        before = [self.key[name] for name in makers if name in self.key]
        ahead = max((layer for kind, layer in before if kind == F), default=0)
        back = [layer for kind, layer in before if kind != F]
        if role == "forward":
            return F, self.forward[op.name]
        if role == "loss":
            return F, last
        if role != "chain" and op.name not in self.leading:
            # Statistics of a batch and the like: with what they are made of.
            return (W, min(back)) if back else (F, ahead)
        own = self._counterpart(op)
        if own is None:
            own = min(back, default=ahead if before else last)
        return (B if role == "chain" else W), min([own, *back])

    def _counterpart(self, op: Op) -> int | None:
        """Layer of the forward op that a backward op belongs to, by its name."""
        scope, _, rest = (op.origin or op.name).partition("/")
        parts = rest.split("/") if scope == "grad" else []
        if parts[:1] == ["loss"]:
            return self.count - 1
        while parts:
            found = self.forward.get("/".join(parts))
            if found is not None:
                return found
            parts.pop()
        return None
