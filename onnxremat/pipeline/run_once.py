"""Run any model once (or a few times) under the meter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat.graph.atomic import atomic, check_writable
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.arrays import write_arrays
from onnxremat.ort.feeds import load_feeds, seeded_feeds
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.profile import Profile, Profiling, profile
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.in_place import in_place
from onnxremat.pipeline.original.source import read_source
from onnxremat.pipeline.settings import Settings
from onnxremat.rewrite.emit import figures, metadata
from onnxremat.schedule.updates import given_memory, written_over
from onnxremat.session.gathered import beside_step
from onnxremat.session.load import options_of
from onnxremat.session.measure import weight_bytes
from onnxremat.session.process import Beside, counted, session_bytes


def run_once(
    source: str | Path, settings: Settings, runs: int, default_options: bool, save: Path | None
) -> dict[str, Any]:
    """Run a model and say what it took.

    Args:
        default_options: ignore the options a planned model carries.
        save: write the outputs that are arrays there (``.npz``); ``not_saved`` of the result are
            the others.

    Raises:
        UsageError, ModelError: unreadable model, inputs or output path.
    """
    left_out = list[str]()
    if save is not None:
        check_writable(save)
    model, folder, _ = read_source(source)
    planned = "plan" in metadata(model) and not default_options
    options = replace(options_of(model) if planned else DEFAULT, threads=settings.threads)
    bound = bind(inline_functions(model), settings.shapes, settings.dims)
    told = figures(metadata(model)) if planned else {}
    updates = in_place(bound, told.get("not_counted"))
    graph = written_over(build_graph(bound, folder), updates.values())
    feeds = (
        load_feeds(settings.data, graph) if settings.data else seeded_feeds(graph, settings.seed)
    )
    asked = Profiling(runs, bound=given_memory(graph))
    found = profile(to_model(graph), feeds, options, asked, folder=folder)
    if save is not None:
        arrays = {n: v for n, v in found.outputs.items() if isinstance(v, np.ndarray)}
        left_out = [name for name in found.outputs if name not in arrays]
        with atomic(save) as temporary, temporary.open("wb") as file:
            write_arrays(file, arrays)
    weights = weight_bytes(graph, found, level=options.level, folder=folder)
    more = _beside(graph, found, told)
    return {
        "peak_measured_bytes": weights + found.live_peak,
        "beside_bytes": more.total,
        "process_bytes": weights + found.live_peak + more.total,
        "weight_bytes": weights,
        "arena_bytes": found.arena_bytes,
        "kernels": len(found.kernels),
        "seconds": found.seconds,
        "options": options.to_json(),
        "outputs": {name: _about(value) for name, value in found.outputs.items()},
        "not_saved": left_out,
    }


def _about(value: Any) -> dict[str, Any]:
    """Shape and element type of an output; of a sequence or map how much it holds."""
    if isinstance(value, list | dict):
        return {"shape": [len(value)], "dtype": "map" if isinstance(value, dict) else "sequence"}
    return {"shape": list(np.shape(value)), "dtype": str(getattr(value, "dtype", ""))}


def _beside(graph: Graph, found: Profile, told: Mapping[str, Any]) -> Beside:
    """What the process takes beside weights and values: of a planned model what its budget counts,
    else of the ops that onnxruntime made of the graph."""
    if told.get("session_bytes") is not None:
        return counted(told)
    whole = beside_step(graph, graph.model)
    return replace(
        whole, session=session_bytes(graph, len({kernel.name for kernel in found.kernels}))
    )
