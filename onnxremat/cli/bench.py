"""onnxremat bench A B ...: paired timing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice


def command(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODELS", help="Models; the first is the reference.")
    ],
    seconds: Annotated[float, typer.Option(min=0.1, help="How long.")] = 10.0,
    shape: args.Shape = None,
    dim: args.Dim = None,
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    data: args.Data = None,
    throughput: Annotated[
        bool,
        typer.Option(
            "--throughput",
            help="Seconds from sample to sample: models planned with --objective throughput run "
            "as full pipelines.",
        ),
    ] = False,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Time models in turn; medians and ratios to the first. Planned models run as planned,
    others under default options. One model planned for several devices alone: against each of
    them."""
    from onnxremat.pipeline.bench import OnDevices, bench_files
    from onnxremat.pipeline.devices.rates import in_pipeline
    from onnxremat.pipeline.settings import Settings
    from onnxremat.report.tables import bench_table

    voice = Voice(as_json, quiet)
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), "none", threads, seed, data
    )  # fmt: skip
    with voice.working() as interrupt:
        voice.say("timing")
        timings = bench_files(
            models, settings, seconds, interrupt, in_pipeline if throughput else OnDevices
        )
    voice.table(bench_table(timings))
    rates = {timing.name: 1 / timing.seconds for timing in timings}
    if throughput:
        from onnxremat.pipeline.devices.rates import predicted

        told = {str(path): predicted(path) for path in models}
        for name, rate in rates.items():
            by = f", {told[name]:.4g} predicted (1 / largest load)" if told.get(name) else ""
            voice.note(f"{name}: {rate:.4g} samples per second{by}")
    if as_json:
        rows = [vars(timing) | {"model": timing.name} for timing in timings]
        if throughput:
            rows = [
                row | {"samples_per_second": rates[row["name"]],
                       "samples_per_second_predicted": told.get(row["name"])}
                for row in rows
            ]  # fmt: skip
        voice.result({"timings": rows})
