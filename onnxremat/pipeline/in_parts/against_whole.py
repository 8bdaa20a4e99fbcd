"""A graph in parts beside the whole: what it gives on the same inputs.

Both run under the options of plans: in the listed order, and without holding buffers for later, a
step takes half of what it does under onnxruntime's default options, or less.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import Feeds, named_outputs
from onnxremat.ort.session import TUNED
from onnxremat.session.compare import Difference, compare


def run_parts(
    model: onnx.ModelProto, feeds: Feeds, folder: Path | None
) -> tuple[Graph, dict[str, Any]]:
    """The graph of a model in parts, and what it gives.

    Raises:
        ModelError: it does not run.
    """
    made = without_dead_ops(build_graph(model, folder))
    return made, named_outputs(to_model(made), feeds, folder, TUNED)


def against_whole(
    found: Mapping[str, Any],
    graph: Graph,
    feeds: Feeds,
    folder: Path | None,
    wanted: Mapping[str, Any] | None,
    original: Mapping[str, Any] | None = None,
) -> Difference:
    """How far what parts gave is from what the whole gives.

    Args:
        wanted: the latter, where it is known.
        original: what the model as it came gives, where that is known. Where ``wanted`` is not and
            parts agree with it, the whole is not run: it would take as long as the parts.
    """
    if wanted is None and original is not None:
        one = compare(found, original)
        if one.ok:
            return one
    if wanted is None:
        wanted = named_outputs(to_model(graph), feeds, folder, TUNED)
    return compare(found, wanted)
