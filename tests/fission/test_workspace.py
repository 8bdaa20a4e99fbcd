"""Workspace of a part that is more than its share of the whole's."""

from __future__ import annotations

import pytest

from onnxremat.fission import pricing
from onnxremat.fission.pricing import Prices, Whole
from onnxremat.fission.region import Region
from onnxremat.fission.split import split
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import profile
from tests.graph.axis_cases import Case, weights
from tests.toolbox import ONE


def test_windows_of_a_part_with_few_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a whole the convolution writes out blocks of its windows alone."""
    inputs = [(1, 256, 32, 16), weights(256, 256, 3, 3)]
    graph = build_graph(Case("Conv", inputs, frozenset(), {"pads": [1] * 4}).model())
    region = Region(("op",), {"y0": 2}, (1, 1, 1, 1), {"y0": 1})
    found = profile(to_model(split(graph, [region], 1)), seeded_feeds(graph), ONE)
    most = max(each.scratch for each in found.kernels if each.op_type == "Conv")
    assert most > 128 << 10
    whole = Whole(graph, {"op": 1e-3}, {"op": 64 << 10})
    assert Prices(whole).priced((region,)).levels[0] > most
    monkeypatch.setattr(pricing, "windows_written_out", lambda *_: 0)
    assert Prices(whole).priced((region,)).levels[0] < most
