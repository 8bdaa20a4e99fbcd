"""What every op costs on every device of a machine, and which devices run it at all.

- The processor: onnxruntime's own kernel times (:mod:`onnxremat.cost.measure`).
- Other providers that are here: each op by itself on that provider, less what a call costs, scaled
  so that the parts sum to the whole where the provider takes the whole graph. Ops that it leaves to
  the processor have no cost there: a plan cannot put them there.
- Devices that are not here: the roofline of their figures, times what measured devices took over
  their own roofline, per operator. Marked ``analytic``.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from onnxremat.cost.analytic import Roofline, analytic_costs
from onnxremat.cost.detect import memory_traffic, with_speeds
from onnxremat.cost.foreign import foreign_costs
from onnxremat.cost.measure import AS_USUAL, Measuring, measure_costs
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import PROVIDERS, Device, Machine
from onnxremat.graph.ir import Graph
from onnxremat.ort.profile import Feeds
from onnxremat.ort.providers import here, missing


def device_costs(
    graph: Graph,
    machine: Machine,
    feeds: Feeds | None,
    how: Measuring = AS_USUAL,
    *,
    say: Callable[[str], None] | None = None,
) -> dict[str, CostTable]:
    """A cost table per computing device; an op that a device does not run is not in its table.

    Args:
        feeds: inputs to measure on; None for estimates alone.

    Raises:
        UsageError: no op of the graph runs on any device.
        ModelError: onnxruntime refuses the model.
    """
    say = say or (lambda _: None)
    devices = [device for device in machine.devices if device.computes]
    each = replace(how, within=how.within / max(1, len({_kind(device) for device in devices})))
    tables: dict[str, CostTable] = {}
    of_kind: dict[object, CostTable] = {}
    for device in devices:
        if feeds is None or machine.elsewhere or missing(device):
            continue
        if _kind(device) in of_kind:
            tables[device.name] = replace(of_kind[_kind(device)], device=device.name)
            continue
        say(f"measuring the cost of every op on {device.name}")
        if device.provider == PROVIDERS["cpu"]:
            table, _ = measure_costs(graph, feeds, each, threads=device.threads)
        else:
            table = foreign_costs(graph, feeds, device, roofline(device), each)
        table = replace(table, device=device.name, bandwidth=_traffic(device))
        tables[device.name] = of_kind[_kind(device)] = table
    absent = [device for device in devices if device.name not in tables]
    if absent:
        say("estimating the cost of every op on devices that are not here")
        known = [(machine.device(name), table) for name, table in tables.items()]
        if feeds is not None and not known:
            local = here()[0]
            table, _ = measure_costs(graph, feeds, replace(how, fresh=False), threads=local.threads)
            known = [(replace(local, name="this machine"), table)]
        known = [(d if d.flops and d.bandwidth else with_speeds(d), t) for d, t in known]
        for device in absent:
            table = estimated(graph, device, known)
            tables[device.name] = replace(table, bandwidth=roofline(device).bandwidth)
    return tables


def _kind(device: Device) -> object:
    """Processors with as many threads are one and the same, on any of its cores, and measured once:
    what differs between two measurements of it is what else ran. Others are what they are."""
    processor = device.provider == PROVIDERS["cpu"]
    return (device.threads, device.bandwidth) if processor else device.name


def _traffic(device: Device) -> float:
    """Bytes per second between a device that is here and its memory. What reads and writes host
    memory is measured by the processor."""
    if device.bandwidth or not device.in_host_memory:
        return roofline(device).bandwidth
    return memory_traffic(Device("memory", threads=device.threads))


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


def covered(tables: Mapping[str, CostTable]) -> dict[str, dict[str, float]]:
    """Seconds per device and op, for assignments."""
    return {name: dict(table.seconds) for name, table in tables.items()}
