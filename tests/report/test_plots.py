"""Plots show the numbers they are given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure

from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph, Op, Tensor
from onnxremat.report.plots import figures
from onnxremat.report.plots.curve import CurveView, draw_curve
from onnxremat.report.plots.figures import byte_unit, second_unit, shortened
from onnxremat.report.plots.losses import draw_losses
from onnxremat.report.plots.timeline import View, draw_timeline, edges, measured_line
from onnxremat.report.sweep import bounds, infeasible_until, plans
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.simulate import simulate
from onnxremat.units import format_bytes
from tests.report.conftest import ROWS, Case, Row


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were written."""
    found: list[Figure] = []

    class Kept(Figure):
        def __init__(self, **options: object) -> None:
            super().__init__(**options)
            found.append(self)

    monkeypatch.setattr(figures, "Figure", Kept)
    return found


def words(figure: Figure) -> str:
    """All text of a figure."""
    texts = list(figure.texts)
    for axes in figure.axes:
        texts += [*axes.texts, axes.xaxis.label, axes.yaxis.label]
        legend = axes.get_legend()
        texts += legend.get_texts() if legend else []
    return "\n".join(text.get_text() for text in texts)


def picture(path: Path) -> np.ndarray:
    return image.imread(path)[:, :, :3]


def test_timeline_png_is_a_plot(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "t.png"
    view = View(
        case.rewritten.graph, case.predicted, case.run.profile, case.predicted.peak, case.base,
        "chain",
    )  # fmt: skip
    draw_timeline(view, path)
    pixels = picture(path)
    assert pixels.shape[0] > 600
    assert pixels.shape[1] > 1200
    filled = (pixels < 0.97).any(axis=2).mean()
    assert 0.2 < filled < 0.9
    assert len(np.unique((pixels * 15).astype(int).reshape(-1, 3), axis=0)) > 20
    assert [p.name for p in tmp_path.iterdir()] == ["t.png"]


@pytest.mark.parametrize("axis", ["time", "steps"])
def test_timeline_says_its_numbers(
    case: Case, tmp_path: Path, drawn: list[Figure], axis: str
) -> None:
    view = View(
        case.rewritten.graph, case.predicted, case.run.profile, 98765, case.base, "chain", axis
    )
    draw_timeline(view, tmp_path / "t.png")
    text = words(drawn[0])
    for size in (case.predicted.peak, case.run.peak, case.base.peak, 98765):
        assert format_bytes(size) in text
    assert case.predicted.ops[case.predicted.peak_step] in text
    assert ("step (executed op)" in text) == (axis == "steps")
    again = sum(case.seconds[op.origin] for op in case.rewritten.graph.ops if op.origin)
    assert f"{again / case.base.total_seconds:+.1%} predicted time" in text
    assert drawn[0].axes[0].get_ylim()[1] * 1024 > case.base.peak  # the axis is in KiB
    assert "of the\nbudget" not in text
    draw_timeline(replace(view, whole=1 << 30), tmp_path / "t.png")
    assert "of the\nbudget" in words(drawn[1])


def test_measured_line_has_the_kernels_bytes(case: Case) -> None:
    view = View(case.rewritten.graph, case.predicted, case.run.profile)
    at, rows = measured_line(view)
    assert len(rows) == len(case.run.profile.kernels) + 1
    assert rows.max() == case.run.peak
    assert (np.diff(at) >= 0).all()
    assert at[-1] == pytest.approx(case.predicted.total_seconds)


def test_fused_kernels_are_left_out_of_the_measured_line(case: Case) -> None:
    renamed = replace(case.run.profile.kernels[3], name="made by fusion")
    kernels = (*case.run.profile.kernels[:3], renamed, *case.run.profile.kernels[4:])
    changed = replace(case.run.profile, kernels=kernels)
    view = View(case.rewritten.graph, case.predicted, changed, axis="steps")
    assert len(measured_line(view)[1]) == len(kernels)


def test_steps_axis_counts_planned_ops_only(case: Case) -> None:
    planned = sum(not is_added(name) for name in case.predicted.ops)
    assert planned < len(case.predicted.ops)
    assert edges(case.predicted, False)[-1] == planned


def test_svg_is_written_and_the_same_every_time(case: Case, tmp_path: Path) -> None:
    texts = []
    for name in ("a.svg", "b.SVG"):
        draw_timeline(View(case.rewritten.graph, case.predicted), tmp_path / name)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert texts[0].startswith("<?xml")
    assert len(re.findall("<path", texts[0])) > 10


def test_three_thousand_steps_and_odd_names(tmp_path: Path, drawn: list[Figure]) -> None:
    graph = _long_graph(3000)
    timeline = simulate(graph, scratch={op.name: 1 << 20 for op in graph.ops})
    title = "a_$title$ " + "that goes on " * 40
    draw_timeline(View(graph, timeline, store_all=timeline, title=title), tmp_path / "t.png")
    width = drawn[0].bbox.x1
    assert all(text.get_window_extent().x1 <= width for text in drawn[0].texts)
    assert "…" in words(drawn[0])


def _long_graph(count: int) -> Graph:
    start = _one_op()
    tensors, ops = dict(start.tensors), []
    model = tensors["y"]
    for index in range(count):
        source, name = f"层$v{index - 1}$" if index else "x", f"层$v{index}$"
        ops.append(Op(f"block/{index}/" + "m" * 60, "Sin", "", (source,), (name,), (), NODE))
        tensors[name] = Tensor(name, 1, (1, 1), 4 << 20, model.role)
    return replace(start, ops=tuple(ops), tensors=tensors, outputs=(name,))


def test_time_is_not_drawn_where_it_is_unknown(
    case: Case, tmp_path: Path, drawn: list[Figure]
) -> None:
    draw_timeline(View(case.graph, simulate(case.graph), axis="time"), tmp_path / "t.png")
    assert "step (executed op)" in words(drawn[0])


@pytest.mark.parametrize("name", ["t.pdf", "t.jpg", "t", "t.png.bak"])
def test_unknown_suffix_names_the_accepted_ones(case: Case, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        draw_timeline(View(case.graph, case.base), tmp_path / name)
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        draw_curve(CurveView(ROWS), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_failed_drawing_keeps_the_old_file(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.png"
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("disk")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(RuntimeError, match="disk"):
        draw_timeline(View(case.graph, case.base), path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["t.png"]


def test_missing_folder_is_one_clear_error(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        draw_timeline(View(case.graph, case.base), tmp_path / "no" / "t.png")


def test_wrong_axis_and_empty_run(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown axis"):
        draw_timeline(View(case.graph, case.base, axis="days"), tmp_path / "t.png")
    empty = simulate(case.graph.with_ops([]))
    with pytest.raises(UsageError, match="nothing to draw"):
        draw_timeline(View(case.graph.with_ops([]), empty), tmp_path / "t.png")


def test_curve_says_its_numbers(tmp_path: Path, drawn: list[Figure]) -> None:
    path = tmp_path / "c.png"
    draw_curve(
        CurveView(
            ROWS, "chain", 100 << 20, chosen=(60 << 20, 0.2), infeasible_below=40 << 20
        ),
        path,
    )  # fmt: skip
    assert 0.05 < (picture(path) < 0.97).any(axis=2).mean() < 0.9
    text = words(drawn[0])
    for part in (
        "60.0 MiB at +20.0% time", "proven infeasible", "40.0 MiB", "chosen", "plan, proven best",
        "proven least", "neither plan nor proof", "budget (MiB)",
    ):  # fmt: skip
        assert part in text
    axes = drawn[0].axes[0]
    left, right = axes.get_xlim()
    assert left < 40 < 100 < right
    assert axes.get_ylim()[1] > 20
    stairs = next(line for line in axes.lines if line.get_drawstyle() == "steps-post")
    assert stairs.get_xdata()[:3].tolist() == [60, 80, 100]
    assert stairs.get_ydata()[:3].tolist() == pytest.approx([20, 5, 0])


def test_curve_without_any_plan(tmp_path: Path) -> None:
    draw_curve(CurveView([Row(10 << 20), ROWS[-1]], store_all_peak=100 << 20), tmp_path / "c.svg")
    assert (tmp_path / "c.svg").stat().st_size > 5000
    with pytest.raises(UsageError, match="no points"):
        draw_curve(CurveView([]), tmp_path / "c.svg")


def test_curves_never_rise() -> None:
    rows = [*ROWS, Row(70 << 20, 69 << 20, 0.30, 0.01, "feasible")]
    assert plans(rows) == [(60 << 20, 0.2), (70 << 20, 0.2), (80 << 20, 0.05), (100 << 20, 0.0)]
    assert bounds(rows) == [(60 << 20, 0.15), (70 << 20, 0.05), (80 << 20, 0.05), (100 << 20, 0.0)]
    alone = [replace(row, any_order=False) if row.budget == 80 << 20 else row for row in rows]
    assert bounds(alone)[1:3] == [(70 << 20, 0.01), (80 << 20, 0.05)]  # in an order of its own
    assert infeasible_until(rows) == 30 << 20
    assert infeasible_until(ROWS[:2]) == 0


@pytest.mark.parametrize(
    ("size", "unit"), [(1500, "B"), (5000, "KiB"), (3 << 20, "MiB"), (3 << 30, "GiB"),
                       (1 << 30, "MiB"), (5 << 40, "TiB")],
)  # fmt: skip
def test_byte_units(size: int, unit: str) -> None:
    assert byte_unit(size)[1] == unit


def test_second_units() -> None:
    assert [second_unit(s)[1] for s in (5, 1, 0.01, 1e-5)] == ["s", "ms", "ms", "µs"]


def test_shortened_keeps_both_ends() -> None:
    assert shortened("abc", 5) == "abc"
    assert shortened("abcdefghij", 5) == "ab…ij"
    assert len(shortened("x" * 99, 8)) == 8


def _one_op() -> Graph:
    from tests.toolbox import graph_of

    return graph_of("g (float[1, 1] x) => (float[1, 1] y) { y = Sin(x) }")


NODE = _one_op().ops[0].node


# Losses


def test_losses_are_drawn_where_they_belong(tmp_path: Path, drawn: list[Figure]) -> None:
    """A run resumed at step 6 in an epoch of which the rest is seen; the next has twice as many."""
    losses = [3.0, 2.0, 1.0, 1.0, 1.0, 0.5]
    draw_losses(losses, tmp_path / "l.png", ends=[8, 12], start=6, validation=[(8, 2.5), (12, 0.7)])
    (figure,) = drawn
    assert "mean loss of the last epoch 0.875, validation loss 0.7" in words(figure)
    step, validation = figure.axes[0].lines
    assert step.get_xdata().tolist() == [7, 8, 9, 10, 11, 12]
    assert step.get_ydata().tolist() == losses
    assert list(validation.get_ydata()) == [2.5, 0.7]
    values, edges_, _ = figure.axes[0].patches[0].get_data()
    assert (list(values), list(edges_)) == ([2.5, 0.875], [6, 8, 12])


def test_losses_over_orders_of_magnitude_get_a_logarithmic_axis(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    draw_losses(list(np.geomspace(3, 1e-3, 50)), tmp_path / "a.png")
    draw_losses(list(np.linspace(3, 1, 20000)), tmp_path / "b.png")
    draw_losses([0.5], tmp_path / "c.png", ends=[0])
    assert [f.axes[0].get_yscale() for f in drawn] == ["log", "linear", "linear"]
    assert len(drawn[1].axes[0].lines[0].get_xdata()) <= 4000
    assert drawn[1].axes[0].lines[0].get_ydata()[-1] == pytest.approx(1, abs=1e-3)
    with pytest.raises(UsageError, match="nothing to draw"):
        draw_losses([], tmp_path / "d.png")
