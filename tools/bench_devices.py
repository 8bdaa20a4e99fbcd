"""Models on several devices: checks, bytes per device, time against each device alone.

    python tools/bench_devices.py --machine cpu-openvino --train resnet18 bert unet
    python tools/bench_devices.py --machine cpu-cuda --planned --budget cuda:0=2GiB resnet18
    python tools/bench_devices.py --boundary
    python tools/bench_devices.py --must-show

Without ``--planned`` ops are assigned greedily by earliest finish, and memory is not looked at.
``--threads`` gives every processor device so many. ``--boundary`` prices going from partition to
partition; ``--must-show`` runs that and all of devices_shown.py, in some 35 minutes. Timing is done
in short stretches at real-time priority where the system allows. Exit code 1 when a check fails.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bench_boundary
import devices_shown
from real_time import undisturbed

import models
from onnxremat.cost.devices import covered, device_costs
from onnxremat.cost.measure import Measuring
from onnxremat.device.files import read_machine
from onnxremat.device.host import processor_name, processors
from onnxremat.device.machine import Machine
from onnxremat.execute.deployment import Deployment, deploy
from onnxremat.execute.partition_cuts import Terms
from onnxremat.grad import Settings as Training
from onnxremat.ort.providers import missing
from onnxremat.pipeline.bench import Timing, bench, beside_devices
from onnxremat.pipeline.devices.over_devices import DevicesRun
from onnxremat.pipeline.optimize import Request, optimize
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.result import Result
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.verify import Verification, verify_deployment
from onnxremat.planner.options import PlanOptions
from onnxremat.schedule.assign import assigned, earliest_finish, split
from onnxremat.units import format_bytes, format_seconds

SIZES = {"batch": 8, "size": 96}


def main() -> int:
    """Print the table; 1 when a check fails."""
    asked = arguments()
    if asked.must_show or asked.boundary:
        return must_show(asked.models, everything=asked.must_show)
    machine = the_machine(asked)
    absent = {device.name: missing(device) for device in machine.devices if missing(device)}
    if absent:
        print("skipped:", "; ".join(f"{name}: {why}" for name, why in absent.items()))
        return 0
    failed = False
    for name in asked.models:
        spec = models.SPECS[name]
        sizes = {key: value for key, value in vars(asked).items() if key in spec.defaults and value}
        known = {key: value for key, value in SIZES.items() if key in spec.defaults}
        settings = Settings(
            threads=asked.threads, train=Training() if asked.train else None, target=asked.target
        )
        prepared = prepare(spec.build({**known, **sizes}), settings)
        made, found = carried_out(prepared, machine, asked)
        timings = bench(beside_devices(made), prepared.feeds or {}, seconds=asked.seconds)
        tell(f"{name}{' step' if asked.train else ''}", made, found, timings)
        failed |= not found.ok
    return int(failed)


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--machine", default="cpu-2x1")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--boundary", action="store_true", help="what a boundary costs")
    parser.add_argument("--must-show", action="store_true", help="all of it, in one table")
    parser.add_argument("--planned", action="store_true", help="by the planner, within --budget")
    parser.add_argument("--halves", action="store_true", help="by splitting the listed order")
    parser.add_argument("--budget", default="")
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--target", default="portable")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    for key in SIZES:
        parser.add_argument(f"--{key}", type=int)
    asked = parser.parse_args()
    if not (asked.models or asked.boundary or asked.must_show):
        parser.error("name models, or give --boundary or --must-show")
    unknown = sorted(set(asked.models) - set(models.SPECS))
    if unknown:
        parser.error(f"no model {unknown[0]}: one of {', '.join(sorted(models.SPECS))}")
    return asked


def must_show(names: list[str], *, everything: bool) -> int:
    """Boundaries, and everything else (of some models) where asked for; 1 when one is missed."""
    print(
        f"{date.today()}, {processor_name()}, {processors()} cores, load {os.getloadavg()[0]:.1f}"
    )
    with undisturbed() as alone:
        print("timed at real-time priority" if alone else "timed at usual priority")
    met = bench_boundary.tell()
    if everything:
        met &= devices_shown.show(names)
    print("all met" if met else "NOT all met")
    return int(not met)


def the_machine(asked: argparse.Namespace) -> Machine:
    """The machine, with the threads asked for."""
    machine = read_machine(asked.machine)
    return machine.with_devices(
        [replace(d, threads=asked.threads) if d.in_host_memory else d for d in machine.devices]
    )


def carried_out(
    prepared: Prepared, machine: Machine, asked: argparse.Namespace
) -> tuple[Deployment, Verification]:
    """Planned or assigned, and verified."""
    assert prepared.feeds is not None
    if asked.planned:
        options = PlanOptions(time_limit=asked.time_limit)
        result: Result = optimize(
            prepared, Request(asked.budget, machine, options, bench_seconds=0)
        )
        return result.deployment, verify_deployment(result.deployment, prepared.feeds)
    tables = device_costs(prepared.graph, machine, prepared.feeds, Measuring(prepared.folder))
    takes = covered(tables)
    plan = earliest_finish(prepared.graph, machine, takes)
    if asked.halves:
        first = machine.names[0]
        halves = split(prepared.graph, machine.names, takes[first])
        where = {op: at if op in takes[at] else first for op, at in halves.items()}
        plan = assigned(prepared.graph, where, machine, takes)
    made = deploy(
        prepared.graph,
        plan,
        machine,
        tables,
        Terms(pairs=prepared.in_place, folder=prepared.folder),
    )
    return made, verify_deployment(made, prepared.feeds)


def tell(name: str, made: Deployment, found: Verification, timings: list[Timing]) -> None:
    """One model's rows."""
    parts = made.parts
    print(f"{name}: {len(parts.partitions)} partitions, {len(parts.copies)} copies")
    for check in found.checks:
        print(f"  {'ok  ' if check.ok else 'FAIL'} {check.name}: {check.text}")
    assert isinstance(found.run, DevicesRun)
    for device, measured in found.run.recorded.bytes.items():
        print(f"  {device}: {format_bytes(measured.peak)} {measured.how}")
    best = min(t.seconds for t in timings if t.name.endswith("alone"))
    print(f"  predicted {format_seconds(made.makespan)}, best alone {format_seconds(best)}")
    for timing in timings:
        print(f"  {timing.name}: {format_seconds(timing.seconds)}, ratio {timing.ratio:.2f}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
