"""onnxremat plan IN -o plan.json --budget 2GiB: decide only."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice, percent, size
from onnxremat.device.host import processors
from onnxremat.errors import UsageError
from onnxremat.planner.options import Method, PlanOptions
from onnxremat.report.suffix import check_suffix
from onnxremat.units import format_bytes, format_seconds, one_budget

if TYPE_CHECKING:
    from onnxremat.pipeline.closed_loop import Candidate
    from onnxremat.pipeline.study_problem import Subject


def command(
    source: args.ModelOrGraph,
    budget: args.Budget = "0.6x",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the plan as JSON.")
    ] = None,
    planner: args.Planner = "auto",
    formulation: args.Formulation = "",
    write_model: Annotated[
        Path | None,
        typer.Option(
            "--write-model",
            help="Write the formulation (.mps or .lp) for a solver elsewhere; stop.",
        ),
    ] = None,
    read_solution: Annotated[
        Path | None,
        typer.Option(
            "--read-solution", help="The plan of a solution (.sol) of the formulation, checked."
        ),
    ] = None,
    cut: Annotated[
        list[int] | None,
        typer.Option("--cut", help="Op to cut at, in a written cuts formulation (repeatable)."),
    ] = None,
    max_columns: args.MaxColumns = args.LARGEST,
    warm_start: args.WarmStart = True,
    shape: args.Shape = None,
    dim: args.Dim = None,
    target: args.Target = "auto",
    time_limit: args.TimeLimit = 60.0,
    work: args.Work = None,
    gap: args.Gap = 5e-5,
    solver: args.Solver = "auto",
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    fixed_order: args.FixedOrder = False,
    dw_policy: args.DwPolicyName = None,
    split_batch: args.SplitBatch = "auto",
    not_counted: args.NotCounted = "",
    fission: args.Fission = "auto",
    data: args.Data = None,
    measure: args.Measure = True,
    fresh: args.Fresh = False,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Decide what to store and what to recompute; write plan.json, for apply.

    A graph file of a planner study (.json: nodes with sizes and costs) is planned as it is; a
    share of its budget means the peak of storing everything in the file's order.
    """
    from onnxremat.graph.atomic import check_writable
    from onnxremat.pipeline.model_files import number_of_bytes, write_formulation
    from onnxremat.pipeline.phases import Phases
    from onnxremat.pipeline.settings import Settings
    from onnxremat.pipeline.study_problem import read_subject
    from onnxremat.pipeline.time_left import left_of, limited
    from onnxremat.pipeline.ways import plan_within_budget
    from onnxremat.studies.graph_file import plan_graph

    voice = Voice(as_json, quiet)
    method = Method(planner, formulation, warm_start, max_columns)
    method.heeded(written=write_model is not None or read_solution is not None)
    elsewhere = _elsewhere(write_model, read_solution, planner, formulation, cut, output)
    limit = one_budget(budget)
    if output is not None and output.suffix == ".onnx":
        raise UsageError(
            f"a plan is no model: {output}",
            hint="-o plan.json, then onnxremat apply IN plan.json OUT.onnx",
        )
    for path in (output, write_model):
        if path:
            check_writable(path)
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), target, threads, seed, data, measure, fresh,
        fixed_order, split_batch=args.parse_split(split_batch),
        not_counted=args.parse_parts(not_counted),
        fission=args.parse_fission(fission), dw_policy=args.parse_dw_policy(dw_policy),
    )  # fmt: skip
    log = Phases(voice.say)
    with voice.working() as interrupt, ExitStack() as stack:
        options = PlanOptions(
            time_limit=time_limit, work=work, gap=gap, solver=solver, seed=seed, method=method,
            threads=threads or processors(), progress=voice.planning, stop=interrupt,
        )  # fmt: skip
        stack.enter_context(limited(options, log))
        subject = read_subject(source, settings.asked(options, limit), log)
        options = left_of(options, log)
        if elsewhere and elsewhere.write:
            voice.say("writing the model")
            bytes_ = number_of_bytes(subject, one_budget(budget))
            facts = write_formulation(
                subject, bytes_, elsewhere.name, elsewhere.write, cut_ops=elsewhere.cuts,
                most_columns=max_columns,
            )  # fmt: skip
            _tell_model(voice, facts, elsewhere.write, as_json)
            return
        if elsewhere and elsewhere.read:
            voice.say("replaying the solution")
            facts, text = _from_solution(
                subject, number_of_bytes(subject, one_budget(budget)), elsewhere, max_columns
            )
        else:
            voice.say("planning")
            interrupt.at_once = method.published
            if subject.model is None:
                facts = plan_graph(subject, limit, options)
                text = json.dumps(facts)
            else:
                made = plan_within_budget(subject.model, limit, options, log)
                facts, text = _facts(made), made.plan.dumps()
        interrupt.at_once = False  # there is something to keep now
        _tell(voice, facts, output, text, as_json)


@dataclass(frozen=True)
class _Elsewhere:
    """A formulation that is solved somewhere else."""

    name: str
    write: Path | None
    read: Path | None
    cuts: tuple[int, ...]


def _elsewhere(
    write: Path | None,
    read: Path | None,
    planner: str,
    formulation: str,
    cuts: list[int] | None,
    output: Path | None,
) -> _Elsewhere | None:
    """Raises:
    UsageError: options that do not go together, or an unknown suffix.
    """
    from onnxremat.graph.onnx_io import missing_file
    from onnxremat.pipeline.model_files import SOLUTION, no_model
    from onnxremat.planner.export import SUFFIXES

    if write is None and read is None:
        if cuts:
            raise UsageError("--cut is for --write-model and --read-solution")
        return None
    if write is not None and read is not None:
        raise UsageError("--write-model and --read-solution are two steps", hint="one at a time")
    if planner != "auto":
        raise no_model(planner)
    if write is not None and output is not None:
        raise UsageError(
            f"--write-model stops before there is a plan: nothing to write to {output}",
            hint="leave --output out; once the model is solved: --read-solution F.sol --output "
            f"{output}",
        )
    if write is not None:
        check_suffix(write, SUFFIXES)
    if read is not None and not read.is_file():
        raise missing_file(read, ".sol", make=SOLUTION)
    return _Elsewhere(formulation or "cuts", write, read, tuple(cuts or ()))


def _from_solution(
    subject: Subject, limit: int, elsewhere: _Elsewhere, max_columns: int
) -> tuple[dict[str, Any], str]:
    """Facts and text of the plan that a solution file holds."""
    from onnxremat.pipeline.closed_loop import as_given
    from onnxremat.pipeline.in_session import OneSession
    from onnxremat.pipeline.limits import Limit
    from onnxremat.pipeline.model_files import read_formulation
    from onnxremat.pipeline.phases import Phases
    from onnxremat.studies.graph_file import facts_of

    assert elsewhere.read is not None
    solution = read_formulation(
        subject, limit, elsewhere.name, elsewhere.read, cut_ops=elsewhere.cuts,
        most_columns=max_columns,
    )  # fmt: skip
    if subject.model is None:
        facts = facts_of(subject, limit, solution)
        return facts, json.dumps(facts)
    made = as_given(OneSession(subject.model, Limit(limit), Phases()), solution)
    return _facts(made), made.plan.dumps()


def _tell_model(voice: Voice, facts: dict[str, Any], path: Path, as_json: bool) -> None:
    from onnxremat.pipeline.model_files import model_words

    voice.note(model_words(facts, path))
    if facts["cuts"]:
        voice.note("the memory limit holds at op " + ", ".join(map(str, facts["cuts"])))
    if as_json:
        voice.result(facts)


def _tell(
    voice: Voice, facts: dict[str, Any], output: Path | None, text: str, as_json: bool
) -> None:
    from onnxremat.graph.atomic import atomic

    if output:
        with atomic(output) as temporary:
            temporary.write_text(text + "\n")
        voice.note(f"wrote {output}")
    voice.note(_sentence(facts))
    for note in facts["notes"]:
        voice.note(note)
    if as_json:
        voice.result(facts)


def _facts(made: Candidate) -> dict[str, Any]:
    from onnxremat.pipeline.artifact import CPU

    facts = made.plan.provenance
    return {
        "status": facts.status,
        "budget_bytes": made.budget,
        "limit_bytes": made.limit,
        "beside_bytes": made.artifact.beside,
        "process_bytes": made.process,
        "peak_predicted_bytes": made.peak,
        "peak_measured_bytes": made.measured.peaks[CPU] if made.measured else None,
        "overhead_planned": facts.overhead,
        "bound": facts.bound_overhead,
        "bound_kind": facts.bound_kind,
        "bound_any_order": facts.any_order,
        "bound_staged": facts.staged,
        "gap": facts.gap,
        "plan_seconds": facts.plan_seconds,
        "recomputed_ops": made.plan.recomputations,
        "planner": facts.planner,
        "notes": list(facts.notes),
    }


def _takes(facts: dict[str, Any]) -> str:
    """Of a graph file bytes of the problem, of a model those of the process."""
    peak, whole = facts["peak_predicted_bytes"], facts.get("process_bytes")
    if whole is None:
        return f"peak {size(peak)} of {size(facts['budget_bytes'])}"
    taken, budget = (format_bytes(n, up=True) for n in (whole, facts["budget_bytes"]))
    return f"takes {taken} of {budget}, {size(peak)} of it weights and values"


def _sentence(facts: dict[str, Any]) -> str:
    scope = "any order" if facts["bound_any_order"] else "this order"
    if facts["bound_staged"]:
        scope = "plans that run each op at most once per stage, in this order"
    return (
        f"{facts['status']}: {_takes(facts)}, overhead {percent(facts['overhead_planned'])}, bound "
        f"{percent(facts['bound'])} ({scope}), {facts['recomputed_ops']} recomputations, "
        f"{facts['planner']}, planned in {format_seconds(facts['plan_seconds'])}"
    )
