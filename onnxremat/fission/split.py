"""The graph with regions computed part by part.

Fission as in MAGIS (ASPLOS'24, section 4.2), extended to windows, to rows that are kept from part
to part, and to results that stay in parts: what one region makes in parts and only others read part
by part is never joined.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import onnx

from onnxremat.fission.masked import Reach
from onnxremat.fission.paper import Paper
from onnxremat.fission.part import write_region, write_whole
from onnxremat.fission.region import Region
from onnxremat.fission.writer import Stretch, Writer
from onnxremat.graph.ir import Graph, Role
from onnxremat.graph.spans import CannotSplitError

PART = re.compile(r"/(r+)\d+p\d")  # in names of what a part makes


def split(graph: Graph, regions: Sequence[Region], block: int, reach: Reach | None = None) -> Graph:
    """The graph with its regions in parts, listed part by part, with sizes.

    Args:
        block: channels per block of convolutions that are laid out in blocks.
        reach: how far rows of masked scores see; keys that a part does not see are left out.

    Raises:
        CannotSplitError: an op of a region cannot be split so, or what a region reads depends on
            what it makes, or others read more of it than its results.
    """
    return split_apart(graph, regions, block, (), reach)[0]


def split_apart(
    graph: Graph,
    regions: Sequence[Region],
    block: int,
    apart: Sequence[str],
    reach: Reach | None = None,
) -> tuple[Graph, dict[str, tuple[Stretch, ...]]]:
    """The same, some outputs not joined: also the stretches of each, where it is in parts. The
    graph hands out these instead.

    Args:
        apart: outputs of the graph.

    Raises:
        CannotSplitError: as there.
    """
    paper = Paper(graph)
    writer, mark = Writer(paper, block), _mark(graph)
    for item in paper.due(regions):
        if isinstance(item, Region):
            write_region(writer, item, f"{mark}{list(regions).index(item)}")
        else:
            write_whole(writer, item)
    tiles = {name: writer.tiles[name] for name in apart if name in writer.tiles}
    outputs: list[str] = []
    for name in graph.outputs:
        if name in tiles:
            outputs += [tensor for tensor, _ in tiles[name]]
        else:
            outputs.append(writer.whole(name))
    made = _graph(writer, outputs)
    _check_order(made)
    if reach:
        writer.leave_out_hidden(reach)
        made = _graph(writer, outputs)
    return made, tiles


def _mark(graph: Graph) -> str:
    """What tells names of parts from others: ``r``, longer where the graph has such names already
    (it is in parts, and goes in parts again)."""
    named = (*graph.tensors, *graph.names_inside)
    taken = [len(found[1]) for name in named for found in PART.finditer(name)]
    return "r" * (1 + max(taken, default=0))


def _graph(writer: Writer, outputs: Sequence[str]) -> Graph:
    graph = writer.graph
    used = {name for op in writer.ops for name in op.reads}
    frame = onnx.ModelProto()
    frame.CopyFrom(graph.model)
    known, held = frame.graph.initializer, used.union(outputs)
    for place in reversed(range(len(known))):
        if known[place].name not in held:
            del known[place]  # a number that hidden scores were replaced by
    for place in reversed(range(len(frame.graph.input))):
        if frame.graph.input[place].name in graph.optional - held:
            del frame.graph.input[place]
    there = {tensor.name for tensor in known}  # named after their values
    new = (t for name, t in writer.constants.items() if name in used and name not in there)
    known.extend(new)
    made = used.union(outputs, graph.inputs, *(op.writes for op in writer.ops))
    made.update(t.name for t in known)
    tensors = {name: tensor for name, tensor in writer.tensors.items() if name in made}
    return replace(
        graph, ops=tuple(writer.ops), tensors=tensors, outputs=tuple(outputs), model=frame
    )


def _check_order(graph: Graph) -> None:
    """Everything is made before it is read: nothing between the ops of a region needs it and is
    needed by it, and all that others read of a region is among its results."""
    made = {n for n, t in graph.tensors.items() if t.role in (Role.INPUT, Role.WEIGHT)}
    for op in graph.ops:
        missing = [name for name in op.reads if name not in made]
        if missing:
            raise CannotSplitError(f"{op.name} reads {missing[0]}, which is not there whole")
        made.update(op.writes)
