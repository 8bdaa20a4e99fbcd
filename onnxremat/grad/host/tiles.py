"""Elementwise chains of the backward pass, computed over tiles that stay in the cache.

The slope of a Gelu is nine operators, each of which reads tensors from memory and writes one back,
where PyTorch has a single kernel. A chain whose tensors do not fit into the cache becomes a Scan
over tiles of them: onnxruntime hands each tile to the body as a view and has the body write its
results where they belong, so that nothing is copied; what is made in between never leaves the
cache, nor takes more memory than a tile. Elements are what they were, bit by bit.

What all tiles read (numbers, weights of features) the body reads from outside. Which chains gain is
said by :mod:`onnxremat.grad.host.tile_choice`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx
from onnx import helper

from onnxremat.grad.host.chains import REDUCTIONS, Chains, read_of, tile_of
from onnxremat.grad.host.tile_choice import Part, worthwhile
from onnxremat.grad.roles import inherit, on_chain
from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import is_alias


def in_tiles(t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> list[Op]:
    """The ops of a step, with parts of chains as Scans where that gains.

    Args:
        ops: in a topological order.
        outputs: tensors that the step returns: these are made as they are.
    """
    chains = Chains(t, ops)
    parts = worthwhile(chains, outputs)
    of = {op.name: part for part in parts for op in part.ops}
    emitted = list[list[Op]]()
    for op in ops:
        part = of.get(op.name)
        if part is None:
            emitted.append([op])
        elif part.ops[-1].name == op.name:
            emitted.append(_tiled(chains, part))
    return list(_in_order(emitted))


def _in_order(groups: Sequence[Sequence[Op]]) -> Iterator[Op]:
    """All ops. What reads of a part that is made at the place of its last op comes after it."""
    missing = {name for group in groups for op in group for name in op.writes}
    waiting = list[Sequence[Op]]()
    for group in groups:
        waiting.append(group)
        while (ready := next((g for g in waiting if _is_ready(g, missing)), None)) is not None:
            waiting.remove(ready)
            missing.difference_update(name for op in ready for name in op.writes)
            yield from ready


def _is_ready(group: Sequence[Op], missing: Collection[str]) -> bool:
    """Whether all is there that some ops read and do not make."""
    made = {name for op in group for name in op.writes}
    return not any(n in missing and n not in made for op in group for n in op.reads)


def _tiled(chains: Chains, part: Part) -> list[Op]:
    """What makes the results of a part."""
    t, last = chains.t, part.ops[-1]
    start = len(t.ops)
    with t.scope(f"{last.name}/tiles", "backward"):
        renames = _scan(chains, part)
    emitted, t.ops[start:] = t.ops[start:], []
    inherit(emitted, next(filter(on_chain, part.ops), last))
    return [op.renamed(op.name, renames, op.origin) for op in emitted]


def _scan(chains: Chains, part: Part) -> dict[str, str]:
    """Emit the Scan; by what it makes the names that this is to have."""
    t, body = chains.t, _Body(chains, part)
    for op in part.ops:
        body.take(op)
    roots = list(dict.fromkeys(body.roots[name] for name in part.results))
    kinds = [(t.dtype(root), (part.tiles, *t.shape(body.names[root]))) for root in roots]
    made = t.multi(
        "Scan", body.sliced, kinds, num_scan_inputs=len(body.sliced), body=body.graph(roots)
    )
    whole, renames = dict(zip(roots, made, strict=True)), {}
    for name in part.results:
        shape = t.shape(name)
        view = t.op("Reshape", whole[body.roots[name]], t.integers(*shape), shape=shape)
        renames[view] = name
    return renames


class _Body:
    """What is computed of each tile.

    Attributes:
        sliced: what it takes a tile each of: tensors [tiles, *tile].
        names: what tensors of the part are called in it.
        roots: what tensors that it makes are views of, or are.
    """

    def __init__(self, chains: Chains, part: Part) -> None:
        self.chains, self.t, self.part = chains, chains.t, part
        self.sliced, self.given = list[str](), list[str]()
        self.nodes = list[onnx.NodeProto]()
        self.names, self.roots = dict[str, str](), dict[str, str]()

    def take(self, op: Op) -> None:
        """Compute an op."""
        t, (result,) = self.t, op.outputs
        inputs = [self._operand(name, op) for name in read_of(op)]
        if is_alias(op):
            self.roots[result] = self.roots[op.inputs[0]]
            tile = tile_of(t.shape(result), self.part.tiles)
            if t.shape(inputs[0]) == tile:
                self.names[result] = inputs[0]
            else:
                name = t.fresh(f"{op.name}/tile")
                self._add(helper.make_node("Reshape", [], [], name), result, inputs, tile)
            return
        self.roots[result] = result
        node = onnx.NodeProto()
        node.CopyFrom(op.node)
        node.name = t.fresh(f"{op.name}/tile")
        if op.op_type in REDUCTIONS:  # axes are counted back: a tile may have fewer of them
            inputs.append(t.integers(*(k - t.rank(op.inputs[0]) for k in self.chains.axes(op))))
        self._add(node, result, inputs)

    def _add(
        self, node: onnx.NodeProto, result: str, inputs: Sequence[str], shape: Shape = ()
    ) -> None:
        """Let a node make a tensor, in another shape where one is given."""
        node.input[:] = [*inputs, self.t.integers(*shape)] if shape else inputs
        self.names[result] = self._declare(result)
        node.output[:] = [self.names[result]]
        self.nodes.append(node)

    def _operand(self, name: str, op: Op) -> str:
        if name in self.names:
            return self.names[name]
        t, shape = self.t, self.t.shape(name)
        if name in self.part.inputs:
            self.names[name] = self._declare(name)
            self.given.append(self.names[name])
            self.sliced.append(t.reshape(name, (self.part.tiles, *t.shape(self.names[name]))))
            return self.names[name]
        # The same for all tiles, which may have fewer axes.
        axes = len(tile_of(t.shape(op.outputs[0]), self.part.tiles))
        return name if len(shape) <= axes else t.reshape(name, shape[len(shape) - axes :])

    def _declare(self, name: str) -> str:
        t, tile = self.t, self.t.fresh(f"{name}/tile")
        return t.declare(tile, t.dtype(name), tile_of(t.shape(name), self.part.tiles))

    def graph(self, results: Sequence[str]) -> onnx.GraphProto:
        """The body, that returns some of what it makes."""
        returned = [self.names[name] for name in results]
        inputs, outputs = (
            [helper.make_tensor_value_info(n, self.t.dtype(n), self.t.shape(n)) for n in names]
            for names in (self.given, returned)
        )
        return helper.make_graph(self.nodes, "tile", inputs, outputs)
