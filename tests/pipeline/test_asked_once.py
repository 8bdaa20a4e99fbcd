"""Nothing is asked of onnxruntime twice, and no graph is run twice to be looked at."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx
import pytest

import models
import onnxremat
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import InfeasibleError
from onnxremat.pipeline import asked
from onnxremat.pipeline.answers import content
from onnxremat.pipeline.in_parts import against_whole
from tests.limits import LONG

SETTINGS = onnxremat.Settings(threads=1, costs=analytic_costs)
OPTIONS = onnxremat.PlanOptions(time_limit=LONG, work=200, threads=1)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, bytes]]:
    """How often each model was asked about."""
    found: Counter[tuple[str, bytes]] = Counter()

    def counted(where: Any, name: str) -> None:
        do = getattr(where, name)

        def counting(model: onnx.ModelProto, *rest: Any) -> Any:
            found[name, content(model)] += 1
            return do(model, *rest)

        monkeypatch.setattr(where, name, counting)

    counted(asked, "lasting_tensors")
    counted(asked, "profiled")
    counted(against_whole, "named_outputs")
    return found


@pytest.fixture
def net() -> onnx.ModelProto:
    return models.build("resnet18", batch=4, size=64)


def test_the_least_memory_asks_once(
    net: onnx.ModelProto, seen: Counter[tuple[str, bytes]], warm: None
) -> None:
    onnxremat.optimize(net, budget="min", settings=SETTINGS, options=OPTIONS, bench_seconds=0)
    assert {name for name, _ in seen} == {"lasting_tensors", "profiled", "named_outputs"}
    assert max(seen.values()) == 1


def test_the_whole_is_not_run_for_every_number_of_parts(
    net: onnx.ModelProto, seen: Counter[tuple[str, bytes]], warm: None
) -> None:
    with pytest.raises(InfeasibleError):
        onnxremat.optimize(net, budget="0.5x", settings=SETTINGS, options=OPTIONS)
    assert max(seen.values()) == 1


def test_order_is_told_apart_where_it_matters(net: onnx.ModelProto) -> None:
    other = onnx.ModelProto()
    other.CopyFrom(net)
    other.graph.node.reverse()
    assert content(other, ordered=False) == content(net, ordered=False)
    assert content(other) != content(net)
    other.graph.node[0].name += "x"
    assert content(other, ordered=False) != content(net, ordered=False)
