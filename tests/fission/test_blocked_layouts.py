"""Convolutions that are laid out in blocks of channels, cut along any axis."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from onnxremat.fission.candidates import Regions
from onnxremat.fission.paper import Paper
from onnxremat.fission.region import Region
from onnxremat.fission.split import split
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.spans import CannotSplitError
from onnxremat.ort.offline import optimised_for
from onnxremat.ort.profile import named_outputs
from onnxremat.pipeline.in_parts.in_regions import channels_per_block
from tests.fission.drawn import Drawn

SHAPE = (1, 16, 12, 12)
ROWS, COLUMNS = 2, 3


def blocks(seed: int) -> Graph:
    """Convolutions of an image, some of which read one before the last, as this processor has
    them."""
    g = Drawn(seed)
    g.shapes["x"], made = SHAPE, ["x"]
    for _ in range(6):
        read = made[-1] if len(made) < 3 or g.draw.random() < 0.7 else made[-2]
        y = g.op("Conv", [read, g.weight(16, 16, 3, 3)], SHAPE, pads=[1] * 4)
        made.append(g.op("Relu", [y], SHAPE))
    graph = optimised_for(g.model("x", [made[-1]]), "host", None).graph
    if channels_per_block(graph) == 1:
        pytest.skip("onnxruntime has no blocked layout on this processor")
    return graph


def _same(graph: Graph, regions: list[Region]) -> None:
    made = split(graph, regions, channels_per_block(graph))
    feeds = {"x": np.random.default_rng(0).normal(size=SHAPE).astype("f4")}
    one, other = (named_outputs(to_model(each), feeds, None) for each in (graph, made))
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=0, atol=2e-6)


def _along(graph: Graph, place: int, axis: int, parts: int) -> Region:
    """An op alone, along an axis."""
    found = Regions(Paper(graph)).within(place, place + 1, place)
    return replace(next(r for r in found if axis in r.axes.values()), parts=(1,) * parts)


def test_neighbours_are_cut_along_any_axes() -> None:
    graph = blocks(0)
    convolutions = [at for at, op in enumerate(graph.ops) if op.op_type == "Conv"][1:4]
    for axes in itertools.product((ROWS, COLUMNS), repeat=3):
        places = zip(convolutions, axes, (2, 3, 4), strict=True)
        _same(graph, [_along(graph, *each) for each in places])


@pytest.mark.parametrize("seed", range(12))
def test_random_regions_make_the_whole(seed: int) -> None:
    graph, draw = blocks(seed), Random(seed)
    able, taken, regions = Regions(Paper(graph)), set[str](), list[Region]()
    for _ in range(3):
        first = draw.randrange(len(graph.ops))
        end = draw.randint(first + 1, len(graph.ops))
        found = able.within(first, end, draw.randrange(first, end), taken)
        if found:
            region = replace(draw.choice(found), parts=(1,) * draw.randint(2, 4))
            regions.append(region)
            taken.update(region.ops)
    try:
        _same(graph, regions)
    except CannotSplitError:  # each needs what the other makes
        assert len(regions) > 1
