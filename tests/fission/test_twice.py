"""Large images that are made a second time instead of held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.fission import choose
from onnxremat.fission.choose import Chooser
from onnxremat.fission.choosers import Choosers
from onnxremat.fission.opened import norms_of, opened, seconds_of
from onnxremat.fission.pricing import Whole
from onnxremat.fission.region import Region
from onnxremat.fission.split import split
from onnxremat.fission.twice import EITHER, as_first, is_again, is_either, twice, twice_for
from onnxremat.graph.ir import Graph
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.in_parts.in_regions import wholes_of, written
from onnxremat.schedule.simulate import simulate
from tests.fission.drawn import Drawn
from tests.toolbox import graph_of, run

ROWS, COLUMNS, WIDE = 48, 6, 16
IMAGE = WIDE * ROWS * COLUMNS * 4  # bytes


@pytest.fixture(scope="module", autouse=True)
def _little_work() -> Iterator[None]:
    """Searches of small graphs end soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "WORK", 60_000)
        yield


def residual(early: bool = False) -> onnx.ModelProto:
    """A block with two normalisations, of an image that a small one is made into.

    Args:
        early: the shortcut's product is made before anything else of the image.
    """
    g = Drawn(0)
    shape = (1, WIDE, ROWS, COLUMNS)
    g.shapes["x"] = (1, 2, ROWS, COLUMNS)
    x = g.op("Conv", ["x", g.weight(WIDE, 2, 3, 3)], shape, pads=[1] * 4)
    weight = g.weight(WIDE, WIDE, 1, 1)
    beside = g.op("Conv", [x, weight], shape) if early else ""
    y = _normed(g, x)
    beside = beside or g.op("Conv", [x, weight], shape)
    y = g.op("Conv", [y, g.weight(WIDE, WIDE, 3, 3)], shape, pads=[1] * 4)
    y = _normed(g, y)
    y = g.op("Conv", [y, g.weight(WIDE, WIDE, 3, 3)], shape, pads=[1] * 4)
    y = g.op("Add", [y, beside], shape)
    return g.model("x", [g.op("Conv", [y, g.weight(1, WIDE, 1, 1)], (1, 1, ROWS, COLUMNS))])


def _normed(g: Drawn, x: str) -> str:
    shape = g.shapes[x]
    ones, zeros = g.constant(np.ones(WIDE)), g.constant(np.zeros(WIDE))
    return g.op("Relu", [g.op("InstanceNormalization", [x, ones, zeros], shape)], shape)


def gated() -> onnx.ModelProto:
    """Squeeze and excite: an image times what comes of its mean."""
    g = Drawn(0)
    shape, one = (1, WIDE, ROWS, COLUMNS), (1, WIDE, 1, 1)
    g.shapes["x"] = (1, 2, ROWS, COLUMNS)
    x = g.op("Conv", ["x", g.weight(WIDE, 2, 3, 3)], shape, pads=[1] * 4)
    gate = g.op("Sigmoid", [g.op("GlobalAveragePool", [x], one)], one)
    y = g.op("Mul", [x, gate], shape)
    return g.model("x", [g.op("Conv", [y, g.weight(1, WIDE, 1, 1)], (1, 1, ROWS, COLUMNS))])


def _ways(model: onnx.ModelProto) -> list[Whole]:
    """The graph with its normalisations written out, and with second makers."""
    graph = build_graph(model)
    costs = analytic_costs(graph)
    wide = opened(graph, [norm.name for norm in norms_of(graph)])
    both = twice(wide)
    first = Whole(wide, seconds_of(wide, costs.seconds), {})
    seconds = as_first(both, first.seconds)
    return [first, replace(first, graph=both, seconds=seconds, again=True)]


def _agrees(graph: Graph, parts: Graph, peak: int) -> None:
    """Parts give what the whole gives, and take what was predicted."""
    wanted, found = run(graph), run(parts)
    for name, values in wanted.outputs.items():
        np.testing.assert_allclose(found.outputs[name], values, rtol=1e-4, atol=1e-5)
    live = max(kernel.live for kernel in found.kernels)
    assert max(simulate(parts).live) == peak
    assert peak == pytest.approx(live, rel=0.02, abs=512)


@pytest.mark.parametrize("net", [pytest.param(residual, marks=pytest.mark.slow), gated])
def test_less_than_an_image_is_held_until_its_sums_are_known(
    net: Callable[[], onnx.ModelProto],
) -> None:
    held, again = _ways(net())
    alone = Chooser(held).within(0)
    choosers = Choosers([held, again])
    found = choosers.within(int(0.8 * IMAGE))
    assert found.peak <= 0.8 * IMAGE < IMAGE < alone.peak
    assert found.seconds > choosers.whole.seconds
    wide = twice_for(held.graph, [name for region in found.regions for name in region.ops])
    _agrees(held.graph, split(wide, found.regions, 1), found.peak - found.beside)
    # Where no way keeps a limit none is left out, and the least is found that any has.
    assert Choosers([held, again]).within(0).peak <= min(found.peak, 0.8 * alone.peak)
    # Where nothing has to be made again nothing is.
    loose = choosers.within(int(1.1 * alone.peak))
    assert not any(region.again for region in loose.regions)


@pytest.fixture(scope="module")
def searched() -> tuple[Graph, Chooser, tuple[Region, ...]]:
    """A block without second makers, what was tried with them, and regions that make again."""
    held, both = _ways(residual())
    chooser = Chooser(both)
    regions = chooser.within(int(0.8 * IMAGE)).regions
    chooser.left = 1 << 40
    return held.graph, chooser, regions


@pytest.mark.parametrize("rows", [0, 5, 24, ROWS - 1, ROWS])
@pytest.mark.parametrize("every", [False, True])
def test_some_rows_are_held_and_others_made_again(
    searched: tuple[Graph, Chooser, tuple[Region, ...]], rows: int, every: bool
) -> None:
    graph, chooser, regions = searched
    able, ops = chooser.able, chooser.graph.ops
    assert sum(len(able.all_again(region)) for region in regions) == 3
    regions = tuple(
        replace(
            region,
            kept=frozenset(n for name in region.ops for n in ops[chooser.place[name]].writes
                           if every and not name.endswith(EITHER)),
            again=dict.fromkeys(able.all_again(region), rows),
        )
        for region in regions
    )  # fmt: skip
    found = chooser.price(regions)
    assert found is not None
    parts = split(chooser.graph, found.regions, 1)
    _agrees(graph, parts, found.peak - found.beside)
    made = sum(
        parts.tensors[op.outputs[0]].shape[2] for op in parts.ops
        if op.op_type == "Conv" and is_again(op)
    )  # fmt: skip
    if rows == ROWS:
        assert not made
        assert not any(is_again(op) for op in parts.ops)
    elif every:  # each row once: of the image twice, of what is made of it, and of the shortcut
        assert 4 * (ROWS - rows) <= made <= 4 * (ROWS - rows) + 3
    assert not any(is_either(op) for op in parts.ops)


def test_what_is_worth_a_second_maker() -> None:
    made = twice(_ways(residual())[0].graph)
    eithers = [op for op in made.ops if is_either(op)]
    # The image, its first product, and the shortcut's, which is held as long.
    assert len(eithers) == 3
    assert all(made.tensors[op.outputs[0]].bytes == IMAGE for op in eithers)
    # Held across both normalisations the shortcut's product is made again for the last alone.
    names = [op.name for op in twice(_ways(residual(early=True))[0].graph).ops]
    assert len(names) == len(set(names))
    assert sum(name.endswith(EITHER) for name in names) == 3
    # Until then it is made where the image is read again, of the rows that are there.
    late = twice(_ways(residual(early=True))[0].graph)
    place = {op.name: at for at, op in enumerate(late.ops)}
    first = next(op for op in late.ops if is_either(op))
    shortcut = next(
        op for op in late.ops if op.op_type == "Conv" and op.inputs[0] == first.outputs[0]
    )
    assert place[first.name] < place[shortcut.name]
    wide = _ways(residual(early=True))[0].graph
    before = next(op for op in wide.ops if op.name == shortcut.name)
    assert before.inputs[0] == first.inputs[0]
    assert before.outputs == shortcut.outputs
    plain = graph_of("g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Exp (x) y = Neg (a) }")
    assert twice(plain) is plain
    # Held beyond the next normalisation anyway: the input of a block without a shortcut's product.
    block = graph_of(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = Exp (x) m = GlobalAveragePool (a) b = Mul (a, m) c = Exp (b)
            n = GlobalAveragePool (c) d = Mul (c, n) y = Add (d, a)
        }"""
    )
    assert [op.name for op in twice(block).ops if is_either(op)] == [f"c{EITHER}"]


def test_it_goes_through_a_file() -> None:
    region = Region(("a",), {"y": 2}, (1, 1), {}, again={f"y{EITHER}": 5}, until={"y": 5})
    assert Region.from_json(region.to_json()) == region
    plain = Region(("a",), {"y": 2}, (1, 1), {})
    old = {k: v for k, v in plain.to_json().items() if k not in ("again", "until")}
    assert Region.from_json(old) == plain


def test_a_sum_of_two_images_is_moved_once() -> None:
    made = twice(
        graph_of(
            """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
                a = Exp (x) b = Sin (x) both = Add (a, b)
                m = GlobalAveragePool (a) n = GlobalAveragePool (b)
                c = Mul (a, m) d = Mul (b, n) e = Add (c, d) y = Add (e, both)
            }"""
        )
    )
    names = [op.outputs[0] for op in made.ops]
    assert len(names) == len(set(names))
    assert names.index("both") == names.index(f"a{EITHER}") + 1
    there = set(made.inputs)
    for op in made.ops:
        assert there.issuperset(op.reads)
        there.update(op.writes)


def test_second_makers_are_found_whatever_is_written_out() -> None:
    """A region may hold the second maker of an image and nothing of the normalisation it is for."""
    graph = build_graph(residual())
    both = wholes_of(graph, analytic_costs(graph), None)[-1].graph
    maker = next(op for op in both.ops if is_again(op))
    whole = Region((maker.name,), {maker.outputs[0]: 2}, (1, 1), {})
    parts = written(graph, [whole], None)
    for name, values in run(graph).outputs.items():
        np.testing.assert_allclose(run(parts).outputs[name], values, rtol=1e-4, atol=1e-5)
