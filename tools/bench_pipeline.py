"""Pipelines over devices: samples per second against one device, and against what was predicted.

    python tools/bench_pipeline.py [--only TEXT ...] [--budget 2x] [--replicas 1] [--json FILE]
                                   [--list]

One row per model, batch and machine, `--only "vgg16 batch 1 on cpu-2x1"` for one of them (any part
of a row's name will do). Processors that are alike take the samples of a stage in turn;
`--replicas 1` gives each a stage of its own. A row says how many times the best single device's
rate the bound allows, samples a second predicted (1 / largest load, of a trial) and measured in
turns with each device alone, whether outputs are bit-equal to one session's and in order, and what
devices hold at worst with that many samples in flight. Devices have one thread each. Rows with
OpenVINO are left out where it is not installed. Exit code 1 where a check fails, the rate is over
10 % off, or less than 1.8 x one device where the bound allows 1.9 x, or than 0.9 of what it allows
below that. Run it on two idle cores: a core that something else uses shows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

import models
from onnxremat.device.files import read_machine
from onnxremat.device.host import processor_name, processors
from onnxremat.device.machine import Machine
from onnxremat.errors import OnnxrematError
from onnxremat.ort.providers import missing
from onnxremat.pipeline.artifact import Kind
from onnxremat.pipeline.optimize import Request, optimize
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.result import Result
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.units import format_bytes

MODELS = ("vgg16", "resnet18", "bert", "inception")  # the last one is GoogLeNet
BATCHES = (1, 2, 4, 8)
MACHINES = ("cpu-2x1", "cpu-openvino")
NEAR, LEAST, BOUND = 0.10, 1.8, 1.9


@dataclass(frozen=True)
class Row:
    """A model of a batch size on a machine whose devices have one thread each."""

    model: str
    batch: int
    machine: str

    @property
    def name(self) -> str:
        return f"{self.model} batch {self.batch} on {self.machine}"

    def devices(self) -> Machine:
        machine = read_machine(self.machine)
        return machine.with_devices([replace(d, threads=1) for d in machine.devices])


def rows() -> Iterator[Row]:
    """Everything that can run here."""
    for machine in MACHINES:
        if not any(missing(device) for device in read_machine(machine).devices):
            yield from (Row(name, batch, machine) for name in MODELS for batch in BATCHES)


def measure(row: Row, asked: argparse.Namespace) -> dict[str, Any]:
    """Plan, run and time one row."""
    prepared = prepare(models.build(row.model, batch=row.batch), Settings(target="portable"))
    options = PlanOptions(time_limit=asked.time_limit, threads=1)
    request = Request(
        asked.budget, row.devices(), options, objective="throughput", bench_seconds=asked.seconds,
        replicas=asked.replicas,
    )  # fmt: skip
    result: Result = optimize(prepared, request)
    facts = result.facts()
    pipelined, *alone = result.timings
    rate, predicted = 1 / pipelined.seconds, facts["samples_per_second_predicted"]
    of_one = min(timing.ratio for timing in alone)
    allowed = facts["best_single_device_seconds"] / facts["bound_seconds"]
    outputs = {check.text for check in result.checks if check.kind is Kind.OUTPUTS}
    near = abs(rate / predicted - 1) <= NEAR
    enough = of_one >= (LEAST if allowed >= BOUND else (1 - NEAR) * allowed)
    kept = all(check.ok for check in result.checks)
    return {
        "name": row.name, "in_flight": facts["in_flight"], "allowed": allowed,
        "stages": facts["stages"],
        "predicted": predicted, "measured": rate, "off": rate / predicted - 1, "of_one": of_one,
        "outputs": sorted(outputs), "devices": facts["devices"], "loads": facts["loads_seconds"],
        "met": kept and near and enough,
    }  # fmt: skip


def shown(entry: dict[str, Any]) -> list[str]:
    """Cells of a row."""
    if "failed" in entry:
        return [entry["name"], *[""] * 6, entry["failed"], "", "no"]
    same = all("bit-equal" in text for text in entry["outputs"])
    peaks = [_peak(device) for device in entry["devices"]]
    return [
        entry["name"], str(entry["in_flight"]), f"{entry['allowed']:.2f} x",
        f"{entry['predicted']:.2f}", f"{entry['measured']:.2f}", f"{entry['off']:+.1%}",
        f"{entry['of_one']:.2f} x", "bit-equal" if same else "; ".join(entry["outputs"]),
        "\n".join(peaks), "yes" if entry["met"] else "no",
    ]  # fmt: skip


def _peak(device: dict[str, Any]) -> str:
    limit = f" of {format_bytes(device['budget_bytes'])}" if device["budget_bytes"] else ""
    return f"{device['device']} {format_bytes(device['peak_measured_bytes'])}{limit}"


def main() -> int:
    """Print the table; 1 when something is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="rows whose name has such a text")
    parser.add_argument("--budget", default="", help="per device, as of optimize")
    parser.add_argument("--replicas", type=int, help="devices of a stage at most, as of optimize")
    parser.add_argument("--seconds", type=float, default=20.0, help="of timing a row")
    parser.add_argument("--time-limit", type=float, default=30.0, help="of planning a row")
    parser.add_argument("--json", type=Path, help="one object a line")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    chosen = [row for row in rows() if any(text in row.name for text in asked.only)]
    if not chosen:
        parser.error(f"no row has {' or '.join(asked.only)} in its name; --list names them")
    if asked.list:
        print(*(row.name for row in chosen), sep="\n")
        return 0
    about = f"{processor_name()}, {processors()} cores, load {os.getloadavg()[0]:.1f}"
    table = Table(title=f"samples a second, {about}")
    for name in ("row", "in flight", "bound", "predicted", "measured", "off", "of one device",
                 "outputs", "at worst", "met"):  # fmt: skip
        table.add_column(
            name, justify="left" if name in ("row", "outputs", "at worst") else "right"
        )
    met = True
    for row in chosen:
        try:
            entry = measure(row, asked)
        except OnnxrematError as error:
            entry = {"name": row.name, "failed": str(error), "met": False}
        met &= entry["met"]
        table.add_row(*shown(entry))
        print(" | ".join(cell.replace("\n", ", ") for cell in shown(entry)), flush=True)
        if asked.json:
            with asked.json.open("a") as file:
                file.write(json.dumps(entry) + "\n")
    Console(width=160).print(table)
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
