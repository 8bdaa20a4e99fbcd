"""Tables of models on several devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxremat.report.comparison import one_order
from onnxremat.report.pages.device_times import in_a_run, of_costs, pipelined
from onnxremat.units import format_bytes, format_seconds


def device_table(facts: Mapping[str, Any]) -> RenderableType:
    """What each device runs and holds, and how long it all takes.

    Args:
        facts: as ``DeviceResult.facts`` gives them; sizes are bytes, times seconds.
    """
    table = Table(box=box.SIMPLE_HEAD, title=str(facts["model"]), title_justify="left")
    table.add_column("device")
    for name in ("ops", "parts", "budget", "predicted", "at worst", "measured"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in facts["devices"]:
        table.add_row(
            row["device"],
            str(row["ops"]),
            str(row["partitions"]),
            _size(row["budget_bytes"]),
            _size(row["peak_predicted_bytes"]),
            _size(row["peak_worst_case_bytes"]),
            _size(row["peak_measured_bytes"]),
        )
    lines = [
        f"plan        {facts['status']} for the {facts['objective']}, gap {facts['gap']:.2%}, "
        f"planned in {format_seconds(facts['plan_seconds'])}",
        _proven(facts),
        *(_of_pipeline(facts) if facts["objective"] == "throughput" else [_time(facts)]),
        f"contains    {facts['moves']} moves, {facts['recomputed_ops']} recomputed ops",
        *_all_the_time(facts),
    ]
    lines += [
        f"costs       {row['device']}: {row['cost_source']}"
        for row in facts["devices"]
        if row["cost_source"]
    ]
    lines += [
        f"precision   {row['device']}: products in bfloat16, as asked for"
        for row in facts["devices"]
        if row["precision"] == "bf16" and row["ops"]
    ]
    lines += [
        f"measured    {timing['name']}: {format_seconds(timing['seconds'])}"
        + ("" if timing["ratio"] == 1.0 else f", {timing['ratio']:.2f} x as planned")
        for timing in facts["timings"]
    ]
    return Group(table, Text("\n".join(lines)))


def _all_the_time(facts: Mapping[str, Any]) -> list[str]:
    """What is on each device all the time, part by part."""
    words = {
        "weight_bytes": "weights", "input_bytes": "inputs and state",
        "session_bytes": "sessions' structures",
    }  # fmt: skip
    lines = []
    for row in facts["devices"]:
        parts = [f"{format_bytes(row[key])} {word}" for key, word in words.items() if row.get(key)]
        if parts:
            lines.append(f"of it       {row['device']}, all the time: {', '.join(parts)}")
    if facts.get("not_counted"):
        lines.append(f"not counted {', '.join(facts['not_counted'])}")
    return lines


def _time(facts: Mapping[str, Any]) -> str:
    alone = facts["best_single_device_seconds"]
    more = f", {format_seconds(alone)} on the best single device by costs of ops" if alone else ""
    return f"time        {_predicted(facts)}{more}"


def _proven(facts: Mapping[str, Any]) -> str:
    """The bound, and what the plan takes by the costs that it holds for: sessions are called less
    often than these say, and devices work side by side."""
    line = f"proven      at least {format_seconds(facts['bound_seconds'])}{one_order(facts)} "
    line += f"({facts['bound_kind']})"
    took = of_costs(facts)
    if pipelined(facts) or took is None:
        return line
    what = "a run takes" if in_a_run(facts) else "all runs and copies together take"
    return f"{line}; {what} {format_seconds(took)} by the same costs"


def _of_pipeline(facts: Mapping[str, Any]) -> list[str]:
    """Samples per second, and what each device is at work for each of them."""
    loads = ", ".join(
        f"{name} {format_seconds(took)}{' *' if name == facts['bottleneck'] else ''}"
        for name, took in facts["loads_seconds"].items()
    )
    rate = f"{facts['samples_per_second_predicted']:.4g} per second predicted"
    if facts["samples_per_second_trial"]:
        rate += f", {facts['samples_per_second_trial']:.4g} in a trial"
    alone = facts["best_single_device_seconds"]
    if alone:
        rate += f", {1 / alone:.4g} on the best single device"
    rows = [" and ".join(row) for row in facts.get("stages", ()) if len(row) > 1]
    turns = f"; {', '.join(rows)} take samples in turn" if rows else ""
    again = [f"stages      {_stages_of(facts)}"] if facts.get("rounds") else []
    return [
        f"samples     {rate}; {facts['in_flight']} in flight{turns}",
        f"loads       {loads} per sample{' of a full pipeline, tried' if facts['tried'] else ''}",
        *again,
    ]


def _stages_of(facts: Mapping[str, Any]) -> str:
    """The way of a sample that comes back to devices, and in which order they do their stages."""
    way = " > ".join(row[0] for row in facts["stages"])
    rounds = ", ".join(
        f"{name} {' '.join(f'{stage + 1}-{lag}' if lag else str(stage + 1) for stage, lag in row)}"
        for name, row in facts["rounds"]["stages_and_lags"].items()
    )
    return f"{way}; in a round (stage - samples behind): {rounds}"


def _size(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def _predicted(facts: Mapping[str, Any]) -> str:
    """Of a trial run of the partitions, where there was one, beside what the ops had told."""
    found = format_seconds(facts["makespan_predicted"])
    if not facts.get("tried"):
        return f"{found} predicted"
    costs = format_seconds(facts["makespan_of_costs"])
    return f"{found} predicted from a trial of its partitions ({costs} from costs of ops)"
