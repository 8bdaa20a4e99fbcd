"""onnxremat max-batch IN --budget 2GiB: the largest batch that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxremat.cli import args, training
from onnxremat.cli.asked import repeated
from onnxremat.cli.console import Voice, percent
from onnxremat.device.host import processors
from onnxremat.errors import UsageError
from onnxremat.planner.options import PlanOptions
from onnxremat.units import format_bytes

if TYPE_CHECKING:
    from onnxremat import api


# Options that the command which carries the answer out takes, too.
AS_GIVEN = (
    "train", "loss", "prediction", "loss_output", "optimizer", "target", "threads", "fixed_order",
    "not_counted",
)  # fmt: skip
MaxOverhead = Annotated[
    str, typer.Option("--max-overhead", help="Most extra time a plan may take: 20%.")
]
MostBatch = Annotated[int, typer.Option("--most", min=1, help="Try no larger batch.")]
FileBatch = Annotated[
    int,
    typer.Option("--file-batch", min=1, help="Batch that a graph file's sizes and costs are for."),
]


def command(
    context: typer.Context,
    source: args.ModelOrGraph,
    budget: Annotated[
        str, typer.Option("--budget", "-b", help="2GiB, bytes, or 60% (of this machine's memory).")
    ],
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", help="Dimension to grow, batch; others bound, seq=128 (repeatable)."),
    ] = None,
    max_overhead: MaxOverhead = "",
    most: MostBatch = 65536,
    file_batch: FileBatch = 1,
    train: Annotated[
        bool, typer.Option("--train", help="Make a training step of the model first.")
    ] = False,
    loss: training.Loss = "cross-entropy",
    prediction: training.Prediction = None,
    loss_output: training.LossOutput = None,
    optimizer: training.Optimizer = "sgd",
    target: args.Target = "auto",
    time_limit: args.TimeLimit = 10.0,
    work: args.Work = None,
    gap: args.Gap = 5e-4,
    solver: args.Solver = "auto",
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    fixed_order: args.FixedOrder = False,
    measure: args.Measure = True,
    not_counted: args.NotCounted = "",
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Find the largest batch that a plan keeps within the budget.

    --time-limit holds for each batch tried. Costs are measured once and scaled. A graph file has
    no batch dimension: all its sizes and costs are scaled. Every plan is of the whole:
    optimize also tries regions in parts.
    """
    from onnxremat import api
    from onnxremat.grad import Settings as Training
    from onnxremat.pipeline.settings import Settings

    voice = Voice(as_json, quiet)
    training.check_train(context, train)
    grown, bound = split_dims(dim)
    settings = Settings(
        dims=args.parse_dims(bound), target=target, threads=threads, seed=seed, measure=measure,
        fixed_order=fixed_order, not_counted=args.parse_parts(not_counted),
    )  # fmt: skip
    if train:
        made = Training(
            loss=loss, prediction=prediction, loss_output=loss_output,
            optimizer=training.optimizer_of(optimizer),
        )  # fmt: skip
        settings = replace(settings, train=made)
    share = args.parse_overhead(max_overhead or None)
    limit = inf if share is None else share
    with voice.working() as interrupt:
        options = PlanOptions(
            time_limit=time_limit, work=work, gap=gap, solver=solver, seed=seed,
            threads=threads or processors(), progress=voice.planning, stop=interrupt,
        )  # fmt: skip
        found = api.max_batch(
            source, budget=budget, dimension=grown, max_overhead=limit, most=most,
            file_batch=file_batch, settings=settings, options=options, say=voice.say,
        )  # fmt: skip
        more = [word for each in bound for word in ("--dim", each)]
        tell(voice, found, source, [*more, *repeated(context, AS_GIVEN)])
    if as_json:
        voice.result(found.facts())


def tell(voice: Voice, found: api.MaxBatch, source: Path, more: Sequence[str]) -> None:
    """The table, the answer in a sentence, and what to do with it.

    Args:
        more: options of that.
    """
    from onnxremat.report.batches import batch_table

    voice.table(batch_table(found.trials, found.dimension, found.budget))
    best = found.best
    last = found.trials[-1].batch
    above = next((trial for trial in found.trials if trial.batch == best.batch + 1), None)
    proof = "no larger one was tried" if best.batch == last else "not proven: a larger one may fit"
    if found.proven and above is not None:
        proof = f"proven: {best.batch + 1} does not, {above.why}"
    voice.note(
        f"largest {found.dimension}: {best.batch} within {format_bytes(found.budget)}, "
        f"{percent(best.overhead)} time ({proof})"
    )
    if source.suffix != ".json":
        words = ["onnxremat", "optimize", str(source), "OUT"]
        words += ["--dim", f"{found.dimension}={best.batch}", "--budget", str(found.budget), *more]
        voice.command("carry it out with", words)


def split_dims(texts: list[str] | None) -> tuple[str, list[str]]:
    """The dimension to grow (empty when none is named), and those that are bound.

    Raises:
        UsageError: two to grow.
    """
    grown = [text.strip() for text in texts or () if "=" not in text]
    if len(grown) > 1:
        raise UsageError(
            f"--dim names two dimensions to grow: {', '.join(grown)}",
            hint=f"bind one of them: --dim {grown[1]}=128",
        )
    return "".join(grown), [text for text in texts or () if "=" in text]
