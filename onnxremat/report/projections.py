"""A step on a cluster that is not here: figures, each marked measured or modelled."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from onnxremat.units import format_bytes
from onnxremat.workers.pipelines.projection import Projection

SHOWN = 12  # stages in a table


def projection_facts(found: Projection) -> dict[str, Any]:
    """For programs; seconds and bytes. ``origin`` says of each where it is from."""
    grid, pipeline, parts = found.grid, found.replay.pipeline, origin_of_parts(found)
    cluster = found.cluster
    return {
        "cluster": cluster.name,
        "source": cluster.source,
        "ranks": grid.ranks,
        "data_parallel": grid.pipelines,
        "pipeline": grid.stages,
        "micro_batches": grid.micro_batches,
        "schedule": found.replay.order.name,
        "rows_per_step": found.rows,
        "step": found.seconds,
        "rows_per_second": found.rows / found.seconds,
        "pipeline_makespan": found.replay.makespan,
        "bubble": found.replay.bubble,
        "efficiency": found.efficiency,
        "forward": list(pipeline.forward),
        "backward": list(pipeline.backward),
        "weight": list(pipeline.weight),
        "communication": list(pipeline.communication),
        "gradient_sums": list(found.sums),
        "updates": list(found.updates),
        "alive": list(found.replay.peak),
        "memory": list(found.peaks),
        "memory_limit": cluster.memory or None,
        "origin": {
            "forward, backward, weight": parts,
            "communication, gradient_sums, updates": "modelled",
            "memory, alive": "modelled",
            "step, bubble, efficiency": f"simulated from {parts} parts and modelled links",
        },
    }


def origin_of_parts(found: Projection) -> str:
    """Where the times of F, B and W are from."""
    return "measured" if found.measured else "modelled"


def projection_table(found: Projection) -> list[RenderableType]:
    """A row per stage, and the figures of the step under it."""
    pipeline, parts, limit = found.replay.pipeline, origin_of_parts(found), found.cluster.memory
    table = Table(box=None, pad_edge=False)
    for title in ("stage", f"F ({parts})", "B", "W", "next (modelled)", "sums", "update", "alive",
                  "memory (modelled)"):  # fmt: skip
        table.add_column(title, justify="right")
    count, hidden = pipeline.stages, False
    for at in range(count):
        if count > SHOWN and SHOWN // 2 <= at < count - SHOWN // 2:
            if not hidden:
                table.add_row("...")
            hidden = True
            continue
        times = (pipeline.forward[at], pipeline.backward[at], pipeline.weight[at])
        onward = _seconds(pipeline.communication[at]) if at < count - 1 else ""
        peak, over = found.peaks[at], limit and found.peaks[at] > limit
        table.add_row(
            str(at), *map(_seconds, times), onward, _seconds(found.sums[at]),
            _seconds(found.updates[at]), str(found.replay.peak[at]),
            format_bytes(peak) + (" !" if over else ""),
        )  # fmt: skip
    lines: list[RenderableType] = [table, Text(_told(found))]
    if limit and max(found.peaks) > limit:
        lines.append(
            Text(f"! more than the {format_bytes(limit)} of a device: more stages, a smaller "
                 "micro-batch, a step planned by optimize")
        )  # fmt: skip
    return lines


def projection_statements(found: Projection) -> list[tuple[str, str]]:
    """The figures of the step, each as a label and words."""
    grid, cluster, parts = found.grid, found.cluster, origin_of_parts(found)
    limit = f", a device has {format_bytes(cluster.memory)}" if cluster.memory else ""
    return [
        ("cluster", f"{cluster.name}: {cluster.source or 'the file does not say where from'}"),
        (
            "ranks",
            f"{grid.ranks}: {grid.pipelines} pipelines of {grid.stages} stages; one is shown",
        ),
        ("step", f"{_seconds(found.seconds)}, simulated from {parts} parts and modelled links"),
        ("rows", f"{found.rows} per step, {found.rows / found.seconds:.4g} per second"),
        ("computing", f"{found.efficiency:.1%} of the step"),
        ("bytes", f"modelled{limit}"),
    ]


def _told(found: Projection) -> str:
    grid, cluster = found.grid, found.cluster
    return (
        f"{cluster.name}, {grid.ranks} ranks: {grid.pipelines} pipelines of {grid.stages} stages, "
        f"{grid.micro_batches} micro-batches, {found.replay.order.name}\n"
        f"step {_seconds(found.seconds)} (simulated from {origin_of_parts(found)} parts and "
        f"modelled links), {found.rows} rows, {found.rows / found.seconds:.4g} rows/s\n"
        f"waiting in the pipeline {found.replay.bubble:.1%}, computing {found.efficiency:.1%} of "
        f"the step\nnumbers of the cluster: {cluster.source or 'the file does not say'}"
    )


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
