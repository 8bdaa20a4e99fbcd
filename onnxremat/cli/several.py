"""What optimize, verify and bench do with models planned for several devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxremat import api
from onnxremat.cli.console import Voice, size
from onnxremat.device.machine import Machine
from onnxremat.errors import OverBudgetError, UsageError, VerificationError
from onnxremat.graph.onnx_io import read_model
from onnxremat.pipeline.model_files import model_words
from onnxremat.pipeline.prepare import Settings
from onnxremat.pipeline.verify import Check
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.emit import metadata

Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        help="Plan for several devices: a machine file, or a shipped one's name "
        "(onnxremat devices show NAME). Then --budget takes cpu=1GiB,cuda:0=6GiB.",
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option("--pin", help="With --devices: PATTERN=DEVICE, by op name or type (repeatable)."),
]
Objective = Annotated[
    str,
    typer.Option(
        help="With --devices: time (of all runs and copies), makespan (devices side by side), auto."
    ),
]
OBJECTIVES = ("auto", "time", "makespan")


def parse_pins(texts: list[str] | None) -> list[tuple[str, str]]:
    """``PATTERN=DEVICE``.

    Raises:
        UsageError: malformed.
    """
    pins = []
    for text in texts or ():
        pattern, _, device = (part.strip() for part in text.rpartition("="))
        if not pattern or not device:
            raise UsageError(f"--pin '{text}' is not understood", hint="--pin 'Conv*=cuda:0'")
        pins.append((pattern, device))
    return pins


def optimize(
    voice: Voice,
    source: Path,
    out: Path | None,
    machine: str,
    budget: str,
    settings: Settings,
    options: PlanOptions,
    pin: list[str] | None,
    objective: str,
    bench_seconds: float,
    write_model: Path | None,
    read_solution: Path | None,
) -> None:
    """Plan for several devices, write the model, print what each device holds.

    Args:
        budget: "" lets every device use the memory that its file gives it.
        write_model: where to write the formulation before it is solved.
        read_solution: a solution of it from elsewhere.
    """
    from onnxremat.report.device_tables import device_table

    if objective not in OBJECTIVES:
        raise UsageError(f"unknown objective '{objective}'", hint="one of " + ", ".join(OBJECTIVES))
    pins = parse_pins(pin)
    result = api.optimize_devices(
        source, machine=machine, budget=budget, settings=settings, options=options, pins=pins,
        objective=objective, bench_seconds=bench_seconds, write_model=write_model,
        read_solution=read_solution, say=voice.say,
    )  # fmt: skip
    facts = result.facts()
    written = result.save(out) if out else []
    voice.table(device_table(facts))
    tell_checks(voice, list(result.verification.checks) if result.verification else [])
    if result.verification is None:
        tell_absent(voice, result.absent, result.deployment.machine)
    for note in facts["notes"]:
        voice.note(note)
    if written:
        voice.note("wrote " + ", ".join(str(path) for path in written))
    if write_model:
        voice.note(model_words(facts["written_model"], write_model))
    if voice.as_json:
        voice.result(facts)


def tell_absent(voice: Voice, absent: Mapping[str, str], machine: Machine) -> None:
    """Why nothing was run, and what the estimates of devices that are not here stand on."""
    if not absent:
        voice.note("not run (--no-measure): costs are analytic, figures are predictions")
        return
    for name, why in absent.items():
        voice.note(f"device '{name}' is not here: {why}")
        device = machine.device(name)
        if device.computes and not (device.flops and device.bandwidth):
            voice.note(
                f"the file gives no speeds of '{name}': it is planned as a usual processor; "
                "give flops and bandwidth in a machine file (docs/devices.md)"
            )
    voice.note(
        "not run and not verified here: costs of devices that are not here are analytic, figures "
        "are predictions; run onnxremat verify on the machine that has them"
    )


def is_deployment(path: Path) -> bool:
    """Whether a file carries a plan over several devices."""
    return "devices" in metadata(read_model(path))


def verify(voice: Voice, original: Path, result: Path, settings: Settings) -> None:
    """Outputs, order, placement and peaks of a model on several devices.

    Raises:
        VerificationError, OverBudgetError: it does not pass.
    """
    from onnxremat.execute.deployment import read_deployment
    from onnxremat.pipeline.reference import reference_outputs
    from onnxremat.pipeline.verify_devices import tolerance, verify_devices
    from onnxremat.session.compare import compare

    made = read_deployment(result)
    kept = made.plan.provenance.settings
    settings = replace(
        settings,
        shapes=settings.shapes or kept.get("shapes", {}),
        dims=settings.dims or kept.get("dims", {}),
    )
    feeds, expected = reference_outputs(original, settings)
    found = verify_devices(made, feeds)
    one = compare(found.outputs, expected)
    allowed = max(tolerance(made), one.tolerance)
    text = "bit-equal" if one.bit_equal else f"within {one.worst:.1e} (allowed {allowed:.0e})"
    checks = [Check("outputs of the original", one.bit_equal or one.worst <= allowed, text)]
    checks += found.checks
    tell_checks(voice, checks)
    for name, device in found.measured.items():
        voice.note(f"{name}: peak {size(device.peak)}, {device.how}")
    if voice.as_json:
        voice.result(
            {
                "ok": all(check.ok for check in checks),
                "checks": [vars(check) for check in checks],
                "peak_measured_bytes": {n: d.peak for n, d in found.measured.items()},
            }
        )
    failed = [check for check in checks if not check.ok]
    if any("within budget" in check.name for check in failed):
        raise OverBudgetError("a measured peak misses its budget", why=failed[-1].text)
    if failed:
        raise VerificationError(
            f"{result} does not pass", why="; ".join(f"{c.name}: {c.text}" for c in failed)
        )


def bench(voice: Voice, path: Path, settings: Settings, seconds: float, stop: Any) -> None:
    """A model on several devices against each of them alone."""
    from onnxremat.execute.deployment import read_deployment
    from onnxremat.ort.feeds import load_feeds, seeded_feeds
    from onnxremat.pipeline.bench_devices import bench_devices
    from onnxremat.report.tables import bench_table

    made = read_deployment(path)
    feeds = load_feeds(settings.data, made.graph) if settings.data else None
    timings = bench_devices(
        made, feeds or seeded_feeds(made.graph, settings.seed), seconds=seconds, stop=stop
    )
    voice.table(bench_table(timings))
    if voice.as_json:
        voice.result({"timings": [vars(timing) for timing in timings]})


def tell_checks(voice: Voice, checks: list[Check]) -> None:
    """One line per check."""
    for check in checks:
        voice.note(f"{'PASSED' if check.ok else 'FAILED'}  {check.name}: {check.text}")
