"""onnxremat set-batch IN.onnx OUT.onnx 256: another batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice


def command(
    source: args.Model,
    target_file: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    batch: Annotated[int, typer.Argument(metavar="BATCH", help="Batch size.")],
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Give a model that was exported with a fixed batch size another one, and check its rows."""
    from onnxremat import api
    from onnxremat.pipeline.batch_size import set_batch

    voice = Voice(as_json, quiet)
    api.check_paths(source, target_file)
    with voice.working():
        voice.say("setting the batch size")
        facts = set_batch(source, target_file, batch)
    voice.note(
        f"batch {facts['before']} -> {facts['after']} of {', '.join(facts['inputs'])}; "
        f"{facts['constants']} shapes in constants changed"
    )
    if facts["plan_left_out"]:
        voice.note(f"the plan is left out: it holds for batch {facts['before']}")
    voice.note(f"wrote {target_file}")
    if as_json:
        voice.result(facts)
