"""onnxremat place graph.json -o split.json: which device runs which node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import NoPlanError, UsageError, VerificationError
from onnxremat.graph.onnx_io import check_writable
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.contiguous import solve
from onnxremat.placement.graph import PlacementGraph, check
from onnxremat.placement.graph_files import read_graph
from onnxremat.placement.judge import judge
from onnxremat.placement.shown import answer_facts, verdict_facts
from onnxremat.placement.splits import read_split, write_split
from onnxremat.report.placements import findings_lines, placement_table
from onnxremat.units import parse_bytes


def command(
    source: Annotated[Path, typer.Argument(help="Placement graph (.json).", show_default=False)],
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
    accelerators: Annotated[
        int | None, typer.Option(min=0, help="How many, instead of the file's maxFPGAs.")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=0, help="How many, instead of the file's maxCPUs.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Of one accelerator, instead of the file's: 2GiB, 2GB or bytes."),
    ] = None,
    time_limit: args.TimeLimit = 60.0,
    seed: args.Seed = 0,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Place a graph on accelerators and CPUs: the largest load is the least there is.

    The graph is a JSON file of the code package of dnn-partitioning (docs/placement.md). Devices
    form a chain of pieces of the forward pass. With --check, a split that breaks a rule is refused,
    exit code 5.
    """
    voice = Voice(as_json, quiet)
    if output:
        if check_split:
            raise UsageError("--check writes no split", hint="leave out -o or --check")
        check_writable(output)
    graph = read_graph(source)
    size = parse_bytes(memory) if memory is not None else None
    graph = graph.with_limits(accelerators, cpus, size)
    check(graph, str(source))
    if check_split:
        _check(graph, check_split, voice)
        return
    with voice.working() as interrupt:
        voice.say("placing")
        work = Work(time_limit, seed=seed, stop=interrupt)
        answer = solve(graph, work)
    _tell(graph, answer, output, voice)


def _tell(graph: PlacementGraph, answer: Answer, output: Path | None, voice: Voice) -> None:
    if answer.where is None:
        raise NoPlanError(
            "no placement found in time", why="that there is none is not proven",
            hint="a longer --time-limit, a CPU, or more memory",
        )  # fmt: skip
    split = answer.split(graph)
    verdict = judge(graph, split)
    facts: dict[str, Any] = {
        "objective": "throughput",
        **answer_facts(answer),
        **verdict_facts(graph, verdict),
    }
    if output:
        told = {"maxLoad": verdict.max_load, "bound": answer.bound, "status": answer.status}
        write_split(output, graph, split, [charge.load for charge in verdict.charges], told)
        voice.note(f"wrote {output}")
    if voice.as_json:
        voice.result(facts)
    else:
        voice.table(placement_table(facts))


def _check(graph: PlacementGraph, path: Path, voice: Voice) -> None:
    split, moved = read_split(path, graph).filled(graph)
    verdict = judge(graph, split)
    notes = [f"{len(moved)} nodes are placed by their colour"] if moved else []
    facts: dict[str, Any] = {
        "value": verdict.max_load,
        "notes": notes,
        **verdict_facts(graph, verdict),
    }
    if voice.as_json:
        voice.result(facts)
    else:
        voice.table(placement_table(facts))
        for line in findings_lines(facts["findings"]):
            voice.note(line)
    broken = verdict.broken(contiguous=False)
    if broken:
        raise VerificationError(
            "the split breaks rules of its graph", where=str(path),
            why="; ".join(finding.text for finding in broken),
            hint="onnxremat place without --check finds one that keeps them",
        )  # fmt: skip
