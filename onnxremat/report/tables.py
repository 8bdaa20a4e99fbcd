"""Tables for people: before and after, timings, a sweep, what is recomputed.

Every function takes plain data and returns something rich can print; :func:`as_text` turns it
into text without colours.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxremat.graph.ir import Graph
from onnxremat.report.comparison import (
    COMPARISON,
    NOISE,
    Facts,
    least,
    signed,
    size,
    statements,
)
from onnxremat.report.literal import LiteralConsole
from onnxremat.report.pages.recomputed import Recomputed, recomputed_ops
from onnxremat.report.sweep import ONE_ORDER, in_one_order
from onnxremat.schedule.plan import Plan
from onnxremat.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from onnxremat.pipeline.bench import Timing
    from onnxremat.studies.points import SweepPoint

TAKES = "takes: bytes of the process; values: of these weights and values"


def as_text(table: RenderableType, width: int = 100) -> str:
    """A table as plain text, lines without trailing blanks."""
    out = io.StringIO()
    console = LiteralConsole(
        file=out, width=width, color_system=None, force_terminal=False, force_jupyter=False
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def before_after(facts: Facts) -> RenderableType:
    """The original, the graph that stores everything, and the result as planned and measured.

    Args:
        facts: by name; what is absent or None is left out. Sizes are bytes; overheads, bound and
            gap are fractions of the store-all time.

            ``model``, ``status``, ``planner``, ``cost_source``: text.
            ``baseline_peak_bytes``: the original under onnxruntime's default options.
            ``store_all_peak_bytes``: the optimised graph with nothing recomputed.
            ``budget_bytes``, ``peak_predicted_bytes``, ``peak_measured_bytes``: the result.
            ``baseline_beside_bytes``, ``store_all_beside_bytes``, ``beside_bytes``: what a process
            takes beside weights and values.
            ``peak_default_options_bytes``: the result under default options.
            ``arena_bytes``, ``arena_default_options_bytes``: what the arena holds afterwards.
            ``weight_bytes``, ``input_bytes``: weights; inputs, which the caller holds.
            ``overhead_planned``, ``overhead_measured``, ``overhead_spread``: extra time.
            ``original_time_ratio``, ``original_spread``: time of the original over store-all.
            ``step_seconds``: median of one run of the result.
            ``bound``, ``bound_kind``, ``bound_any_order``, ``bound_staged``, ``gap``: the proof.
            ``plan_seconds``, ``rounds``: of planning.
            ``ops``, ``recomputed_ops``, ``added_ops``: nodes before; recomputations; gates and
            pins (or ``gates`` and ``pins`` apart).
            ``order_kept``, ``order_kept_default_options``, ``bit_equal``: bool.
            ``difference_to_original``: worst difference of an output.
    """
    table = plain_table()
    table.add_column("")
    for name in ("original", "store all", "planned", "measured"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in COMPARISON:
        cells = line.cells(facts)
        if any(cells):
            table.add_row(Text(line.label), *map(Text, cells), end_section=line.ends)
    parts: list[RenderableType] = []
    if facts.get("model"):
        parts.append(Text(str(facts["model"]), style="bold"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for label, words in statements(facts):
        grid.add_row(Text(label), Text(words))
    parts += [table, Text()] if table.row_count else []
    return Group(*parts, grid)


def bench_table(timings: Sequence[Timing]) -> RenderableType:
    """Times of models against the first one's.

    Args:
        timings: the first is the reference.
    """
    rounds = max((t.rounds for t in timings), default=0)
    table = plain_table()
    table.add_column("model")
    for name in ("time", "ratio", "spread"):
        table.add_column(name, justify="right", no_wrap=True)
    for index, timing in enumerate(timings):
        # Half of the rounds lie within; of a handful that says nothing.
        known = index and timing.rounds >= 8 and timing.ratio > 0
        spread = f"+/- {timing.spread / timing.ratio:.1%}" if known else ""
        spread += " (too noisy)" if known and timing.spread > NOISE * timing.ratio else ""
        table.add_row(
            Text(timing.name), format_seconds(timing.seconds), f"{timing.ratio:.3f}", spread
        )
    return _titled(f"paired timing, medians of {rounds} rounds", table)


IN_PARTS = "with regions in parts, estimated"  # title of the second curve


def sweep_table(
    points: Iterable[SweepPoint], baseline_peak: int, title: str = "memory-time curve"
) -> RenderableType:
    """Overhead and bound at several budgets, largest budget first.

    Args:
        baseline_peak: bytes of weights and values that the shares refer to; 0 for no shares.
    """
    rows = sorted(points, key=lambda p: -p.budget)
    table = plain_table()
    for name in ("budget", "or", "takes", "values", "overhead", "least", "gap", "planning"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for point in rows:
        table.add_row(*_sweep_cells(point, baseline_peak), Text(point.status.partition(" (")[0]))
    return _titled(title, table, _sweep_notes(rows))


def _sweep_cells(point: SweepPoint, baseline_peak: int) -> list[str]:
    share = f"{point.limit / baseline_peak:.3f}x" if baseline_peak else "-"
    cells = [least(point.budget), share, least(point.process) or "-", size(point.peak) or "-"]
    if point.overhead is None:
        return [*cells, "-", "-", "-", "-"]
    gap = "-" if point.bound is None else f"{max(0.0, point.overhead - point.bound):.2%}"
    proven = signed(point.bound) + " *" * in_one_order(point)
    cells += [signed(point.overhead), proven or "-", gap]
    return [*cells, format_seconds(point.plan_seconds)]


def _sweep_notes(rows: Sequence[SweepPoint]) -> str:
    """What the columns are, and what the answers add in brackets."""
    notes = [row.status for row in rows if " (" in row.status]
    words = "overhead, least (proven) and gap are shares of the store-all time; " + TAKES
    starred = [f"* proven {ONE_ORDER}"] if any(map(in_one_order, rows)) else []
    return "\n".join([words, *starred, *dict.fromkeys(notes)])


def recomputed(
    plan: Plan, graph: Graph, seconds: Mapping[str, float], top: int = 15
) -> RenderableType:
    """What a plan recomputes: the ops that free most.

    Args:
        graph: the graph the plan was made for.
        seconds: of one run, per op name.
        top: how many ops to list.
    """
    rows = recomputed_ops(plan, graph, seconds)
    table = plain_table()
    table.add_column("op", overflow="fold")
    table.add_column("type", no_wrap=True)
    for name in ("times", "frees", "extra time"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows[:top]:
        table.add_row(
            Text(row.op), Text(row.op_type), str(row.times), format_bytes(row.bytes),
            format_seconds(row.seconds), end_section=row is rows[:top][-1],
        )  # fmt: skip
    rest = len(rows) - top
    label = f"all {len(rows)} ops" if rest > 0 else "together"
    times, took = sum(r.times for r in rows), sum(r.seconds for r in rows)
    table.add_row(label, "", str(times), "", format_seconds(took) if rows else "")
    return _titled("what is recomputed", table, _by_type(rows))


def _by_type(rows: Sequence[Recomputed]) -> str:
    """``212 recomputations: 80 Mul, 40 Gemm, ...``"""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.op_type] += row.times
    if not counts:
        return "nothing is recomputed"
    kinds = [f"{n} {kind}" for kind, n in counts.most_common(6)]
    more = len(counts) - len(kinds)
    kinds += [f"{more} other types"] if more > 0 else []
    return f"{counts.total()} recomputations: " + ", ".join(kinds)


def phases_table(seconds: Mapping[str, float]) -> RenderableType:
    """Where the time went.

    Args:
        seconds: by phase.
    """
    table = plain_table()
    table.add_column("phase")
    table.add_column("time", justify="right", no_wrap=True)
    for name, took in seconds.items():
        table.add_row(Text(name), format_seconds(took), end_section=name == list(seconds)[-1])
    table.add_row("together", format_seconds(sum(seconds.values())))
    return _titled("time by phase", table)


def plain_table() -> Table:
    """An empty table in the style of all tables here."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def _titled(title: str, table: Table, caption: str = "") -> Group:
    """A table between its title and its caption, which may be wider than it is."""
    parts: list[RenderableType] = [Text(title, style="bold"), table]
    return Group(*parts, Text(caption)) if caption else Group(*parts)
