"""onnxremat place graph.json -o split.json: which device runs which node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import NoPlanError, UsageError, VerificationError
from onnxremat.units import parse_bytes

if TYPE_CHECKING:
    from onnxremat.placement.answer import Answer
    from onnxremat.placement.calls import Timing
    from onnxremat.placement.graph import PlacementGraph
    from onnxremat.placement.methods import Ask
    from onnxremat.placement.splits import Split


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
    objective: Annotated[
        str,
        typer.Option(
            help="throughput (the largest load is least), two-maxima (the largest forward plus the "
            "largest backward time) or latency (of one sample)."
        ),
    ] = "throughput",
    contiguous: Annotated[
        bool,
        typer.Option(
            "--contiguous/--any",
            help="Devices form a chain of pieces of the forward pass; or any placement. Not for "
            "latency, where every piece is contiguous.",
        ),
    ] = True,
    calls: Annotated[int, typer.Option(min=1, help="For latency: pieces of each accelerator.")] = 1,
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
    from onnxremat.graph.onnx_io import check_writable
    from onnxremat.placement.answer import Work
    from onnxremat.placement.calls import forward_only
    from onnxremat.placement.graph import check
    from onnxremat.placement.graph_files import read_graph
    from onnxremat.placement.methods import LATENCY, solve

    voice = Voice(as_json, quiet)
    ask = _asked(objective, contiguous, calls)
    if output:
        if check_split:
            raise UsageError("--check writes no split", hint="leave out -o or --check")
        check_writable(output)
    graph = read_graph(source)
    size = parse_bytes(memory) if memory is not None else None
    graph = graph.with_limits(accelerators, cpus, size)
    check(graph, str(source))
    if ask.objective == LATENCY:
        forward_only(graph)
    if check_split:
        _check(graph, check_split, ask, voice)
        return

    def moved(value: float, bound: float, stage: str) -> None:
        voice.update(f"placing ({stage}): best {value:.6g}, bound {bound:.6g}")

    with voice.working() as interrupt:
        voice.say("placing")
        answer = solve(graph, ask, Work(time_limit, gap, seed, interrupt, moved))
    _tell(graph, answer, ask, output, voice)


def _asked(objective: str, contiguous: bool, calls: int) -> Ask:
    from onnxremat.placement.methods import LATENCY, Ask

    ask = Ask(objective, contiguous, calls)
    if calls > 1 and objective != LATENCY:
        raise UsageError("--calls is for latency", hint="add --objective latency")
    if not contiguous and objective == LATENCY:
        raise UsageError(
            "--any is not for latency", why="a piece is called once, so it is contiguous",
            hint="--calls 2 gives accelerators two pieces each",
        )  # fmt: skip
    return ask


def _tell(
    graph: PlacementGraph, answer: Answer, ask: Ask, output: Path | None, voice: Voice
) -> None:
    from onnxremat.placement.judge import judge
    from onnxremat.placement.shown import answer_facts, timing_facts, verdict_facts
    from onnxremat.placement.splits import write_split
    from onnxremat.report.placements import placement_table

    if answer.where is None:
        raise NoPlanError(
            "no placement found in time", why="that there is none is not proven",
            hint="a longer --time-limit, a CPU, or more memory",
        )  # fmt: skip
    split = answer.split(graph)
    verdict = judge(graph, split.by_accelerator(answer.calls))
    facts: dict[str, Any] = {
        "objective": ask.objective,
        "contiguous_only": ask.contiguous,
        **answer_facts(answer),
        **verdict_facts(graph, verdict),
    }
    key, value, loads = "maxLoad", verdict.max_load, [charge.load for charge in verdict.charges]
    if answer.slots is not None:
        timing = _timed(graph, split, ask)
        facts |= timing_facts(graph, timing)
        key, value = "totalLatency", timing.latency
        loads = [0.0] * (len(split.accelerators) + len(split.cpus))
        for call in timing.calls:
            loads[split.accelerators.index(call.nodes)] = call.load
    if output:
        told = {key: value, "bound": answer.bound, "status": answer.status}
        write_split(output, graph, split, loads, told)
        voice.note(f"wrote {output}")
    if voice.as_json:
        voice.result(facts)
    else:
        voice.table(placement_table(facts))


def _timed(graph: PlacementGraph, split: Split, ask: Ask) -> Timing:
    """Pieces of an accelerator one after the other, as they are listed."""
    from onnxremat.placement.calls import time_calls

    pieces = [(i // ask.calls, nodes) for i, nodes in enumerate(split.accelerators)]
    return time_calls(graph, pieces, in_order=True)


def _check(graph: PlacementGraph, path: Path, ask: Ask, voice: Voice) -> None:
    from onnxremat.placement.calls import compute_latency
    from onnxremat.placement.judge import Finding, judge
    from onnxremat.placement.methods import LATENCY
    from onnxremat.placement.shown import timing_facts, verdict_facts
    from onnxremat.placement.splits import read_split
    from onnxremat.report.placements import findings_lines, placement_table

    split, moved = read_split(path, graph).filled(graph)
    verdict = judge(graph, split.by_accelerator(ask.calls))
    notes = [f"{len(moved)} nodes are placed by their colour"] if moved else []
    facts: dict[str, Any] = {
        "objective": ask.objective,
        "value": ask.value(verdict),
        "notes": notes,
        **verdict_facts(graph, verdict),
    }
    broken = verdict.broken(contiguous=False)
    if ask.objective == LATENCY:
        timing = compute_latency(graph, split) if ask.calls == 1 else _timed(graph, split, ask)
        facts |= {**timing_facts(graph, timing), "value": timing.latency}
        broken = [f for f in broken if f.rule != "number of cpus"]  # every node has its own core
        if timing.latency == float("inf"):
            broken.append(Finding("pieces", "pieces wait for each other in a circle", ()))
    if voice.as_json:
        voice.result(facts)
    else:
        voice.table(placement_table(facts))
        for line in findings_lines(facts["findings"]):
            voice.note(line)
    if broken:
        raise VerificationError(
            "the split breaks rules of its graph", where=str(path),
            why="; ".join(finding.text for finding in broken),
            hint="onnxremat place without --check finds one that keeps them",
        )  # fmt: skip
