"""onnxremat train STEP --data data.npz: run a training step over data."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxremat.cli import args
from onnxremat.cli.asked import first_given
from onnxremat.cli.console import Voice
from onnxremat.cli.counted import REST, Counted
from onnxremat.cli.workers import (
    MICRO_BATCHES,
    check_alone,
    check_pipeline,
    check_shard,
    check_trace,
    collect,
    company,
    left_out,
    means_of,
    pipelines_of,
    say_kept,
    schedules_of,
    spans_of,
    takers,
    trainer_of,
    write_trace,
)
from onnxremat.errors import StoppedError, UsageError

if TYPE_CHECKING:
    from onnxremat.training.data import Arrays, Data
    from onnxremat.training.evaluation import Evaluator
    from onnxremat.training.progress import Progress
    from onnxremat.training.trainer import Trainer
    from onnxremat.workers.sums.data_parallel import Shard

PARSER = Counted


# Options of the rate, and the schedules that heed them.
OF_SCHEDULES = {
    "floor": ("linear", "cosine"), "drop_every": ("step",), "drop_factor": ("step",),
}  # fmt: skip


def command(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="STEP", help="Training step.", show_default=False)
    ],
    data: Annotated[
        str,
        typer.Option(
            help="npz file, folder of npy files, or loader.py:function; one array per "
            "input of the step.",
            show_default=False,
        ),
    ],
    weights: Annotated[
        Path | None, typer.Option(help="The model that was differentiated, for first weights.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs in all.")] = 1,
    rate: Annotated[float, typer.Option(min=0.0, help="Learning rate (the highest).")] = 0.01,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            help="Of the rate: constant, linear, cosine or step. With --pipeline also (a second "
            "--schedule) 1f1b, gpipe, fast-forward, zb-h1, zb-2p, interleaved, zb-v or auto.",
            show_default="constant",
        ),
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Updates of linear warm-up.")] = 0,
    floor: Annotated[
        float, typer.Option(min=0.0, help="Rate that linear and cosine end at.")
    ] = 0.0,
    drop_every: Annotated[
        int, typer.Option(min=1, help="Updates between the drops of step.")
    ] = 1000,
    drop_factor: Annotated[float, typer.Option(min=0.0, help="Factor of each drop of step.")] = 0.1,
    accumulate: Annotated[
        int | None,
        typer.Option(min=1, help="Batches per update, other than said to differentiate."),
    ] = None,
    validate: Annotated[
        str | None,
        typer.Option(help="Data to score after each epoch (npz, folder; needs --weights)."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File to keep parameters and state in (.safetensors).")
    ] = None,
    every: Annotated[int, typer.Option(min=0, help="Checkpoint every so many steps, too.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write the trained inference model (needs --weights).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Loss curve (.png or .svg).")] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle/--no-shuffle", help="New order of rows every epoch.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order and of dropout.")] = 0,
    data_parallel: Annotated[
        int | None,
        typer.Option(
            "--data-parallel",
            min=REST,
            metavar="[N]",
            help="Under mpiexec: each process takes its share of the batches, and all update with "
            "the mean of their gradients. With --pipeline: each of N pipelines does.",
            show_default=False,
        ),
    ] = None,
    shard_state: Annotated[
        bool,
        typer.Option(
            "--shard-state",
            help="With --data-parallel: each process keeps the optimizer's state of its share of "
            "the parameters (ZeRO-1).",
        ),
    ] = False,
    pipeline: Annotated[
        int | None,
        typer.Option(
            "--pipeline",
            min=REST,
            metavar="[N]",
            help="Under mpiexec: each process has a stage of the model, and batches go through in "
            "micro-batches of the step's size. With --data-parallel: N processes per pipeline.",
            show_default=False,
        ),
    ] = None,
    micro_batches: Annotated[
        int, typer.Option(min=1, help="Of a step, with --pipeline.")
    ] = MICRO_BATCHES,
    stages: Annotated[
        str,
        typer.Option(
            help="With --pipeline: first op of each stage but the first, with commas between them; "
            "else as balanced as measured times say.",
            show_default=False,
        ),
    ] = "",
    in_flight: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --pipeline: most micro-batches that a stage keeps alive.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            help="With --pipeline: what a process may take, such as 2GiB; its stage computes again "
            "what has no room.",
            show_default=False,
        ),
    ] = "",
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="With --data-parallel or --pipeline: what each process did when (.json).",
        ),
    ] = None,
    threads: args.Threads = 0,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Train: epochs over data, validation, checkpoints, export. Ctrl-C stops after a checkpoint."""
    from onnxremat.graph.tensor_files import drop_leftovers
    from onnxremat.training.data import open_data, read_by
    from onnxremat.training.evaluation import Evaluator
    from onnxremat.training.schedules import Schedule
    from onnxremat.workers.mpi import join

    rate_schedule, wanted = schedules_of(
        schedule or [], pipeline is not None, micro_batches, stages, in_flight, budget
    )
    _check_heeded(context, rate_schedule, checkpoint, pipeline is not None)
    if data_parallel is None and pipeline is None:
        check_alone()
        ranks = None
    else:
        ranks = join()
    follows = ranks is not None and not ranks.first  # the first speaks and writes
    voice = Voice(as_json, quiet or follows)
    with ranks.together() if ranks else nullcontext():
        _check(source, weights, export, validate)
        _check_checkpoint(checkpoint, resume)
        args.check_drawings(plot, None)
        check_trace(trace, ranks)
        check_pipeline(wanted, validate)
        rates = Schedule(rate, rate_schedule, warmup, floor, drop_every, drop_factor)
        told = {"rate": rates, "accumulate": accumulate, "seed": seed}
        check_shard(shard_state, data_parallel is not None, wanted)
        if shard_state:
            told["shard"] = True
        if ranks:
            pipelines = pipelines_of(ranks.size, data_parallel, pipeline)
            wanted = replace(wanted, pipelines=pipelines) if wanted else None
        trainer = trainer_of(ranks, wanted, source, weights, threads, told)
        arrays = open_data(data, trainer.batch_size, shuffle=shuffle, seed=seed)
        _check_order(context, arrays, data)
        arrays = read_by(trainer.training, trainer.types, arrays, data)
        batches: Data | Shard = arrays
        if ranks:
            # Loaded by several processes alone.
            from onnxremat.workers.sums.data_parallel import Shard

            ranks.require_same(len(arrays), "the number of batches")
            batches = Shard(arrays, takers(trainer, ranks))
        run = _Run(voice, trainer, batches, epochs, checkpoint, every, follows)
        if validate and weights and not follows:
            run.evaluator = Evaluator(trainer, weights, threads=threads)
            run.held_out = _held_out(validate, trainer)
        if checkpoint and not follows:
            drop_leftovers(checkpoint)
        if resume and checkpoint and checkpoint.exists():
            trainer.resume(checkpoint)
            voice.note(_resumed(trainer))
        elif resume:
            voice.note(f"{checkpoint} is not there yet: starting anew")
        if ranks:
            ranks.require_same(trainer.progress.step, "the step of the checkpoint (0: none)")
            voice.note(company(trainer, ranks))
        for said in filter(None, (left_out(arrays, batches, trainer), means_of(trainer))):
            voice.note(said)
        start = trainer.progress.step
        spans = spans_of(trainer, ranks, trace)
        run.train(export, weights)
        if ranks:
            say_kept(trainer, ranks, voice)
            if trace and spans:
                write_trace(ranks.gathered(spans.rows), trace, source, voice)
            collect(trainer)
        if not follows:
            _tell(run, source, weights, export, plot, start)


def _resumed(trainer: Trainer) -> str:
    """Where a run goes on."""
    progress = trainer.progress
    anew = f", in steps of {trainer.rows} rows, not {progress.counted}" if progress.counted else ""
    return f"resumed at step {progress.step}{anew}"


def _tell(
    run: _Run,
    source: Path,
    weights: Path | None,
    export: Path | None,
    plot: Path | None,
    start: int,
) -> None:
    """Everything that is written and printed at the end."""
    trainer, voice = run.trainer, run.voice
    if export and weights:
        trainer.export(weights, export)
        voice.note(f"wrote {export}")
    if plot and trainer.progress.losses:
        from onnxremat.report.plots.losses import draw_losses

        draw_losses(
            trainer.progress.losses, plot, title=source.name,
            ends=[row["step"] for row in run.rows], start=start,
            validation=[(row["step"], row["validation_loss"]) for row in run.rows
                        if "validation_loss" in row],
        )  # fmt: skip
        voice.note(f"wrote {plot}")
    elif plot:
        voice.note(f"no step was done, and so there is nothing to draw: {plot} is not written")
    if voice.as_json:
        progress = trainer.progress
        voice.result({
            "steps": progress.step, "updates": progress.updates, "epochs": run.rows,
            "losses": progress.losses,
        })  # fmt: skip


def _check(source: Path, weights: Path | None, export: Path | None, validate: str | None) -> None:
    """Fail before anything is read where options do not go together."""
    from onnxremat import api
    from onnxremat.graph.light import read_structure
    from onnxremat.training.state import require_inference

    if export and not weights:
        raise UsageError("--export needs the model to put the weights in", hint="--weights IN.onnx")
    if validate and not weights:
        raise UsageError("--validate needs the model to run", hint="--weights IN.onnx")
    if export and weights:
        require_inference(read_structure(weights))
        api.check_paths(weights, export)
        api.check_paths(source, export)


def _check_heeded(
    context: typer.Context, schedule: str, checkpoint: Path | None, pipeline: bool
) -> None:
    """No option was given that would do nothing."""
    for name, schedules in OF_SCHEDULES.items():
        option = first_given(context, (name,))
        if option and schedule not in schedules:
            raise UsageError(
                f"{option} is not for a rate that is {schedule}",
                hint="--schedule " + " or ".join(schedules),
            )
    if not pipeline and (option := first_given(context, ("micro_batches",))):
        raise UsageError(f"{option} is for pipelines", hint="mpiexec ... --pipeline")
    if checkpoint is None and first_given(context, ("every",)):
        raise UsageError("--every needs a checkpoint", hint="--checkpoint FILE")


def _check_order(context: typer.Context, data: Data, named: str) -> None:
    """The order of rows was asked for only where it is made here."""
    from onnxremat.training.data import Arrays

    option = first_given(context, ("shuffle",))
    if option and not isinstance(data, Arrays):
        raise UsageError(
            f"{option} is not for {named}", hint="that function chooses the order of its batches"
        )


def _check_checkpoint(checkpoint: Path | None, resume: bool) -> None:
    """Fail before anything is read where none can be written, or one would be written over."""
    from onnxremat.graph.atomic import check_writable

    if resume and not checkpoint:
        raise UsageError("--resume needs a checkpoint", hint="--checkpoint FILE --resume")
    if checkpoint:
        check_writable(checkpoint)
        if checkpoint.exists() and not resume:
            raise UsageError(f"{checkpoint} exists", hint="--resume to go on, or another name")


def _held_out(validate: str, trainer: Trainer) -> Arrays:
    from onnxremat.training.data import Arrays, check_arrays, open_data

    data = open_data(validate, 1, shuffle=False)
    if not isinstance(data, Arrays):
        raise UsageError("--validate takes an npz file or a folder of npy files")
    check_arrays(trainer.training, trainer.types, data, validate)
    return data


@dataclass
class _Run:
    """Training as a user follows it.

    Attributes:
        follows: another process speaks, and heeds Ctrl-C, for this one.
        rows: per finished epoch what was said of it.
    """

    voice: Voice
    trainer: Trainer
    batches: Data | Shard
    epochs: int
    checkpoint: Path | None
    every: int
    follows: bool = False
    evaluator: Evaluator | None = None
    held_out: Arrays | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    since: int = 0  # losses told of

    def train(self, export: Path | None, weights: Path | None) -> None:
        """All epochs that are left.

        Raises:
            StoppedError: by Ctrl-C, what there is being kept.
        """
        trainer, voice = self.trainer, self.voice
        if trainer.progress.epoch >= self.epochs:
            voice.note(f"nothing to train: {trainer.progress.epoch} epochs are done")
            return
        with _following() if self.follows else voice.working(self._abandon) as interrupt:
            try:
                voice.say(f"training from step {trainer.progress.step}")
                trainer.fit(
                    self.batches, self.epochs, checkpoint=self.checkpoint, every=self.every,
                    on_step=lambda progress, loss: self._step(progress, loss, interrupt),
                    on_epoch=lambda progress: self._epoch(progress, interrupt),
                )  # fmt: skip
            except _Asked as asked:
                raise self._kept(export, weights) from asked
            except (KeyboardInterrupt, StoppedError) as stopped:
                hint = "--resume goes on from the last checkpoint" if self.checkpoint else ""
                raise StoppedError("interrupted in the middle of a step", hint=hint) from stopped

    def _abandon(self) -> None:
        """Stop the run that is on: it takes too long to wait for."""
        self.trainer.abandon()
        if self.evaluator:
            self.evaluator.abandon()

    def _step(self, progress: Progress, loss: float, interrupt: Callable[[], bool]) -> None:
        self.voice.update(
            f"epoch {progress.epoch + 1}/{self.epochs}, "
            f"batch {progress.batch}/{len(self.batches)}, loss {loss:.4f}"
        )
        _heed(interrupt)

    def _epoch(self, progress: Progress, interrupt: Callable[[], bool]) -> None:
        losses = len(progress.losses) - self.since
        self.since = len(progress.losses)
        row: dict[str, Any] = {"epoch": progress.epoch, "step": progress.step}
        text = f"epoch {progress.epoch}/{self.epochs}"
        if losses:
            row["loss"] = progress.mean
            text += f"  loss {row['loss']:.4f}"
        if self.evaluator and self.held_out:
            try:
                score = self.evaluator.score(self.held_out, lambda: _heed(interrupt))
            except StoppedError as stopped:  # between two steps: the state is whole
                raise _Asked from stopped
            row |= {"validation_loss": score.loss, "accuracy": score.accuracy}
            if score.rows < self.held_out.rows and not self.rows:
                self.voice.note(_not_scored(self.held_out.rows - score.rows, self.held_out.rows))
            text += f"  validation {score}"
        self.rows.append(row)
        self.voice.note(text)

    def _kept(self, export: Path | None, weights: Path | None) -> StoppedError:
        """Keep what there is, and say what."""
        trainer, place = self.trainer, f"interrupted after step {self.trainer.progress.step}"
        if not (trainer.alone and trainer.whole):  # the other processes do not know
            hint = "--resume goes on from the last checkpoint" if self.checkpoint else ""
            return StoppedError(place, hint=hint)
        try:
            if self.checkpoint:
                trainer.save(self.checkpoint)
                why = f"{self.checkpoint} holds it"
                return StoppedError(place, why=why, hint="--resume goes on")
            if export and weights:
                trainer.require_sound()
                trainer.export(weights, export)
                return StoppedError(place, why=f"{export} holds the weights so far")
        except UsageError as lost:
            return StoppedError(place, why=f"nothing was kept: {lost.what}", hint=lost.hint)
        return StoppedError(place, why="nothing was kept", hint="--checkpoint FILE keeps it")


def _not_scored(left: int, rows: int) -> str:
    return (
        f"{left} of {rows} rows are left out of validation: they do not fill a batch, and a row of "
        "the model's result is not a row of the data"
    )


@contextmanager
def _following() -> Iterator[Callable[[], bool]]:
    """Ctrl-C, which all processes get, is for the one that is followed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield lambda: False


def _heed(interrupt: Callable[[], bool]) -> None:
    """Raises:
    _Asked: Ctrl-C was pressed.
    """
    if interrupt():
        raise _Asked


class _Asked(Exception):  # noqa: N818
    """Ctrl-C between two steps, where the state is whole."""
