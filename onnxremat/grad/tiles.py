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

from collections.abc import Collection, Sequence

import onnx
from onnx import helper

from onnxremat.grad.chains import Chain, Chains
from onnxremat.grad.roles import inherit
from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import is_alias


def in_tiles(t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> list[Op]:
    """The ops of a step, with chains as Scans where that gains.

    Args:
        ops: in a topological order.
        outputs: tensors that the step returns: these are made as they are.
    """
    inside = {k: chain for chain in Chains(t, ops, outputs).worthwhile() for k in chain.places}
    made: list[Op] = []
    for place, op in enumerate(ops):
        if place not in inside:
            made.append(op)
        elif place == inside[place].places[-1]:
            chain = inside[place]
            made += _tiled(t, chain, [ops[k] for k in chain.places])
    return made


def _tiled(t: Tape, chain: Chain, ops: Sequence[Op]) -> list[Op]:
    """What makes the results of a chain."""
    last, start = ops[-1], len(t.ops)
    with t.scope(f"{last.name}/tiles", "backward"):
        renames = _scan(t, chain, ops)
    emitted, t.ops[start:] = t.ops[start:], []
    inherit(emitted, last)
    return [op.renamed(op.name, renames, op.origin) for op in emitted]


def _scan(t: Tape, chain: Chain, ops: Sequence[Op]) -> dict[str, str]:
    """Emit the Scan; names of the results by those they are to have."""
    body = _Body(t, chain)
    for op in ops:
        body.take(op)
    roots = list(dict.fromkeys(body.names[name] for name in chain.results))
    kinds = [(t.dtype(root), (chain.tiles, *t.shape(root))) for root in roots]
    made = t.multi(
        "Scan", body.sliced, kinds, num_scan_inputs=len(body.sliced), body=body.graph(roots)
    )
    whole = dict(zip(roots, made, strict=True))
    return {t.reshape(whole[body.names[n]], t.shape(n)): n for n in chain.results}


class _Body:
    """What is computed of each tile.

    Attributes:
        sliced: what it takes a tile each of: tensors [tiles, *tile].
        names: what tensors of the chain are called in it; a view has the name of what it shows.
    """

    def __init__(self, t: Tape, chain: Chain) -> None:
        self.t, self.chain = t, chain
        lead, self.last = chain.cut
        self.lead = lead // chain.tiles
        self.sliced, self.given = list[str](), list[str]()
        self.nodes = list[onnx.NodeProto]()
        self.names = dict[str, str]()

    def take(self, op: Op) -> None:
        """Compute an op of the chain."""
        (result,) = op.outputs
        if is_alias(op):
            self.names[result] = self._operand(op.inputs[0], op)
            return
        inputs = [self._operand(name, op) if name else "" for name in op.inputs]
        node = onnx.NodeProto()
        node.CopyFrom(op.node)
        node.name = self.t.fresh(f"{op.name}/tile")
        self.names[result] = self._declare(result, (self.lead, *self.last))
        node.input[:], node.output[:] = inputs, [self.names[result]]
        self.nodes.append(node)

    def _operand(self, name: str, op: Op) -> str:
        if name not in self.names:
            t, shape = self.t, self.t.shape(op.outputs[0])
            own = (1,) * (len(shape) - t.rank(name)) + t.shape(name)
            rest = own[len(shape) - len(self.last) :]
            if name in self.chain.inputs:
                self.names[name] = self._declare(name, (self.lead, *rest))
                self.given.append(self.names[name])
                self.sliced.append(t.reshape(name, (self.chain.tiles, self.lead, *rest)))
            else:  # the same for all
                few = t.rank(name) <= 1 + len(self.last)
                self.names[name] = name if few else t.reshape(name, rest)
        return self.names[name]

    def _declare(self, name: str, shape: Shape) -> str:
        tile = self.t.fresh(f"{name}/tile")
        return self.t.declare(tile, self.t.dtype(name), shape)

    def graph(self, results: Sequence[str]) -> onnx.GraphProto:
        """The body, that returns some of what it makes."""
        inputs, outputs = (
            [helper.make_tensor_value_info(n, self.t.dtype(n), self.t.shape(n)) for n in names]
            for names in (self.given, results)
        )
        return helper.make_graph(self.nodes, "tile", inputs, outputs)
