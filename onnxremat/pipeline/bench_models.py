"""Models with equal inputs against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxremat.errors import UsageError
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import load_feeds, seeded_feeds
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.bench import Contender, Timing, bench
from onnxremat.pipeline.prepare import Settings, read_source
from onnxremat.rewrite.emit import metadata, unpack
from onnxremat.session.load import options_of


def contest(
    paths: Sequence[Path], settings: Settings, seconds: float, stop: Callable[[], bool] | None
) -> list[Timing]:
    """Time files in turn on the same inputs; planned models run as planned.

    Open dimensions of unplanned models are bound as the planned ones were, unless given.

    Raises:
        UsageError: the models have different inputs.
    """
    read = [read_source(path) for path in paths]
    kept: dict[str, Any] = {}
    for model, _, _ in read:
        facts = metadata(model)
        if "plan" in facts:
            kept = dict(unpack(facts["plan"]).provenance.settings)
    contenders, feeds = [], None
    for path, (model, folder, _) in zip(paths, read, strict=True):
        planned = "plan" in metadata(model)
        shapes = {} if planned else settings.shapes or kept.get("shapes", {})
        dims = {} if planned else settings.dims or kept.get("dims", {})
        graph = build_graph(bind(model, shapes, dims), folder)
        if feeds is None:
            made = load_feeds(settings.data, graph) if settings.data else None
            feeds = made or seeded_feeds(graph, settings.seed)
        elif set(graph.inputs) != set(feeds):
            raise UsageError(
                f"{path} has other inputs than {paths[0]}",
                why=f"{', '.join(graph.inputs)} against {', '.join(feeds)}",
            )
        options = replace(options_of(model) if planned else DEFAULT, threads=settings.threads)
        contenders.append(Contender(str(path), to_model(graph), options, folder))
    assert feeds is not None
    return bench(contenders, feeds, seconds=seconds, stop=stop)
