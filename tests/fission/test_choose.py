"""What a search among regions, parts and kept rows finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.table import KernelCosts
from onnxremat.fission import choose
from onnxremat.fission.candidates import Regions
from onnxremat.fission.choose import Chooser
from onnxremat.fission.choosers import Choosers
from onnxremat.fission.paper import Paper
from onnxremat.fission.pricing import Whole
from onnxremat.fission.split import split
from onnxremat.fission.tuning import COUNTS
from onnxremat.fission.writer import CONSTANT
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.unforeseen import unforeseen
from onnxremat.ort.infer import build_graph
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.study_problem import read_subject
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.restore import restored
from onnxremat.schedule.simulate import simulate
from onnxremat.studies.curve import curve
from onnxremat.studies.parts_curve import parts_curve
from onnxremat.units import parse_budget
from tests.fission.drawn import Drawn
from tests.toolbox import run


def bottlenecks(rows: int = 96, wide: int = 96, blocks: int = 3) -> onnx.ModelProto:
    """Blocks of MobileNetV2: narrow values, and wide ones between two of them."""
    g = Drawn(0)
    g.shapes["x"], x = (1, 8, rows, 32), "x"
    shape = (1, wide, rows, 32)
    for _ in range(blocks):
        y = g.op("Relu", [g.op("Conv", [x, g.weight(wide, 8, 1, 1)], shape)], shape)
        y = g.op("Conv", [y, g.weight(wide, 1, 3, 3)], shape, pads=[1] * 4, group=wide)
        x = g.op("Conv", [y, g.weight(8, wide, 1, 1)], (1, 8, rows, 32))
    return g.model("x", [x])


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Those blocks."""
    return build_graph(bottlenecks())


def test_rows_are_kept_where_that_is_quickest_value_by_value(graph: Graph) -> None:
    """Those of narrow values are, those of the wide ones that they are made into are made again."""
    chooser = Chooser(Whole(graph, analytic_costs(graph).seconds, {}))
    limit = int(0.3 * chooser.whole.peak)
    found = chooser.within(limit)
    (region,) = found.regions
    narrow = {op.outputs[0] for op in graph.ops if graph.tensors[op.outputs[0]].shape[1] == 8}
    first = next(op.outputs[0] for op in graph.ops)
    assert narrow - set(graph.outputs) <= region.kept
    assert first not in region.kept
    for kept in chooser.able.policies(region):
        for parts in COUNTS:
            alike = chooser.prices.priced((replace(region, kept=kept, parts=(1,) * parts),))
            assert alike.peak > limit or alike.seconds > found.seconds
    made = run(split(graph, found.regions, 1)).outputs
    for name, values in run(graph).outputs.items():
        np.testing.assert_array_equal(made[name], values)


def test_ways_to_treat_rows_do_not_depend_on_what_is_kept_now(graph: Graph) -> None:
    able = Regions(Paper(graph))
    region = able.within(0, len(graph.ops), 0)[0]
    values = frozenset(name for op in graph.ops for name in op.writes)
    assert able.policies(replace(region, kept=values)) == able.policies(region)
    assert len(able.policies(region)) == 3


def test_under_default_options_parts_need_little_more(graph: Graph) -> None:
    """Buffers of parts do not wait for the next part; planned anew, nothing is left of that."""
    region = Regions(Paper(graph)).within(0, len(graph.ops), 0)[0]
    plain = split(graph, [replace(region, parts=(1,) * 6)], 1)
    made = unforeseen(plain, [name for name in plain.tensors if name.startswith(CONSTANT)])
    default, held, alone = run(made, DEFAULT), run(plain, DEFAULT), run(made)
    assert default.live_peak < 1.4 * alone.live_peak < held.live_peak
    assert max(simulate(made).live) == max(kernel.live for kernel in alone.kernels)  # in place, too
    for name, values in run(graph).outputs.items():
        np.testing.assert_array_equal(alone.outputs[name], values)
        np.testing.assert_allclose(default.outputs[name], values, atol=1e-5)
    model = to_model(made)
    model.metadata_props.add(key="onnxremat.plan", value="{}")
    again = build_graph(restored(model))
    assert [op.op_type for op in again.ops] == [op.op_type for op in plain.ops]
    assert {name: t.shape for name, t in build_graph(model).tensors.items()} == {
        name: t.shape for name, t in made.tensors.items()
    }


def grown(size: int = 8) -> onnx.ModelProto:
    """A small image made eight times as large."""
    g = Drawn(0)
    g.shapes["x"], x, width = (1, 16, size, size), "x", 16
    for _ in range(3):
        size, half = 2 * size, width // 2
        x = g.op(
            "ConvTranspose", [x, g.weight(width, half, 4, 4)], (1, half, size, size),
            strides=[2, 2], pads=[1] * 4,
        )  # fmt: skip
        x, width = g.op("Relu", [x], g.shapes[x]), half
    return g.model("x", [x])


def test_the_least_memory_takes_no_more_time_than_that_limit() -> None:
    """What is found without a limit that it could keep is looked for again, for its time."""
    graph = build_graph(grown(4))
    costs = analytic_costs(graph)
    chooser = Chooser(Whole(graph, costs.seconds, costs.scratch))
    least = chooser.within(0)
    asked = Chooser(chooser.of).within(least.peak)
    assert least.peak == asked.peak < 0.4 * chooser.whole.peak
    assert least.seconds <= asked.seconds


def test_a_search_ends_with_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was found until then, whatever was asked before."""
    graph = build_graph(bottlenecks(48, 48, 2))
    whole = Whole(graph, analytic_costs(graph).seconds, {})
    all_of_it = Chooser(whole)
    least = all_of_it.within(0).peak
    monkeypatch.setattr(choose, "WORK", 1000)
    monkeypatch.setattr(choose, "FINE", 0)
    short, other = Chooser(whole), Chooser(whole)
    found = short.within(0)
    assert len(short.known) < len(all_of_it.known)
    assert least < found.peak < short.whole.peak
    for share in (0.9, 0.7, 0.5):
        other.within(int(share * short.whole.peak))
    assert other.within(0).peak == found.peak


def test_a_late_search_ends_with_what_keeps_the_limit() -> None:
    """What has to be done with it has its time; before that nothing is given up."""
    graph = build_graph(bottlenecks(32, 32, 1))
    costs = analytic_costs(graph)
    whole = Whole(graph, costs.seconds, costs.scratch)
    calm, late = Choosers([whole]), Choosers([whole], late=lambda: True)
    limit = int(0.6 * calm.whole.peak)
    found, quick = calm.within(limit), late.within(limit)
    assert found.peak <= limit
    assert quick.peak <= limit
    assert found.seconds <= quick.seconds
    assert len(late._made[0].known) < len(calm._made[0].known)
    least = calm.within(0)
    assert late.within(0).peak == least.peak  # nothing keeps it: all is looked at


def test_where_rungs_end_small_steps_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """To what keeps the limit, so that a looser one is kept where a tighter one is."""
    graph = build_graph(bottlenecks(48, 48, 2))
    whole = Whole(graph, analytic_costs(graph).seconds, {})
    monkeypatch.setattr(choose, "WORK", 2000)
    monkeypatch.setattr(choose, "FINE", 0)
    rungs = Chooser(whole).within(0).peak
    monkeypatch.setattr(choose, "FINE", 30_000)
    least = Chooser(whole).within(0).peak
    assert least < 0.95 * rungs
    for limit in range(least, rungs, (rungs - least) // 3):
        assert Chooser(whole).within(limit).peak <= limit


def test_where_no_parts_help_nothing_is_in_parts() -> None:
    """Without workspace, the last of these ops needs as much in parts: its output is handed out."""
    graph = build_graph(grown(4))
    assert not Chooser(Whole(graph, analytic_costs(graph).seconds, {})).within(0).regions


def test_ops_that_cost_nothing_are_ranked_all_the_same(graph: Graph) -> None:
    chooser = Chooser(Whole(graph, {}, {}))
    assert chooser._rank(chooser.whole, chooser.whole, 0) == (1, 0.0)


def test_a_curve_has_budgets_that_only_parts_keep() -> None:
    settings = Settings(target="portable", measure=False, not_counted=("session",))
    subject = read_subject(bottlenecks(64, 64, 2), settings)
    options = PlanOptions(work=300, threads=1)
    found = curve(subject, [parse_budget("0.4x")], 2, options)
    assert [point.overhead for point in found.points] == [None]
    (point,) = found.parts
    assert point.process <= point.budget == found.points[0].budget
    assert 0 < point.overhead < 1
    further, none = parts_curve(subject, found.points, options, further=True, say=str)
    least = further[-1]
    assert not none
    assert least.peak < point.peak
    off = replace(subject, model=replace(subject.model, settings=replace(settings, fission=())))
    assert parts_curve(off, found.points, options, further=True, say=str) == ([], "--fission off")


def test_a_curve_has_no_parts_whose_nodes_take_more_than_they_spare() -> None:
    """Of a net of small values: what onnxruntime keeps of each node is more than they are."""
    settings = Settings(target="portable", measure=False)
    subject = read_subject(bottlenecks(16, 16, 2), settings)
    found = curve(subject, None, 2, PlanOptions(work=300, threads=1))
    assert found.points
    assert not found.parts
    assert "none takes less than the whole" in found.whole


def two_products() -> onnx.ModelProto:
    """Tokens made eight times as wide in between."""
    g = Drawn(0)
    g.shapes["x"], x = (256, 32), "x"
    for wide in (256, 32):
        x = g.op("MatMul", [x, g.weight(g.shapes[x][1], wide)], (256, wide))
        x = g.op("Relu", [x], g.shapes[x])
    return g.model("x", [x])


@pytest.mark.parametrize("net", [lambda: bottlenecks(32, 32, 2), lambda: grown(4), two_products])
def test_where_kernels_cost_less_no_more_memory_is_found(
    net: Callable[[], onnx.ModelProto],
) -> None:
    """Regions are looked for at fixed prices, and judged by the true ones."""
    graph = build_graph(net())
    costs = analytic_costs(graph)
    whole = Whole(graph, costs.seconds, costs.scratch)
    peaks = []
    for call in (3e-5, 3e-6, 3e-7):
        choosers = Choosers([replace(whole, kernels=KernelCosts(call, 2e5 / call))])
        found = choosers.leanest(1.3 * choosers.whole.seconds)
        assert found.seconds <= 1.3 * choosers.whole.seconds
        peaks.append(found.peak)
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < choosers.whole.peak
