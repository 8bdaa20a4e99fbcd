"""onnxremat explain MODEL [--budget B]: what a model needs, when, why, and what can be done."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.units import one_budget


def command(
    source: args.Model,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            "-b",
            help="A budget to judge: 2GiB, 2GB, bytes, 60% (of this machine's memory), 0.6x (of "
            "the model's peak).",
        ),
    ] = None,
    shape: args.Shape = None,
    dim: args.Dim = None,
    target: args.Target = "auto",
    time_limit: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds for the planner's search of the smallest budget; 0 asks rules that take "
            "a moment.",
        ),
    ] = 0.0,
    threads: args.Threads = 0,
    seed: args.Seed = 0,
    data: args.Data = None,
    measure: args.Measure = False,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Say what a model needs, when and why, and the smallest budgets, without planning.

    With --budget a budget is judged: exit code 3 where no plan can keep it.
    """
    from onnxremat.device.host import memory_bytes
    from onnxremat.errors import InfeasibleError
    from onnxremat.graph.light import read_structure
    from onnxremat.pipeline.floor import beside_too
    from onnxremat.pipeline.prepare import prepare
    from onnxremat.pipeline.settings import Settings
    from onnxremat.planner.options import PlanOptions
    from onnxremat.report.explanation import Explanation, asked, limit
    from onnxremat.rewrite.emit import metadata
    from onnxremat.units import format_bytes

    voice = Voice(as_json, quiet)
    wanted = one_budget(budget) if budget is not None else None
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), target, threads, seed, data, measure,
        to_write=False,
    )  # fmt: skip
    typed = {"--shape": shape or [], "--dim": dim or []}
    typed |= {"--target": [target]} if target != "auto" else {}
    with voice.working():
        prepared = prepare(source, settings.asked(PlanOptions(time_limit=time_limit)), voice.say)
        voice.say("looking for the smallest budgets")
        told = Explanation.of(
            prepared, asked(str(source), typed), wanted, memory_bytes(), time_limit
        )
    voice.table(told.page())
    for note in prepared.notes:
        voice.note(note)
    if "plan" in metadata(read_structure(source)):
        voice.note(
            f"{source} is a planned model, explained as it was before: its plan is shown by "
            f"onnxremat report {source} -o report.html"
        )
    if as_json:
        voice.result(told.facts())
    if told.verdict and told.verdict.keeps is False:
        least = told.process(told.smallest)
        raise InfeasibleError(
            f"no plan for {prepared.name} fits {format_bytes(told.asked)} ({told.asked} B)",
            why=beside_too(told.verdict.words, told.beside),
            hint=f"--budget {limit(least)}, the smallest budget found here", smallest=least,
            lower_bound=told.verdict.lower + told.beside.total,
        )  # fmt: skip
