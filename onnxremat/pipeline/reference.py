"""An original model, and what it returns on seeded inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from onnxremat.graph.functions import inline_functions
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import load_feeds, seeded_feeds
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.profile import Feeds, named_outputs
from onnxremat.ort.session import DEFAULT, open_session, session_options
from onnxremat.pipeline.prepare import Settings
from onnxremat.pipeline.source import Source, read_source
from onnxremat.session.repeats import Repeats, repeats


@dataclass(frozen=True)
class Reference:
    """An original, read once.

    Attributes:
        graph: its dimensions bound.
        folder: where its external weights are.
        settings: shapes, inputs and threads.
    """

    graph: Graph
    folder: Path | None
    settings: Settings

    @classmethod
    def read(cls, source: Source, settings: Settings) -> Reference:
        """Raises:
        ModelError: the original cannot be read.
        """
        model, folder, _ = read_source(source)
        bound = bind(inline_functions(model), settings.shapes, settings.dims)
        return cls(build_graph(bound, folder), folder, settings)

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The same as a model."""
        return to_model(self.graph)

    def feeds(self, seed: int = 0) -> Feeds:
        """The inputs that were given, else some of a seed after that of the settings."""
        if self.settings.data is not None:
            return load_feeds(self.settings.data, self.graph)
        return seeded_feeds(self.graph, self.settings.seed + seed)

    def outputs(self, feeds: Feeds) -> dict[str, Any]:
        """What it returns under default options.

        Raises:
            ModelError: it cannot be run.
        """
        return named_outputs(self.model, feeds, self.folder)

    @cached_property
    def repeats(self) -> Repeats:
        """Run again and again under default options, threads aside."""
        options = session_options(replace(DEFAULT, threads=self.settings.threads))
        return repeats(open_session(self.model, options, self.folder), self.feeds())
