"""An original model, and what it returns on seeded inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import load_feeds, seeded_feeds
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.profile import Feeds
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.original.as_it_came import AsItCame
from onnxremat.pipeline.original.first_values import without_first_values
from onnxremat.pipeline.original.source import Source, read_source
from onnxremat.pipeline.settings import Settings
from onnxremat.session.repeats import Repeats, drawn_outputs, repeats


@dataclass(frozen=True)
class Reference:
    """An original, read once.

    Attributes:
        graph: as it is read, its dimensions bound.
        given: the same as it came, which is what runs.
        settings: shapes, inputs and threads.
    """

    graph: Graph
    given: AsItCame
    settings: Settings

    @classmethod
    def read(cls, source: Source, settings: Settings) -> Reference:
        """Raises:
        ModelError: the original cannot be read.
        """
        model, folder, _ = read_source(source)
        bound = bind(inline_functions(model), settings.shapes, settings.dims)
        bound, _ = without_first_values(bound)  # as it was planned: inputs of a training step
        graph = build_graph(bound, folder)
        return cls(graph, AsItCame.of(source, to_model(graph), folder), settings)

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
        return self.given.outputs(feeds)

    @cached_property
    def repeats(self) -> Repeats:
        """Run again and again under default options, threads aside."""
        options = replace(DEFAULT, threads=self.settings.threads)
        drawn = drawn_outputs(self.graph)
        return repeats(self.given.session(options), self.feeds(), drawn=drawn)
