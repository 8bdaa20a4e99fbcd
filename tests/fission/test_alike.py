"""Parts that are like one before are priced as that one again: with the same bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import numpy as np
import onnx
import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.fission import part
from onnxremat.fission.choose import Chooser
from onnxremat.fission.choosers import Choosers
from onnxremat.fission.pricing import Prices, Whole
from onnxremat.fission.region import Region
from onnxremat.fission.writer import Writer
from onnxremat.graph.ir import Graph
from onnxremat.graph.spans import CannotSplitError
from onnxremat.ort.infer import build_graph
from tests.fission.drawn import image_net, token_net
from tests.fission.test_choose import grown
from tests.fission.test_split import _regions
from tests.fission.test_twice import IMAGE, _ways, residual


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many ops were there again, of each fragment that was written."""
    counts: list[int] = []
    written = Prices._digested

    def counted(prices: Prices, writer: Writer, given: object) -> object:
        counts.append(sum(len(each.ops) for each in writer.again))
        return written(prices, writer, given)  # type: ignore[arg-type]

    monkeypatch.setattr(Prices, "_digested", counted)
    return counts


def _same(of: Whole, regions: tuple[Region, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Priced with parts that are like others, and with all parts written."""
    try:
        found = Prices(of).priced(regions)
    except CannotSplitError:
        return
    with monkeypatch.context() as patched:
        patched.setattr(part, "FEWEST", 1 << 40)
        wanted = Prices(of).priced(regions)
    assert found.levels == wanted.levels
    assert (found.peak, found.beside) == (wanted.peak, wanted.beside)
    np.testing.assert_allclose(found.effort, wanted.effort, rtol=1e-9)


def _whole(graph: Graph) -> Whole:
    costs = analytic_costs(graph)
    return Whole(graph, costs.seconds, costs.scratch)


@pytest.mark.parametrize("net", [image_net, token_net])
def test_random_graphs(
    net: Callable[[int], onnx.ModelProto], copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(30):
        graph, draw = build_graph(net(seed)), Random(seed)
        regions = (
            replace(region, parts=(1,) * draw.choice([4, 6, 8, 12]))
            for region in _regions(graph, draw)
        )
        _same(_whole(graph), tuple(regions), monkeypatch)
    assert sum(copied) > 100


def test_images_that_grow(copied: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is twice as large inside is alike in every second part."""
    of = _whole(build_graph(grown()))
    chosen = Chooser(of).within(0).regions
    for parts in (5, 16, 21):
        regions = (replace(region, parts=(1,) * parts) for region in chosen)
        _same(of, tuple(regions), monkeypatch)
        regions = (replace(r, parts=(1,) * parts, kept=frozenset()) for r in chosen)
        _same(of, tuple(regions), monkeypatch)
    assert sum(copied) > 100


@pytest.mark.slow
def test_what_is_made_again(copied: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    held, again = _ways(residual())
    found = Choosers([held, again]).within(int(0.8 * IMAGE)).regions
    del copied[:]
    for rows in (0, 5, 24):
        regions = (
            replace(region, parts=(1,) * 12, again=dict.fromkeys(region.again, rows))
            for region in found
        )
        _same(again, tuple(regions), monkeypatch)
    assert sum(copied) > 100
