"""What ``place`` does: read, place or judge, tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import ModelError, NoPlanError, UsageError, VerificationError
from onnxremat.graph.atomic import atomic, check_writable
from onnxremat.graph.onnx_io import missing_file
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.calls import Timing, compute_latency, forward_only, time_calls
from onnxremat.placement.graph import PlacementGraph, check
from onnxremat.placement.graph_files import read_graph, write_graph
from onnxremat.placement.judge import Finding, judge
from onnxremat.placement.latency_program import latency_program
from onnxremat.placement.methods import LATENCY, TWO_MAXIMA, Ask, solve
from onnxremat.placement.released import max_load_program
from onnxremat.placement.shown import answer_facts, timing_facts, verdict_facts
from onnxremat.placement.splits import Split, read_split, write_split
from onnxremat.planner.export import SUFFIXES, write_model
from onnxremat.report.placements import findings_lines, placement_table
from onnxremat.report.suffix import check_suffix
from onnxremat.units import parse_bytes


def asked(objective: str, contiguous: bool, calls: int) -> Ask:
    """What the options ask for.

    Raises:
        UsageError: they do not go together.
    """
    ask = Ask(objective, contiguous, calls)
    if calls > 1 and objective != LATENCY:
        raise UsageError("--calls is for latency", hint="add --objective latency")
    if not contiguous and objective == LATENCY:
        raise UsageError(
            "--any is not for latency", why="a piece is called once, so it is contiguous",
            hint="--calls 2 gives accelerators two pieces each",
        )  # fmt: skip
    return ask


@dataclass(frozen=True)
class OfModel:
    """Options of a model that is to become a placement graph.

    Attributes:
        devices: a machine file, or a shipped one's name.
        graph: where the graph is written.
    """

    devices: str | None
    graph: Path | None
    shape: list[str] | None
    dim: list[str] | None
    threads: int
    measure: bool
    time_limit: float = 60.0


def given(source: Path, options: OfModel, say: Callable[[str], None]) -> PlacementGraph:
    """The graph of a file, or of a model on a machine.

    Raises:
        ModelError: wrong input.
        UsageError: options of a model with a graph, or a model without a machine.
        UnsupportedError: devices of one kind that are not alike.
    """
    if source.suffix.lower() == ".json":
        of_models = {
            "--devices": options.devices, "--graph": options.graph, "--shape": options.shape,
            "--dim": options.dim, "--threads": options.threads, "--no-measure": not options.measure,
        }  # fmt: skip
        for name, there in of_models.items():
            if there:
                raise UsageError(f"{name} is for models, {source} is a graph", hint="leave it out")
        return read_graph(source)
    if not source.is_file():
        raise missing_file(source, ".onnx", ModelError)
    if options.devices is None:
        raise UsageError(
            f"{source} is no placement graph (.json)", why="a model is priced on a machine first",
            hint="add --devices MACHINE (onnxremat devices lists them)",
        )  # fmt: skip
    if options.graph:
        check_suffix(options.graph, (".json",))
        check_writable(options.graph)
    from onnxremat.device.files import read_machine  # slow to load, and not for graphs
    from onnxremat.pipeline.settings import Settings
    from onnxremat.planner.options import PlanOptions
    from onnxremat.studies.placement_graph import placement_graph

    settings = Settings(
        args.parse_shapes(options.shape), args.parse_dims(options.dim), threads=options.threads,
        measure=options.measure,
    )  # fmt: skip
    settings = settings.asked(PlanOptions(time_limit=options.time_limit))
    return placement_graph(str(source), read_machine(options.devices), settings, say)


def write(graph: PlacementGraph, path: Path, voice: Voice) -> None:
    """Write a placement graph."""
    write_graph(graph, path)
    voice.note(f"wrote {path}: {graph.count} nodes, {len(graph.tail)} edges")


def limited(
    given: PlacementGraph,
    where: str,
    accelerators: int | None,
    cpus: int | None,
    memory: str | None,
    ask: Ask,
) -> PlacementGraph:
    """The graph with other limits where they are given.

    Raises:
        ModelError: no device.
        UnsupportedError: latency of a graph with a backward pass.
        UsageError: not a size.
    """
    size = parse_bytes(memory) if memory is not None else None
    graph = given.with_limits(accelerators, cpus, size)
    check(graph, where)
    if ask.objective == LATENCY:
        forward_only(graph)
    return graph


def place(graph: PlacementGraph, ask: Ask, work: Work, output: Path | None) -> Answer:
    """The best placement that is found.

    Raises:
        InfeasibleError: proven that nothing keeps the limits.
        NoPlanError: none was found in time.
        UsageError: the split cannot be written.
    """
    if output:
        check_writable(output)
    answer = solve(graph, ask, work)
    if answer.where is None:
        raise NoPlanError(
            "no placement found in time", why="that there is none is not proven",
            hint="a longer --time-limit, a CPU, or more memory",
        )  # fmt: skip
    return answer


def write_program(graph: PlacementGraph, ask: Ask, path: Path, voice: Voice) -> None:
    """Write the released integer program of a question.

    Raises:
        UsageError: another suffix, or not writable.
    """
    check_suffix(path, SUFFIXES)
    check_writable(path)
    if ask.objective == LATENCY:
        model = latency_program(graph, ask.calls)
    else:
        two = ask.objective == TWO_MAXIMA
        model = max_load_program(graph, contiguous=ask.contiguous, two=two)
    with atomic(path) as temporary:
        write_model(model, temporary, path.suffix)
    facts = {"model": str(path), "columns": model.columns, "rows": model.rows}
    voice.note(f"wrote {path}: {model.columns} columns, {model.rows} rows")
    if voice.as_json:
        voice.result(facts)


def tell(
    graph: PlacementGraph, answer: Answer, ask: Ask, output: Path | None, voice: Voice
) -> None:
    """Print an answer, and write its split."""
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
    pieces = [(i // ask.calls, nodes) for i, nodes in enumerate(split.accelerators)]
    return time_calls(graph, pieces, in_order=True)


def check_split(graph: PlacementGraph, path: Path, ask: Ask, voice: Voice, *, chain: bool) -> None:
    """Judge a split.

    Args:
        chain: refuse it, too, where devices form no chain of contiguous pieces.

    Raises:
        ModelError: not a split of the graph.
        VerificationError: it breaks rules.
    """
    split, moved = read_split(path, graph).filled(graph)
    verdict = judge(graph, split.by_accelerator(ask.calls))
    notes = [f"{len(moved)} nodes are placed by their colour"] if moved else []
    facts: dict[str, Any] = {
        "objective": ask.objective,
        "value": ask.value(verdict),
        "notes": notes,
        **verdict_facts(graph, verdict),
    }
    broken = verdict.broken(contiguous=chain)
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
