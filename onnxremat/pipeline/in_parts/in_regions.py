"""A model with regions computed in parts, checked against the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxremat.cost.table import CostTable
from onnxremat.errors import ModelError, UnsupportedError, UsageError
from onnxremat.fission.apart import APART, apart, seconds_apart
from onnxremat.fission.in_order import ORDERED, in_order, seconds_in_order
from onnxremat.fission.masked import reach_of
from onnxremat.fission.opened import norms_of, opened, opened_for, rate_of, seconds_of
from onnxremat.fission.pricing import Structures, Whole
from onnxremat.fission.region import Region
from onnxremat.fission.shifted import seconds_shifted, shifted, shifted_for
from onnxremat.fission.split import split
from onnxremat.fission.twice import as_first, twice, twice_for
from onnxremat.fission.writer import CONSTANT
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.spans import CannotSplitError
from onnxremat.graph.unforeseen import unforeseen
from onnxremat.ort.blocks import DOMAIN, block_size
from onnxremat.ort.profile import Feeds
from onnxremat.pipeline.in_parts.against_whole import against_whole, run_parts
from onnxremat.session.structures import copy_bytes, found_bytes, op_bytes

OFF = "leave them whole with --fission off"


def channels_per_block(graph: Graph) -> int:
    """Of the graph's convolutions that are laid out in blocks; 1 where it has none."""
    return block_size() if any(op.domain == DOMAIN for op in graph.ops) else 1


def wholes_of(
    graph: Graph, costs: CostTable, folder: Path | None, *, structures: bool = False
) -> list[Whole]:
    """What is to be computed in parts: the graph as it is; and where it has normalisations over
    images or large values in two layouts, the graph with these written out or apart; and with
    second makers of large images.

    Args:
        folder: of its external weights.
        structures: limits are to count what a session keeps of nodes, too.
    """
    block, reach = channels_per_block(graph), reach_of(graph, folder)
    rate, graph = rate_of(graph, costs.seconds), shifted(graph)
    seconds = seconds_shifted(graph, costs.seconds)
    found = [Whole(graph, seconds, costs.scratch, block, reach, rate, costs.kernels)]
    wide = _wide(graph)
    if wide is not graph:
        seconds = seconds_of(wide, seconds_in_order(wide, seconds_apart(wide, seconds)))
        more = wide.weight_bytes - graph.weight_bytes
        found.append(replace(found[0], graph=wide, seconds=seconds, more=more))
    both = twice(wide)
    if both is not wide:
        last = found[-1]
        seconds, scratch = as_first(both, last.seconds), as_first(both, last.scratch)
        more = both.weight_bytes - graph.weight_bytes
        made = replace(last, graph=both, seconds=seconds, scratch=scratch, again=True, more=more)
        found.append(made)
    return [replace(way, kept=_kept(way.graph, graph)) for way in found] if structures else found


def _kept(graph: Graph, whole: Graph) -> Structures:
    """Bytes that sessions keep of parts of a graph.

    Args:
        whole: the graph as it is.
    """
    node, read = copy_bytes()
    return Structures(
        {op.name: op_bytes(op) for op in graph.ops}, node, read, found_bytes(),
        sum(op_bytes(op) for op in whole.ops),
    )  # fmt: skip


def _wide(graph: Graph) -> Graph:
    """The graph with its normalisations written out, its layouts apart, and images enlarged with
    their channels in order."""
    return in_order(apart(opened(graph, {norm.name for norm in norms_of(graph)})))


def in_regions(
    graph: Graph,
    regions: Sequence[Region],
    feeds: Feeds | None,
    folder: Path | None,
    wanted: Mapping[str, Any] | None = None,
    original: Mapping[str, Any] | None = None,
) -> Graph:
    """The graph with regions in parts, in the order in which parts are computed.

    Args:
        feeds: inputs on which both graphs must give the same.
        wanted: what the whole gives for them, where that is known.
        original: what the model as it came gives, likewise.

    Raises:
        UsageError: nothing to run on, or the regions are not of this graph.
        UnsupportedError: the parts do not run, or give something else.
    """
    if feeds is None:
        raise UsageError(
            "regions in parts are checked by running the model", hint="leave out --no-measure"
        )
    try:
        model = to_model(written(graph, regions, folder))
        made, found = run_parts(model, feeds, folder)
    except (ModelError, CannotSplitError) as error:
        why = (error.why or error.what) if isinstance(error, ModelError) else str(error)
        raise UnsupportedError(
            "the model does not run with regions in parts", why=why, hint=OFF
        ) from error
    check_parts(found, graph, feeds, folder, wanted, original)
    return _with_sizes_of(graph, made)


def with_shapes_hidden(graph: Graph) -> Graph:
    """Regions in parts whose shapes a session learns only while it runs."""
    return unforeseen(graph, [name for name in graph.tensors if name.startswith(CONSTANT)])


def _with_sizes_of(whole: Graph, made: Graph) -> Graph:
    """What only a run shows of sizes is that of the whole: such values are in no parts."""
    known = {
        name: replace(whole.tensors[name], role=tensor.role)
        for name, tensor in made.tensors.items()
        if tensor.shape is None and name in whole.tensors
    }
    return made.with_ops(made.ops, {**made.tensors, **known}) if known else made


def written(graph: Graph, regions: Sequence[Region], folder: Path | None) -> Graph:
    """The graph with regions in parts, not checked.

    Raises:
        UsageError: the regions are not of this graph.
        CannotSplitError: an op cannot be split so.
    """
    names = [name for region in regions for name in region.ops]
    graph = shifted_for(graph, names)
    other = any(APART in name or name.endswith(ORDERED) for name in names)
    wide = twice_for(_wide(graph) if other else opened_for(graph, names), names)
    if not (other or _has(wide, names)):
        # Which images have second makers depends on what else is written out.
        wide = twice_for(_wide(graph), names)
    if not _has(wide, names):
        raise UsageError(
            "a region of the plan is not in the model",
            why="the file or the version of onnxruntime is another one",
            hint="plan again",
        )
    return split(wide, regions, channels_per_block(graph), reach_of(graph, folder))


def _has(graph: Graph, names: Sequence[str]) -> bool:
    return {op.name for op in graph.ops}.issuperset(names)


def check_parts(
    found: Mapping[str, Any],
    graph: Graph,
    feeds: Feeds,
    folder: Path | None,
    wanted: Mapping[str, Any] | None,
    original: Mapping[str, Any] | None = None,
) -> None:
    """Compare what parts gave with what the whole gives.

    Args:
        graph: the whole.
        wanted: what it gives, where that is known.
        original: what the model as it came gives, likewise.

    Raises:
        UnsupportedError: something else.
    """
    one = against_whole(found, graph, feeds, folder, wanted, original)
    if not one.ok:
        raise UnsupportedError(
            f"output '{one.output}' is another one with regions in parts",
            why=f"it differs by {one.worst:.2g}",
            hint=f"please report this model; {OFF}",
        )
