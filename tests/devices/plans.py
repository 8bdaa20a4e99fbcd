"""Plans over devices for tests, and the machines they are for."""

from __future__ import annotations

from functools import partial
from random import Random

from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import PROVIDERS, Device, Link, Machine
from onnxremat.graph.ir import Graph
from onnxremat.pipeline.optimize import Request, optimize
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.result import Result
from onnxremat.planner.options import PlanOptions
from onnxremat.schedule.plan import Compute, Free, Plan, Step, Transfer
from tests.limits import LONG
from tests.toolbox import random_sequence

BESIDE = ("inputs", "state", "session")  # for budgets of what a plan changes alone
ANY = PlanOptions(time_limit=LONG, gap=1.0, threads=1)  # the first plan that fits


def processors(count: int = 2, *, shared: bool = True) -> Machine:
    """A machine of one-thread devices of this processor, all linked."""
    devices = tuple(Device(f"cpu:{i}", PROVIDERS["cpu"], threads=1) for i in range(count))
    links = tuple(
        Link(a.name, b.name, 1e10, 1e-6, shared) for a in devices for b in devices if a is not b
    )
    return Machine(devices, links)


def priced(prepared: Prepared, machine: Machine) -> dict[str, CostTable]:
    """What ops take by a roofline, the same on every device: given, not measured."""
    table = analytic_costs(prepared.graph)
    return {device.name: table for device in machine.devices if device.computes}


def optimized(
    prepared: Prepared,
    machine: Machine,
    budget: str,
    options: PlanOptions = ANY,
    **more: object,
) -> Result:
    """Planned for a machine at given costs, run and verified, not timed."""
    costs = partial(priced, machine=machine)
    request = Request(budget, machine, options, bench_seconds=0, costs=costs, **more)
    return optimize(prepared, request)


def random_plan(graph: Graph, draw: Random, machine: Machine, share: float = 0.3) -> Plan:
    """Ops in a random order on random devices, some again, moves wherever a value is missing, and
    copies dropped here and there that are brought back later (swapping)."""
    by_name = {op.name: op for op in graph.ops}
    made, outputs = graph.producer, set(graph.outputs)
    held: dict[str, dict[str, int]] = {name: {} for name in machine.names}
    runs: dict[str, int] = {}
    steps: list[Step] = []
    for name in random_sequence(graph, draw, share):
        op, device = by_name[name], draw.choice(machine.names)
        for tensor in op.reads:
            if tensor in made and tensor not in held[device]:
                source = draw.choice([d for d in machine.names if tensor in held[d]])
                steps.append(Transfer(tensor, source, device, held[source][tensor]))
                held[device][tensor] = held[source][tensor]
        copy = runs.get(name, 0)
        runs[name] = copy + 1
        steps.append(Compute(name, copy, device))
        for tensor in op.writes:
            if not (tensor in outputs and tensor in held[device]):
                held[device][tensor] = copy
        for tensor in list(held[device]):
            elsewhere = [d for d in machine.names if d != device and tensor in held[d]]
            first = any(held[d][tensor] == 0 for d in elsewhere)
            if elsewhere and (first or tensor not in outputs) and draw.random() < 0.3:
                steps.append(Free(tensor, held[device].pop(tensor), device))
    return Plan(tuple(steps))
