"""A model with regions computed in parts, checked against the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxremat.errors import ModelError, UnsupportedError, UsageError
from onnxremat.fission.region import Region
from onnxremat.fission.split import split
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.spans import CannotSplitError
from onnxremat.ort.blocks import DOMAIN, block_size
from onnxremat.ort.profile import Feeds
from onnxremat.pipeline.against_whole import against_whole, run_parts

OFF = "leave them whole with --fission off"


def channels_per_block(graph: Graph) -> int:
    """Of the graph's convolutions that are laid out in blocks; 1 where it has none."""
    return block_size() if any(op.domain == DOMAIN for op in graph.ops) else 1


def in_regions(
    graph: Graph,
    regions: Sequence[Region],
    feeds: Feeds | None,
    folder: Path | None,
    wanted: Mapping[str, Any] | None = None,
) -> Graph:
    """The graph with regions in parts, in the order in which parts are computed.

    Args:
        feeds: inputs on which both graphs must give the same.
        wanted: what the whole gives for them, where that is known.

    Raises:
        UsageError: nothing to run on, or the regions are not of this graph.
        UnsupportedError: the parts do not run, or give something else.
    """
    if feeds is None:
        raise UsageError(
            "regions in parts are checked by running the model", hint="leave out --no-measure"
        )
    known = {op.name for op in graph.ops}
    for region in regions:
        if not known.issuperset(region.ops):
            raise UsageError(
                "a region of the plan is not in the model",
                why="the file or the version of onnxruntime is another one",
                hint="plan again",
            )
    try:
        model = to_model(split(graph, regions, channels_per_block(graph)).graph)
        made, found = run_parts(model, feeds, folder)
    except (ModelError, CannotSplitError) as error:
        why = (error.why or error.what) if isinstance(error, ModelError) else str(error)
        raise UnsupportedError(
            "the model does not run with regions in parts", why=why, hint=OFF
        ) from error
    one = against_whole(found, graph, feeds, folder, wanted)
    if not one.ok:
        raise UnsupportedError(
            f"output '{one.output}' is another one with regions in parts",
            why=f"it differs by {one.worst:.2g}",
            hint=f"please report this model; {OFF}",
        )
    return made
