"""What ``train`` does with several processes: options that go together, who trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError
from onnxremat.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from onnxremat.training.data import Batches, Data
    from onnxremat.training.trainer import Trainer
    from onnxremat.workers.mpi import Ranks
    from onnxremat.workers.pipelines.pipelined import PipelineParallel
    from onnxremat.workers.pipelines.staged import Wanted
    from onnxremat.workers.pipelines.within import Fitted
    from onnxremat.workers.spans import Span, Spans
    from onnxremat.workers.sums.overlap import Overlapped

MICRO_BATCHES = 8


def schedules_of(
    given: list[str],
    pipeline: bool,
    micro_batches: int,
    stages: str,
    in_flight: int | None,
    budget: str = "",
) -> tuple[str, Wanted | None]:
    """The rate's schedule, and the pipeline asked for.

    Raises:
        UsageError: options that do not go together, or an unknown name.
    """
    from onnxremat.training.schedules import KINDS

    known = _pipelines() if pipeline or not set(given).issubset(KINDS) else ()
    orders = [name for name in given if name in known]
    rates = [name for name in given if name not in orders]
    if len(orders) > 1 or len(rates) > 1:
        raise UsageError(f"--schedule {' --schedule '.join(given)}: two of one kind")
    rate = rates[0] if rates else "constant"
    if pipeline and rate not in KINDS:
        raise UsageError(
            f"unknown schedule '{rate}'",
            hint=f"of the pipeline: {', '.join(known)}; of the rate: {', '.join(KINDS)}",
        )
    if pipeline:
        from onnxremat.workers.pipelines.staged import Wanted

        order = orders[0] if orders else "1f1b"
        limit = parse_bytes(budget) if budget else None
        return rate, Wanted(micro_batches, order, stages, in_flight, budget=limit)
    if budget:
        raise UsageError(
            "--budget is for pipelines, whose stages it holds for",
            hint="a step for one process: onnxremat optimize STEP OUT --budget, then train OUT",
        )
    alone = {"--schedule " + "".join(orders): orders, "--stages": stages, "--in-flight": in_flight,
             "--micro-batches": micro_batches != MICRO_BATCHES}  # fmt: skip
    for option, there in alone.items():
        if there:
            raise UsageError(f"{option} is for pipelines", hint="mpiexec ... --pipeline")
    return rate, None


def _pipelines() -> tuple[str, ...]:
    """Names of schedules of pipelines."""
    from onnxremat.workers.pipelines.schedules import (  # compiled: loaded when it is needed
        AUTO,
        NAMED,
    )

    return (*NAMED, AUTO)


def pipelines_of(ranks: int, data_parallel: int | None, pipeline: int | None) -> int:
    """How many pipelines, or lone processes, take batches of their own.

    Raises:
        UsageError: there are not as many processes.
    """
    if data_parallel is not None and pipeline is not None and not (data_parallel or pipeline):
        raise UsageError(
            "--data-parallel and --pipeline, and neither says how many",
            hint=f"--pipeline N: processes per pipeline, of {ranks}",
        )
    beside = 1 if data_parallel is None else data_parallel
    length = 1 if pipeline is None else pipeline
    found = beside or ranks // length
    if found and found * (length or ranks // found) == ranks:
        return found
    given = {"--data-parallel": data_parallel, "--pipeline": pipeline}
    said = " ".join(f"{name} {n or ''}".strip() for name, n in given.items() if n is not None)
    hint = f"mpiexec -n {beside * length or f'N, N a multiple of {beside or length}'}"
    if data_parallel is None and not ranks % length:
        hint = f"--data-parallel as well, for {ranks // length} pipelines side by side"
    raise UsageError(f"{said} does not suit {ranks} process{'es' * (ranks > 1)}", hint=hint)


def check_alone() -> None:
    """One of several processes that nobody told what to share would train as the others do, and
    write the same files. The first says so.

    Raises:
        UsageError: it is one of several.
    """
    from onnxremat.workers.mpi import launched

    size, rank = launched()
    if rank:
        raise typer.Exit(UsageError.exit_code)
    if size > 1:
        raise UsageError(
            f"started as one of {size} processes, each of which would train by itself",
            why="neither --data-parallel nor --pipeline is given",
            hint="--data-parallel: each takes its share of the batches; --pipeline: each has a "
            "stage of the model; one process: start it without mpiexec or srun",
        )


def takers(trainer: Trainer, ranks: Ranks) -> Ranks:
    """Those that take batches of their own."""
    from onnxremat.workers.pipelines.pipelined import PipelineParallel

    return trainer.mesh.across if isinstance(trainer, PipelineParallel) else ranks


def check_pipeline(wanted: Wanted | None, validate: str | None) -> None:
    """Raises:
    UsageError: what no pipeline can do.
    """
    if wanted and validate:
        raise UsageError(
            "--validate needs the whole model in one process, --pipeline has a stage in each",
            hint="--export FILE, and score that",
        )


def check_shard(shard_state: bool, data_parallel: bool, wanted: Wanted | None) -> None:
    """Raises:
    UsageError: optimizer state to be shared out, and nobody to share it with.
    """
    if shard_state and (wanted or not data_parallel):
        raise UsageError(
            "--shard-state is for --data-parallel without --pipeline",
            why="each stage of a pipeline keeps its own state already" if wanted else "",
            hint="mpiexec ... --data-parallel --shard-state",
        )


def left_out(data: Data, batches: Batches, trainer: Trainer) -> str:
    """What of the data no step sees; "" where all is seen."""
    from onnxremat.training.data import Arrays

    if isinstance(data, Arrays):
        count, unit = data.rows, "rows"
        left = count - len(batches) * trainer.rows
    else:
        count, unit = len(data), "batches"
        left = count - len(batches) * (trainer.rows // trainer.batch_size)
    if not left:
        return ""
    return f"{left} of {count} {unit} are left out of each epoch: steps take {trainer.rows} rows"


def means_of(trainer: Trainer) -> str:
    """That an update is of means over unequal numbers of labels; "" where it is not."""
    settings = trainer.training.loss_settings
    named = [n for n in ("ignore_index", "class_weights") if settings.get(n) is not None]
    if trainer.joined == 1 or not named:
        return ""
    return (
        f"an update is of the mean of {trainer.joined} batches, each of which divides by its own "
        f"labels ({', '.join(named)}): one with few that count weighs as much as one with many"
    )


def company(trainer: Trainer, ranks: Ranks) -> str:
    """Who trains, and how."""
    from onnxremat.workers.pipelines.pipelined import PipelineParallel

    if not isinstance(trainer, PipelineParallel):
        return f"{_processes(ranks)}, {trainer.rows} rows together per step"
    plan, count = trainer.staged, trainer.wanted.micro_batches
    beside = trainer.wanted.pipelines
    lines = f" in {beside} pipelines, {trainer.rows} rows together per step"
    return (
        f"{_processes(ranks)}{lines if beside > 1 else ''}, "
        f"{count} micro-batches of {trainer.batch_size // count} rows, "
        f"{plan.order.name}: {plan.replay.makespan:.3g} s by simulation, waiting "
        f"{plan.replay.bubble:.0%}; stages begin at {', '.join(plan.cuts) or 'the start'}"
        + _within(plan.fitted, count)
    )


def _processes(ranks: Ranks) -> str:
    return f"{ranks.size} process{'es' * (ranks.size > 1)}"


def _within(fitted: Fitted, count: int) -> str:
    """What a budget leads to."""
    if not fitted.memory:
        return ""
    sizes = ", ".join(format_bytes(each.total) for each in fitted.memory)
    ops = ", ".join(str(len(each.ops)) for each in fitted.again)
    seconds = max(each.seconds for each in fitted.again) * count
    return (
        f"; planned per process: {sizes}; ops that stages compute again: {ops}, at most "
        f"{seconds:.3g} s of a step"
    )


def trainer_of(
    ranks: Ranks | None,
    wanted: Wanted | None,
    source: Path,
    weights: Path | None,
    threads: int,
    told: Mapping[str, Any],
) -> Trainer:
    """One that trains alone, or one of several."""
    from onnxremat.training.trainer import Trainer

    if ranks is None:
        return Trainer(source, weights, threads=threads, **told)
    # Loaded by several processes alone.
    from onnxremat.workers.pipelines.pipelined import PipelineParallel
    from onnxremat.workers.sums.data_parallel import DataParallel

    threads = threads or ranks.cores()
    if wanted is not None:
        return PipelineParallel(
            source, weights, ranks=ranks, wanted=wanted, threads=threads, **told
        )
    return DataParallel(source, weights, ranks=ranks, threads=threads, **told)


def check_trace(trace: Path | None, ranks: Ranks | None) -> None:
    if trace is not None and ranks is None:
        hint = "mpiexec ... --data-parallel, or --pipeline"
        raise UsageError("--trace shows several processes", hint=hint)
    args.check_drawings(None, trace)


def spans_of(trainer: Trainer, ranks: Ranks | None, trace: Path | None) -> Spans | None:
    """What the trainer notes down for a trace.

    Raises:
        UsageError: its step is in one piece.
    """
    if trace is None:
        return None
    from onnxremat.workers.pipelines.pipelined import PipelineParallel
    from onnxremat.workers.sums.data_parallel import DataParallel

    runs: Overlapped | PipelineParallel | None = None
    if isinstance(trainer, PipelineParallel):
        runs = trainer
    elif isinstance(trainer, DataParallel):
        runs = trainer.overlapped
    if runs is None:
        raise UsageError(
            "--trace needs a step that runs in parts",
            why="a planned step runs in one piece",
            hint="give the step as differentiate made it",
        )
    runs.spans.on = True
    return runs.spans


def say_kept(trainer: Trainer, ranks: Ranks, voice: Voice) -> None:
    """What every process keeps."""
    from onnxremat.workers.pipelines.pipelined import PipelineParallel
    from onnxremat.workers.sums.data_parallel import DataParallel, kept_by

    if isinstance(trainer, DataParallel | PipelineParallel):
        voice.note(kept_by(ranks.everybody(trainer.sizes())))


def collect(trainer: Trainer) -> None:
    """State of all stages of a pipeline comes to the first process, where it can be exported."""
    from onnxremat.workers.pipelines.pipelined import PipelineParallel

    if isinstance(trainer, PipelineParallel):
        trainer.collect()


def write_trace(rows: list[list[Span]], trace: Path, source: Path, voice: Voice) -> None:
    """By the first process, which has everybody's rows."""
    from onnxremat.report.worker_trace import write_worker_trace

    if rows:
        write_worker_trace(rows, trace, title=source.name)
        voice.note(f"wrote {trace}")
