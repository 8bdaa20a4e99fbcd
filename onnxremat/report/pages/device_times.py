"""How long a model over several devices takes: by costs, as predicted, as measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxremat.report.comparison import NOISE, UNKNOWN, one_order
from onnxremat.units import format_seconds

Facts = Mapping[str, Any]
ALONE = " alone"


def time_rows(facts: Facts) -> list[tuple[str, str, str, str, str]]:
    """Rows of :func:`time_heads`: this plan, what it was timed against, and what is proven."""
    own, others = _timed(facts)
    took = own["seconds"] if own else None
    times = _time(of_costs(facts)), _time(predicted(facts)), _time(took)
    rows = [("this plan", *times, "")]
    for row in others:
        ratio = UNKNOWN if row["spread"] > NOISE * row["ratio"] else f"{row['ratio']:.2f} x"
        rows.append((row["name"], "", "", _time(row["seconds"]), ratio))
    alone = facts.get("best_single_device_seconds")
    if alone:
        rows.append(("the best device alone", _time(alone), "", "", ""))
    if facts.get("bound_seconds"):
        proven = f"proven: none takes less{one_order(facts)}"
        rows.append((proven, _time(facts["bound_seconds"]), "", "", ""))
    return rows if any(any(row[1:]) for row in rows) else []


def time_heads(facts: Facts) -> tuple[str, str, str, str, str]:
    """Heads of the columns of :func:`time_rows`."""
    what = "time per sample" if pipelined(facts) else "time of a run"
    trial = "in a trial" if facts.get("tried") else "predicted"
    both = "" if pipelined(facts) or in_a_run(facts) else "all runs and copies, "
    return what, f"{both}by costs of ops", trial, "measured", "to this plan"


def pipelined(facts: Facts) -> bool:
    """Whether it is about a stream of samples."""
    return facts.get("objective") == "throughput"


def of_costs(facts: Facts) -> float | None:
    """Seconds by the costs of ops, which the plan was made with and the bound holds for."""
    if pipelined(facts):
        loads = facts.get("loads_of_costs_seconds") or {}
        return max(loads.values(), default=None)
    return facts.get("makespan_planned" if in_a_run(facts) else "seconds_planned")


def in_a_run(facts: Facts) -> bool:
    """Whether it is about when a run ends, and not about what all devices are at work for it."""
    return facts.get("objective") == "makespan"


def predicted(facts: Facts) -> float | None:
    """Seconds as a trial of the partitions told, where there was one; else those of costs."""
    if pipelined(facts):
        rate = facts.get("samples_per_second_predicted")
        return 1 / rate if rate else None
    return facts.get("makespan_predicted")


def measured(facts: Facts) -> tuple[float, float] | None:
    """Seconds as measured of the plan, and of the best device alone; None where they were not."""
    own, others = _timed(facts)
    alone = [row["seconds"] for row in others if row["name"].endswith(ALONE)]
    return (own["seconds"], min(alone)) if own and alone else None


def _timed(facts: Facts) -> tuple[Facts | None, list[Facts]]:
    """What was timed: the plan, which is the first, and others."""
    own, *others = facts.get("timings") or (None,)
    return own, others


def _time(count: float | None) -> str:
    return "" if count is None else format_seconds(count)
