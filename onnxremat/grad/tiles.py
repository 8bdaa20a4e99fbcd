"""Elementwise chains of the backward pass, computed over tiles that stay in the cache.

The slope of a Gelu is nine operators, each of which reads tensors from memory and writes one back,
where PyTorch has a single kernel. A chain whose tensors do not fit into the cache becomes a Scan
over tiles of them: onnxruntime hands each tile to the body as a view and has the body write its
results where they belong, so that nothing is copied; what is made in between never leaves the
cache, nor takes more memory than a tile. Elements are what they were, bit by bit.

What all tiles read (numbers, weights of features) the body reads from outside. Which chains gain is
said by :mod:`onnxremat.grad.chains`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx
from onnx import helper

from onnxremat.grad.chains import REDUCTIONS, Chains, cut_of
from onnxremat.grad.roles import inherit
from onnxremat.grad.tape import Shape, Tape
from onnxremat.grad.tile_choice import Part, worthwhile
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import is_alias


def in_tiles(t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> list[Op]:
    """The ops of a step, with parts of chains as Scans where that gains.

    Args:
        ops: in a topological order.
        outputs: tensors that the step returns: these are made as they are.
    """
    parts = worthwhile(Chains(t, ops), outputs)
    of = {op.name: part for part in parts for op in part.ops}
    emitted = list[list[Op]]()
    for op in ops:
        part = of.get(op.name)
        if part is None:
            emitted.append([op])
        elif part.ops[-1].name == op.name:
            emitted.append(_tiled(t, part))
    return list(_in_order(emitted))


def _in_order(groups: Sequence[Sequence[Op]]) -> Iterator[Op]:
    """Ops, those that read what a part makes at its end after it."""
    missing = {name for group in groups for op in group for name in op.writes}
    waiting = list[Sequence[Op]]()
    for group in groups:
        waiting.append(group)
        ready = True
        while ready:
            ready = [
                each for each in waiting
                if missing.isdisjoint({n for op in each for n in op.reads}.difference(
                    n for op in each for n in op.writes))
            ][:1]
            for each in ready:
                waiting.remove(each)
                missing.difference_update(name for op in each for name in op.writes)
                yield from each


def _tiled(t: Tape, part: Part) -> list[Op]:
    """What makes the results of a part."""
    last, start = part.ops[-1], len(t.ops)
    with t.scope(f"{last.name}/tiles", "backward"):
        renames = _scan(t, part)
    emitted, t.ops[start:] = t.ops[start:], []
    inherit(emitted, last)
    return [op.renamed(op.name, renames, op.origin) for op in emitted]


def _scan(t: Tape, part: Part) -> dict[str, str]:
    """Emit the Scan; by what it makes the names that this is to have."""
    body = _Body(t, part)
    for op in part.ops:
        body.take(op)
    roots = list(dict.fromkeys(body.names[name] for name in part.results))
    kinds = [(t.dtype(root), (part.tiles, *t.shape(root))) for root in roots]
    made = t.multi(
        "Scan", body.sliced, kinds, num_scan_inputs=len(body.sliced), body=body.graph(roots)
    )
    whole = dict(zip(roots, made, strict=True))
    return {t.op("Reshape", whole[body.names[n]], t.integers(*t.shape(n)), shape=t.shape(n)): n
            for n in part.results}


class _Body:
    """What is computed of each tile.

    Attributes:
        sliced: what it takes a tile each of: tensors [tiles, *tile].
        names: what tensors of the part are called in it; a view has the name of what it shows.
    """

    def __init__(self, t: Tape, part: Part) -> None:
        self.t, self.part = t, part
        self.rows, self.rank = part.cut[0] // part.tiles, len(part.cut[1])
        self.sliced, self.given = list[str](), list[str]()
        self.nodes = list[onnx.NodeProto]()
        self.names = dict[str, str]()

    def take(self, op: Op) -> None:
        """Compute an op."""
        (result,) = op.outputs
        if is_alias(op):
            self.names[result] = self.names[op.inputs[0]]
            return
        cut = cut_of(op)
        inputs = [self._operand(name) if name in cut else name for name in op.inputs]
        if op.op_type in REDUCTIONS:  # tiles may have fewer axes: the last ones are counted back
            inputs[1] = self.t.integers(*range(-self.t.size(inputs[1]), 0))
        node = onnx.NodeProto()
        node.CopyFrom(op.node)
        node.name = self.t.fresh(f"{op.name}/tile")
        self.names[result] = self._declare(result)
        node.input[:], node.output[:] = inputs, [self.names[result]]
        self.nodes.append(node)

    def _operand(self, name: str) -> str:
        if name not in self.names:
            t, last = self.t, self._last(name)
            if name in self.part.inputs:
                self.names[name] = self._declare(name)
                self.given.append(self.names[name])
                self.sliced.append(t.reshape(name, (self.part.tiles, self.rows, *last)))
            else:  # the same for all
                few = t.rank(name) <= 1 + self.rank
                self.names[name] = name if few else t.reshape(name, last)
        return self.names[name]

    def _last(self, name: str) -> Shape:
        """The axes that are not cut."""
        shape = self.t.shape(name)
        return ((1,) * (self.rank - len(shape)) + shape)[max(0, len(shape) - self.rank) :]

    def _declare(self, name: str) -> str:
        t, tile = self.t, self.t.fresh(f"{name}/tile")
        return t.declare(tile, t.dtype(name), (self.rows, *self._last(name)))

    def graph(self, results: Sequence[str]) -> onnx.GraphProto:
        """The body, that returns some of what it makes."""
        inputs, outputs = (
            [helper.make_tensor_value_info(n, self.t.dtype(n), self.t.shape(n)) for n in names]
            for names in (self.given, results)
        )
        return helper.make_graph(self.nodes, "tile", inputs, outputs)
