"""A roofline estimate, for machines that are not at hand and runs without measuring."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from onnxremat.cost.integers import operations, workspace
from onnxremat.cost.shapes import made_shape, read_shape
from onnxremat.cost.table import CostTable
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.traits import ONNX, is_alias

ONNX_AND_FUSED = (*ONNX, "com.microsoft")  # not onnxruntime's blocked layout
PICKS = ("Gather", "GatherElements", "GatherND", "Slice")  # read no more than they make


@dataclass(frozen=True)
class Roofline:
    """Peaks of a device.

    Attributes:
        flops: multiply-adds and adds per second.
        bandwidth: bytes per second.
        dispatch: seconds per op.
    """

    flops: float = 3e10
    bandwidth: float = 5e9
    dispatch: float = 3e-6


def analytic_costs(graph: Graph, roofline: Roofline | None = None) -> CostTable:
    """Estimated costs: the larger of arithmetic and memory traffic, plus dispatch."""
    peak = roofline or Roofline()
    seconds = {}
    for op in graph.ops:
        moved = 0 if is_alias(op) else _moved(graph, op)
        seconds[op.name] = peak.dispatch + max(
            flops(graph, op) / peak.flops, moved / peak.bandwidth
        )
    scratch = {op.name: scratch_bytes(graph, op) for op in graph.ops}
    return CostTable(seconds, scratch, "analytic", peak.dispatch)


def estimated_by(known: Graph, costs: CostTable, graph: Graph) -> CostTable:
    """Costs of a graph like one that was measured: estimated, in its scale.

    Args:
        costs: of ``known``.
    """
    made, like = analytic_costs(graph), analytic_costs(known)
    scale = costs.total / like.total if like.total else 1.0
    seconds = {name: scale * each for name, each in made.seconds.items()}
    took, thought = _by_type(known, costs.scratch), _by_type(known, like.scratch)
    shares = {kind: took[kind] / all_ for kind, all_ in thought.items() if all_}
    scratch = {
        op.name: round(shares.get(op.op_type, 1.0) * made.scratch[op.name]) for op in graph.ops
    }
    return replace(made, seconds=seconds, scratch=scratch, dispatch=scale * made.dispatch)


def estimated_at(
    graph: Graph, seconds: float, workspace: Mapping[tuple[str, str], int] | None = None
) -> CostTable:
    """Estimated costs of a graph of which a run was seen.

    Args:
        seconds: that it took.
        workspace: bytes that its kernels took and gave back, by name and type of the op.
    """
    made, seen = analytic_costs(graph), workspace or {}
    scale = seconds / made.total if seconds > 0 and made.total else 1.0
    each = {name: scale * one for name, one in made.seconds.items()}
    scratch = {op.name: seen.get((op.name, op.op_type), made.scratch[op.name]) for op in graph.ops}
    return replace(made, seconds=each, scratch=scratch, dispatch=scale * made.dispatch)


def _by_type(graph: Graph, each: Mapping[str, int]) -> dict[str, int]:
    """Sums over ops of a type."""
    sums: dict[str, int] = {}
    for op in graph.ops:
        sums[op.op_type] = sums.get(op.op_type, 0) + each.get(op.name, 0)
    return sums


def _moved(graph: Graph, op: Op) -> int:
    """Bytes read and written."""
    made = sum(_bytes(graph, name) for name in op.writes)
    picks = op.reads[:1] if op.op_type in PICKS else ()
    read = sum(_bytes(graph, name) for name in op.reads if name not in picks)
    return made + read + sum(min(made, _bytes(graph, name)) for name in picks)


def _bytes(graph: Graph, name: str) -> int:
    tensor = graph.tensors.get(name)
    return tensor.bytes if tensor else 0


def flops(graph: Graph, op: Op) -> float:
    """Floating point operations of one run."""
    out = math.prod(made_shape(graph, op))
    kind = op.op_type
    if kind in ("Conv", "FusedConv"):
        return 2.0 * out * math.prod(read_shape(graph, op, 1)[1:])
    if kind == "ConvTranspose":
        return 2.0 * math.prod(read_shape(graph, op, 0)) * math.prod(read_shape(graph, op, 1)[1:])
    if kind in ("MatMul", "FusedMatMul"):
        first = read_shape(graph, op, 0)
        return 2.0 * out * (first[-1] if first else 1)
    if kind in ("Gemm", "FusedGemm"):
        first, rows = read_shape(graph, op, 0), made_shape(graph, op)[:1]
        return 2.0 * out * math.prod(first) / max((1, *rows))
    known = operations(graph, op)
    if known is not None:
        return known
    if kind == "Einsum":
        return (
            2.0
            * math.prod(read_shape(graph, op, 0))
            * max(1, (read_shape(graph, op, 1) or (1,))[-1])
        )
    heavy = ("Erf", "Exp", "Tanh", "Sigmoid", "Softmax", "Pow", "Gelu", "LogSoftmax", "Log")
    return out * (20.0 if kind in heavy else 1.0)


def windows_written_out(op: Op, weights: tuple[int, ...], out: tuple[int, ...]) -> int:
    """Bytes that a convolution of images takes to write all its windows out, which its kernel does
    where a group has more filters than an image of the result has pixels (``MlasConvPrepare``);
    0 where it does not.

    Args:
        weights, out: their shapes.
    """
    given = {a.name: a for a in op.node.attribute}
    pixels, filters = math.prod(out[2:]), weights[0] if weights else 0
    groups = given["group"].i if "group" in given else 1
    moves = any(max(given[n].ints, default=0) > least
                for n, least in (("strides", 1), ("pads", 0)) if n in given)  # fmt: skip
    direct = math.prod(weights[2:]) == 1 and not moves
    if op.domain not in ONNX_AND_FUSED or direct or len(out) > 4 or filters // groups <= pixels:
        return 0
    return 4 * math.prod(weights[1:]) * pixels


def scratch_bytes(graph: Graph, op: Op) -> int:
    """Workspace of onnxruntime's CPU kernels (measured, then written as formulas)."""
    out = sum(_bytes(graph, name) for name in op.writes)
    first = _bytes(graph, op.inputs[0]) if op.inputs else 0
    kind = op.op_type
    known = workspace(graph, op)
    if known is not None:
        return known
    if kind in ("Conv", "FusedConv"):
        out_shape = made_shape(graph, op)
        return max(64 << 10, windows_written_out(op, read_shape(graph, op, 1), out_shape))
    if kind == "ConvTranspose":
        pixels = math.prod(read_shape(graph, op, 0)[2:])  # one group after the other
        return int(4 * math.prod(read_shape(graph, op, 1)[1:]) * pixels)
    if kind in ("Softmax", "LogSoftmax"):
        axis = next((a.i for a in op.node.attribute if a.name == "axis"), -1)
        rank = len(read_shape(graph, op, 0))
        return 0 if axis in (-1, rank - 1) else 2 * first
    if kind == "LRN":
        return 2 * first
    if kind in ("Sum", "Max", "Min", "Mean") and len(op.inputs) > 2:
        return out
    if kind == "Where":  # what it takes from each side, as large as the condition and that side
        size = out // max(1, math.prod(made_shape(graph, op)))
        given = read_shape(graph, op, 0)
        sides = (np.broadcast_shapes(given, read_shape(graph, op, at)) for at in (1, 2))
        return size * sum(math.prod(side) for side in sides)
    return 3 * first if kind == "Einsum" else 0
