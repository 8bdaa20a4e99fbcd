"""What every op costs on every device of a machine, and which devices run it at all.

- The processor: onnxruntime's own kernel times (:mod:`onnxremat.cost.measure`).
- Other providers that are here: each op by itself on that provider, less what a call costs, scaled
  so that the parts sum to the whole where the provider takes the whole graph. Ops that it leaves to
  the processor have no cost there: a plan cannot put them there.
- Devices that are not here: the roofline of their figures, times what measured devices took over
  their own roofline, per operator. Marked ``analytic``.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from onnxremat.cost.analytic import Roofline, analytic_costs, scratch_bytes
from onnxremat.cost.detect import with_speeds
from onnxremat.cost.measure import cache_folder, machine_key, measure_costs, read_cache, write_cache
from onnxremat.cost.table import CostTable, signature
from onnxremat.device.machine import PROVIDERS, Device, Machine
from onnxremat.errors import OnnxrematError, UsageError
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.subgraph import subgraph
from onnxremat.ort.binding import wrap
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.profile import Feeds
from onnxremat.ort.providers import assigned, here, missing, open_on, tiny_model
from onnxremat.ort.session import TUNED
from onnxremat.ort.values import Stage

SECONDS = 0.02  # aim for this much measuring per op
RUNS = (3, 30)


def device_costs(
    graph: Graph,
    machine: Machine,
    feeds: Feeds | None,
    *,
    folder: Path | None = None,
    fresh: bool = False,
    say: Callable[[str], None] | None = None,
) -> dict[str, CostTable]:
    """A cost table per computing device; an op that a device does not run is not in its table.

    Args:
        feeds: inputs to measure on; None for estimates alone.
        folder: where external weights are.
        fresh: measure even what the cache knows.

    Raises:
        UsageError: no op of the graph runs on any device.
        ModelError: onnxruntime refuses the model.
    """
    say = say or (lambda _: None)
    devices = [device for device in machine.devices if device.computes]
    tables: dict[str, CostTable] = {}
    for device in devices:
        if feeds is None or machine.elsewhere or missing(device):
            continue
        say(f"measuring the cost of every op on {device.name}")
        if device.provider == PROVIDERS["cpu"]:
            table, _ = measure_costs(
                graph, feeds, threads=device.threads, folder=folder, fresh=fresh
            )
        else:
            table = _foreign(graph, feeds, device, folder, fresh)
        tables[device.name] = replace(table, device=device.name)
    absent = [device for device in devices if device.name not in tables]
    if absent:
        say("estimating the cost of every op on devices that are not here")
        known = [(machine.device(name), table) for name, table in tables.items()]
        if feeds is not None and not known:
            local = here()[0]
            table, _ = measure_costs(graph, feeds, threads=local.threads, folder=folder)
            known = [(replace(local, name="this machine"), table)]
        known = [(d if d.flops and d.bandwidth else with_speeds(d), t) for d, t in known]
        for device in absent:
            tables[device.name] = estimated(graph, device, known)
    return tables


def estimated(graph: Graph, device: Device, measured: list[tuple[Device, CostTable]]) -> CostTable:
    """The roofline of a device that is not here, corrected per operator by devices that are.

    Args:
        measured: devices with known figures, and their tables; none leaves the roofline as it is.
    """
    costs = analytic_costs(graph, roofline(device))
    if not measured:
        return replace(costs, device=device.name)
    ratios: dict[str, list[float]] = defaultdict(list)
    for other, table in measured:
        ideal = analytic_costs(graph, roofline(other))
        for op in graph.ops:
            if op.name in table.seconds and ideal.seconds[op.name]:
                ratios[op.op_type].append(table.seconds[op.name] / ideal.seconds[op.name])
    every = [value for row in ratios.values() for value in row]
    usual = statistics.median(every) if every else 1.0
    factor = {kind: statistics.median(row) for kind, row in ratios.items()}
    seconds = {op.name: costs.seconds[op.name] * factor.get(op.op_type, usual) for op in graph.ops}
    names = ", ".join(other.name for other, _ in measured)
    return replace(
        costs, seconds=seconds, source=f"analytic, calibrated by {names}", device=device.name
    )


def roofline(device: Device) -> Roofline:
    """A device's figures; those of a usual processor where the machine file has none."""
    usual = Roofline()
    dispatch = usual.dispatch if device.in_host_memory else 8e-6  # a kernel launch
    return Roofline(device.flops or usual.flops, device.bandwidth or usual.bandwidth, dispatch)


# ---- providers other than the processor's --------------------------------------------------


def _foreign(
    graph: Graph, feeds: Feeds, device: Device, folder: Path | None, fresh: bool
) -> CostTable:
    taken, whole = _whole(graph, feeds, device, folder)
    ops = [op for op in graph.ops if op.name in taken]
    path = cache_folder() / f"costs-{_key(device)}.json"
    known = {} if fresh else read_cache(path)
    keys = {op.name: signature(graph, op) for op in ops}
    call = _call_seconds(device)
    for op in ops:
        if keys[op.name] not in known:
            alone = _alone(graph, op, device, folder)
            if alone is not None:
                known[keys[op.name]] = [max(1e-7, alone - call), 0.0, 0.0]
    write_cache(path, known)
    ideal = analytic_costs(graph, roofline(device))
    seconds = {op.name: known.get(keys[op.name], [ideal.seconds[op.name]])[0] for op in ops}
    source = "measured op by op"
    total = sum(seconds.values())
    if whole and total and len(taken) == len(graph.ops):
        # What the provider fuses costs less together than apart.
        scale = min(1.0, whole / total)
        seconds = {name: value * scale for name, value in seconds.items()}
        source = "measured op by op, scaled to the whole"
    scratch = {op.name: scratch_bytes(graph, op) for op in ops}
    return CostTable(seconds, scratch, source, call, device.name)


def _whole(
    graph: Graph, feeds: Feeds, device: Device, folder: Path | None
) -> tuple[set[str], float]:
    """Ops the provider takes of the whole graph, and the seconds of a run."""
    try:
        session = open_on(device, to_model(graph), TUNED, folder)
    except UsageError:  # it takes the whole or nothing of some graphs: ask op by op
        return {op.name for op in graph.ops if _takes(graph, op, device, folder)}, 0.0
    stage = Stage(session, device, graph.outputs, {})
    for name in graph.inputs:
        stage.bind(name, wrap(feeds[name]))
    names = assigned(session)
    taken = {op.name for op in graph.ops if names.get(op.name) == device.provider}
    return taken, _median_seconds(stage, 1.0)


def _single(graph: Graph, op: Op) -> Graph:
    return subgraph(graph, [op], set(op.writes))


def _takes(graph: Graph, op: Op, device: Device, folder: Path | None) -> bool:
    try:
        session = open_on(device, to_model(_single(graph, op)), TUNED, folder)
    except OnnxrematError:
        return False
    return assigned(session).get(op.name) == device.provider


def _alone(graph: Graph, op: Op, device: Device, folder: Path | None) -> float | None:
    """Median seconds of a session with this op alone; None when it cannot be run so."""
    try:
        single = _single(graph, op)
        stage = Stage(open_on(device, to_model(single), TUNED, folder), device, single.outputs, {})
        for name, value in seeded_feeds(single).items():
            stage.bind(name, wrap(value))
        return _median_seconds(stage, SECONDS)
    except Exception:  # its inputs have to be special values: the estimate will do
        return None


def _call_seconds(device: Device) -> float:
    """What calling a session costs on the device, whatever it computes."""
    stage = Stage(open_on(device, tiny_model(), TUNED), device, ("y",), {})
    stage.bind("x", wrap(np.ones(1, np.float32)))
    return _median_seconds(stage, SECONDS)


def _median_seconds(stage: Stage, limit: float) -> float:
    times: list[float] = []
    start = time.perf_counter()
    while len(times) <= RUNS[0] or (time.perf_counter() - start < limit and len(times) < RUNS[1]):
        begin = time.perf_counter()
        stage.run([])
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def _key(device: Device) -> str:
    options = json.dumps(dict(sorted(device.options.items())))
    return machine_key(device.threads, device.provider, device.index, options)


def covered(tables: Mapping[str, CostTable]) -> dict[str, dict[str, float]]:
    """Seconds per device and op, for assignments."""
    return {name: dict(table.seconds) for name, table in tables.items()}
