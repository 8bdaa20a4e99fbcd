"""onnxremat train GRAPH --data data.npz: run a training step over data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError
from onnxremat.graph.onnx_io import check_writable
from onnxremat.run.batches import open_data
from onnxremat.run.rates import Schedule
from onnxremat.run.train import Progress, Trainer

NAME = "train"


def command(
    source: args.Model,
    data: Annotated[
        str,
        typer.Option(
            help="npz file, folder of npy files, or loader.py:function; one array per "
            "input of the step.",
            show_default=False,
        ),
    ],
    weights: Annotated[
        Path | None, typer.Option(help="Model with the first weights (without --initializers).")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs in all.")] = 1,
    rate: Annotated[float, typer.Option(min=0.0, help="Learning rate (the highest).")] = 0.01,
    schedule: Annotated[str, typer.Option(help="constant, linear, cosine or step.")] = "constant",
    warmup: Annotated[int, typer.Option(min=0, help="Steps of warm-up.")] = 0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File to keep parameters and state in (.safetensors).")
    ] = None,
    every: Annotated[int, typer.Option(min=0, help="Checkpoint every so many steps, too.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write the trained inference model (needs --weights).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Loss curve (.png or .svg).")] = None,
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Train: epochs over data, checkpoints, export. Ctrl-C stops after a checkpoint."""
    voice = Voice(as_json, quiet)
    for path in (checkpoint, export, plot):
        if path:
            check_writable(path)
    if export and not weights:
        raise UsageError("--export needs the model to put the weights in", hint="--weights IN.onnx")
    trainer = Trainer(source, weights, rate=Schedule(rate, schedule, warmup), threads=threads)
    batches = open_data(data, trainer.batch_size, seed=seed)
    if resume:
        if checkpoint is None:
            raise UsageError("--resume needs a checkpoint", hint="--checkpoint FILE --resume")
        if checkpoint.exists():
            trainer.resume(checkpoint)
            voice.note(f"resumed at step {trainer.progress.step}")
    elif checkpoint and checkpoint.exists():
        raise UsageError(f"{checkpoint} exists", hint="--resume to go on, or another name")
    with voice.working() as interrupt:
        voice.say(f"training from step {trainer.progress.step}")

        def on_step(progress: Progress, loss: float) -> None:
            voice.update(f"epoch {progress.epoch + 1}, step {progress.step}, loss {loss:.4f}")
            if interrupt():
                raise KeyboardInterrupt

        try:
            losses = trainer.fit(
                batches, epochs, checkpoint=checkpoint, every=every, on_step=on_step
            )
        except KeyboardInterrupt:
            if checkpoint:
                trainer.save(checkpoint)
                voice.note(f"stopped; {checkpoint} is at step {trainer.progress.step}")
            raise
    mean = sum(losses[-len(batches) :]) / max(1, len(losses[-len(batches) :]))
    voice.note(f"{trainer.progress.step} steps, mean loss of the last epoch {mean:.4f}")
    if export and weights:
        trainer.export(weights, export)
        voice.note(f"wrote {export}")
    if plot:
        from onnxremat.report.losses import draw_losses

        draw_losses(losses, plot, title=source.name, per_epoch=len(batches))
        voice.note(f"wrote {plot}")
    if as_json:
        voice.result({"steps": trainer.progress.step, "losses": losses, "mean_loss": mean})
