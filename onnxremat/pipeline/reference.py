"""Outputs of an original model on seeded inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from onnxremat.graph.onnx_io import inline_functions, to_model
from onnxremat.ort.feeds import load_feeds, seeded_feeds
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.profile import Feeds, named_outputs
from onnxremat.pipeline.prepare import Settings, read_source


def reference_outputs(source: Any, settings: Settings) -> tuple[Feeds, dict[str, Any]]:
    """Inputs, and what the original returns for them under default options.

    Raises:
        ModelError: the original cannot be read or run.
    """
    model, feeds, folder = reference_model(source, settings)
    return feeds, named_outputs(model, feeds, folder)


def reference_model(source: Any, settings: Settings) -> tuple[onnx.ModelProto, Feeds, Path | None]:
    """The original with its dimensions bound, inputs for it, and the folder of its weights.

    Raises:
        ModelError: the original cannot be read.
    """
    model, folder, _ = read_source(source)
    graph = build_graph(bind(inline_functions(model), settings.shapes, settings.dims), folder)
    if settings.data is not None:
        feeds = load_feeds(settings.data, graph)
    else:
        feeds = seeded_feeds(graph, settings.seed)
    return to_model(graph), feeds, folder
