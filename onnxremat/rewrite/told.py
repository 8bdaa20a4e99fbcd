"""Which values depend on rows of a batch, and where the rows lie: of a graph, or of a body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from onnxremat.graph.batch_axes import Place
from onnxremat.graph.ir import Graph
from onnxremat.graph.spans import Facts, Span


@dataclass
class Told:
    """What is known of the values of a graph, or of a body, as its ops are gone through.

    Attributes:
        places: where rows of the batch lie.
        names: values that depend on rows; none that follow from sizes alone.
        of_all: those of them that are known to be of all rows, or of one for all.
    """

    graph: Graph
    batch: int
    places: Mapping[str, Place]
    names: set[str]
    of_all: set[str] = field(default_factory=set)

    @cached_property
    def facts(self) -> Facts:
        """With the sizes of the run that was seen: to look at rows, not to write any."""
        known = {name: replace(each, seen=False) for name, each in self.graph.tensors.items()}
        return Facts(replace(self.graph, tensors=known))

    def own(self, name: str) -> Span:
        """Half of the rows of a value."""
        place = self.places[name]
        return Span(place.axis, 0, self.batch // 2 * place.inner)

    def placed(self, name: str) -> Place | None:
        """Where the rows of a value lie that depends on them."""
        return self.places.get(name) if name in self.names else None
