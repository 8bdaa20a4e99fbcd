"""Pipelines over devices: samples per second against one device, and against what was predicted.

    python tools/bench_pipeline.py --batch 1 8 resnet18 bert
    python tools/bench_pipeline.py --machine cpu-openvino vgg16

One line per model and batch: how many times one device's rate the bound allows, samples a second
predicted (1 / largest load, of a trial) and measured in turns with each device alone, and peaks
within budgets. Exit code 1 where a check fails, the rate is over 10 % off, or less than 1.8 x one
device where the bound allows 1.9 x. Run it on idle cores: a core that something else uses shows.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_devices import processor

import models
from onnxremat.device.files import read_machine
from onnxremat.device.host import processors
from onnxremat.pipeline.optimize import Request, optimize
from onnxremat.pipeline.prepare import Settings, prepare
from onnxremat.pipeline.result import Result
from onnxremat.planner.options import PlanOptions

MODELS = ("vgg16", "resnet18", "bert", "inception")
BATCHES = (1, 2, 4, 8)
NEAR, LEAST, BOUND = 0.10, 1.8, 1.9


def main() -> int:
    """Print the table; 1 when something is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--machine", default="cpu-2x1")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--time-limit", type=float, default=30.0)
    asked = parser.parse_args()
    unknown = sorted(set(asked.models) - set(models.SPECS))
    if unknown:
        parser.error(f"no model {unknown[0]}: one of {', '.join(sorted(models.SPECS))}")
    print(f"{processor()}, {processors()} cores, load {os.getloadavg()[0]:.1f}")
    print("model          batch  in flight  bound    predicted  measured   off     of one  peaks")
    met = [one(asked, name, batch) for name in asked.models for batch in asked.batch]
    print("all met" if all(met) else "NOT all met")
    return int(not all(met))


def one(asked: argparse.Namespace, name: str, batch: int) -> bool:
    """A line; whether all is met."""
    machine = read_machine(asked.machine)
    prepared = prepare(models.build(name, batch=batch), Settings(target="portable"))
    options = PlanOptions(time_limit=asked.time_limit, threads=1)
    request = Request("", machine, options, objective="throughput", bench_seconds=asked.seconds)
    result: Result = optimize(prepared, request)
    facts = result.facts()
    pipelined, *alone = result.timings
    best = min(alone, key=lambda timing: timing.ratio)
    allowed = facts["best_single_device_seconds"] / facts["bound_seconds"]
    rate = 1 / pipelined.seconds
    off = rate / facts["samples_per_second_predicted"] - 1
    kept = all(check.ok for check in result.checks)
    print(
        f"{name:14s} {batch:5d} {facts['in_flight']:9d} {allowed:6.2f} x "
        f"{facts['samples_per_second_predicted']:10.3f} {rate:9.3f} {off:+7.1%} "
        f"{best.ratio:8.2f} x  {'kept' if kept else 'MISSED'}",
        flush=True,
    )
    return kept and abs(off) <= NEAR and (allowed < BOUND or best.ratio >= LEAST)


if __name__ == "__main__":
    sys.exit(main())
