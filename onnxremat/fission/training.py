"""The forward pass of a training step in parts, before it is differentiated.

Along the batch all of it goes in parts, so that what a part stores for its way back is gone before
the next part begins: micro-batches. Along rows of an image it is the stretches of the forward pass
that make the largest values; the last of them goes back part by part together with the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from onnxremat.errors import UnsupportedError
from onnxremat.fission.candidates import Regions
from onnxremat.fission.paper import Paper
from onnxremat.fission.region import Region
from onnxremat.fission.split import split_apart
from onnxremat.grad.parted import Parted, made_of
from onnxremat.graph.axes import total_of
from onnxremat.graph.ir import Graph, Role
from onnxremat.graph.spans import CannotSplitError

BATCH, ROWS = 0, 2  # axes


@dataclass(frozen=True)
class StepParts:
    """How the forward pass of a step is computed in parts; rows that two parts need are computed in
    both, which takes less time than keeping them and joining their cotangents.

    Attributes:
        axis: of the batch, or of an image's rows.
        parts: how many.
        share: of the largest value: ops that make one of as many bytes are in parts; 0 for all.
    """

    axis: int
    parts: int
    share: float = 0.0

    def __str__(self) -> str:
        what = "the batch" if self.axis == BATCH else "rows of the largest values"
        return f"{what} in {self.parts} parts"

    def __call__(self, graph: Graph, prediction: str, cotangent: str) -> Parted:
        """The forward pass in parts.

        Args:
            graph: it, the loss, and the cotangent of the prediction.

        Raises:
            UnsupportedError: it does not go.
        """
        try:
            regions = self.regions(graph, _behind(graph, cotangent))
            made, tiles = split_apart(graph, regions, 1, (prediction, cotangent))
        except CannotSplitError as error:
            raise self._refused(str(error)) from error
        pairs = {prediction: cotangent}
        if tiles:
            pairs = _paired(tiles.get(prediction, ()), tiles.get(cotangent, ()))
        if not regions or not pairs:
            raise self._refused("no stretch of it that makes large values splits so")
        return Parted(made, pairs)

    def _refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"the forward pass does not go with {self}", why=why)

    def regions(self, graph: Graph, without: Collection[str] = ()) -> list[Region]:
        """Those of a forward pass with its loss.

        Args:
            without: ops that are in none.

        Raises:
            CannotSplitError: the shape of a value is not known.
        """
        able, found = Regions(Paper(graph)), list[Region]()
        taken = set(without)
        for first, end, peak in _stretches(graph, self.share):
            fitting = [
                region
                for region in able.within(first, end, peak, taken, every=self.axis == BATCH)
                if set(region.axes.values()) == {self.axis} and able.length(region) >= self.parts
            ]
            if fitting:
                best = max(fitting, key=lambda region: len(region.ops))
                found.append(replace(best, parts=(1,) * self.parts))
                taken.update(best.ops)
        return found


def _behind(graph: Graph, cotangent: str) -> set[str]:
    """Ops that work on what was summed up for the loss alone: they run behind all parts."""
    back, found = made_of(graph.ops, (cotangent,)), set[str]()
    sums = set[str]()
    for op in graph.ops:
        if op.name not in back and not sums.isdisjoint(op.reads):
            found.add(op.name)
            sums.update(op.writes)
        elif total_of(op) is not None:
            sums.update(op.writes)
    return found


def _paired(
    values: Sequence[tuple[str, object]], cotangents: Sequence[tuple[str, object]]
) -> dict[str, str]:
    """Cotangent by stretch; empty where they are not of the same stretches."""
    if [span for _, span in values] != [span for _, span in cotangents]:
        return {}
    return {value: made for (value, _), (made, _) in zip(values, cotangents, strict=True)}


def _stretches(graph: Graph, share: float) -> Iterator[tuple[int, int, int]]:
    """First op, end and the op that makes most of stretches of the order which make values of such
    a share of the largest. An op that makes a small value of a large one ends its stretch; the
    last stretch goes on to the loss."""
    ops, tensors = graph.ops, graph.tensors
    data = {name for name in graph.inputs if tensors[name].role is Role.INPUT}
    made = list[int]()  # 0 of what is made of weights alone
    for op in ops:
        fed = not data.isdisjoint(op.reads)
        data.update(op.writes if fed else ())
        made.append(max((tensors[n].bytes for n in op.writes if fed), default=0))
    large = [size >= share * max(made) for size in made]
    first = 0
    while first < len(ops):
        if not large[first]:
            first += 1
            continue
        end = first
        while end < len(ops) and large[end]:
            end += 1
        inside = {name for op in ops[first:end] for name in op.writes}
        while end < len(ops) and not large[end] and not inside.isdisjoint(ops[end].reads):
            end += 1
        if not any(large[end:]):
            end = len(ops)
        yield first, end, max(range(first, end), key=made.__getitem__)
        first = end
