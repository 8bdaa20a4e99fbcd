"""onnxremat place graph.json -o split.json: which device runs which node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError
from onnxremat.limits import CALLS, PLACED_ON


def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="Placement graph (.json), or with --devices a model (.onnx).",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the split as JSON.")
    ] = None,
    check_split: Annotated[
        Path | None,
        typer.Option(
            "--check",
            help="Judge this split instead: every charge, every rule it breaks, and which released "
            "program would let it pass.",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices", help="Of a model: the machine it is priced on, a file or a shipped name."
        ),
    ] = None,
    write_graph: Annotated[
        Path | None,
        typer.Option("--graph", help="Of a model: write its placement graph (.json)."),
    ] = None,
    shape: args.Shape = None,
    dim: args.Dim = None,
    threads: args.Threads = 0,
    measure: args.Measure = True,
    write_model: Annotated[
        Path | None,
        typer.Option(
            "--write-model",
            help="Write the released integer program of the question (.mps or .lp), for a solver "
            "elsewhere; stop.",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="throughput (the largest load is least), two-maxima (the largest forward plus the "
            "largest backward time) or latency (of one sample)."
        ),
    ] = "throughput",
    contiguous: Annotated[
        bool | None,
        typer.Option(
            "--contiguous/--any",
            help="Devices form a chain of pieces of the forward pass, which is the default; or any "
            "placement. Not for latency, where every piece is contiguous. With --check, "
            "--contiguous refuses a split that is no chain.",
            show_default=False,
        ),
    ] = None,
    calls: Annotated[
        int, typer.Option(min=1, max=CALLS, help="For latency: pieces of each accelerator.")
    ] = 1,
    accelerators: Annotated[
        int | None,
        typer.Option(min=0, max=PLACED_ON, help="How many, instead of the file's maxFPGAs."),
    ] = None,
    cpus: Annotated[
        int | None,
        typer.Option(min=0, max=PLACED_ON, help="How many, instead of the file's maxCPUs."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Of one accelerator, instead of the file's: 2GiB, 2GB or bytes."),
    ] = None,
    time_limit: args.TimeLimit = 60.0,
    gap: Annotated[
        float, typer.Option(min=0.0, help="Good enough: value minus bound, share of the value.")
    ] = 0.0,
    seed: args.Seed = 0,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Place a graph on accelerators and CPUs: value, bound, and what each device is charged.

    The graph is a JSON file of the code package of dnn-partitioning (docs/placement.md). With
    --check, a split that breaks a rule is refused, exit code 5.
    """
    from onnxremat.cli import placing
    from onnxremat.placement.answer import Work

    voice = Voice(as_json, quiet)
    ask = placing.asked(objective, contiguous is not False, calls)
    for one, name in ((output, "-o"), (check_split, "--check")):
        if write_model and one:
            raise UsageError(
                f"--write-model stops before there is a split: nothing for {name}",
                hint=f"leave {name} out; the solution of a solver elsewhere is judged by --check",
            )
    if output and check_split:
        raise UsageError("--check writes no split", hint="leave out -o or --check")
    options = placing.OfModel(devices, write_graph, shape, dim, threads, measure, time_limit)
    with voice.working():
        given = placing.given(source, options, voice.say)
    if write_graph:
        placing.write(given, write_graph, voice)
    graph = placing.limited(given, str(source), accelerators, cpus, memory, ask)
    if write_model:
        placing.write_program(graph, ask, write_model, voice)
        return
    if check_split:
        placing.check_split(graph, check_split, ask, voice, chain=contiguous is True)
        return

    def moved(value: float, bound: float, stage: str) -> None:
        voice.update(f"placing ({stage}): best {value:.6g}, bound {bound:.6g}")

    with voice.working() as interrupt:
        voice.say("placing")
        work = Work(time_limit, gap, seed, interrupt, moved)
        answer = placing.place(graph, ask, work, output)
    if devices:  # those of a graph file are in the unit of the file
        answer = replace(answer, notes=(*answer.notes, "times are milliseconds"))
    placing.tell(graph, answer, ask, output, voice)
