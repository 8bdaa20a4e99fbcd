"""onnxremat profile IN: what every op costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice, size
from onnxremat.units import format_seconds

if TYPE_CHECKING:
    from onnxremat.pipeline.prepared import Prepared


def command(
    source: args.Model,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the costs as JSON.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many ops to list.")] = 20,
    shape: args.Shape = None,
    dim: args.Dim = None,
    target: args.Target = "auto",
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    data: args.Data = None,
    measure: args.Measure = True,
    fresh: args.Fresh = False,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Measure seconds and bytes of every op on this machine."""
    import json

    from onnxremat import api
    from onnxremat.graph.atomic import atomic, check_writable
    from onnxremat.pipeline.settings import Settings

    voice = Voice(as_json, quiet)
    if output:
        check_writable(output)
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), target, threads, seed, data, measure, fresh
    )  # fmt: skip
    with voice.working():
        prepared = api.prepare(source, settings, voice.say)
    facts = _facts(prepared)
    if output:
        with atomic(output) as temporary:
            temporary.write_text(json.dumps(facts, indent=1) + "\n")
    voice.table(_table(prepared, top))
    voice.note(
        f"{len(prepared.graph.ops)} ops, {format_seconds(prepared.costs.total)} per run "
        f"({prepared.costs.source}), peak {size(prepared.baseline_peak)} as given"
    )
    if as_json:
        voice.result(facts)


def _facts(prepared: Prepared) -> dict[str, object]:
    costs = prepared.costs
    return {
        "format": "onnxremat.costs",
        "version": 1,
        "model": prepared.name,
        "source": costs.source,
        "device": costs.device,
        "seconds": costs.total,
        "baseline_peak_bytes": prepared.baseline_peak,
        "store_all_peak_bytes": prepared.store_all_peak,
        "weight_bytes": prepared.weights,
        "ops": [
            {
                "name": op.name,
                "type": op.op_type,
                "seconds": costs.seconds.get(op.name, 0.0),
                "scratch_bytes": costs.scratch.get(op.name, 0),
                "output_bytes": sum(prepared.graph.tensors[name].bytes for name in op.writes),
            }
            for op in prepared.graph.ops
        ],
    }


def _table(prepared: Prepared, top: int) -> object:
    from rich.table import Table

    costs = prepared.costs
    table = Table("op", "type", "seconds", "share", "output", "scratch", title="dearest ops")
    ranked = sorted(prepared.graph.ops, key=lambda op: -costs.seconds.get(op.name, 0.0))
    for op in ranked[:top]:
        seconds = costs.seconds.get(op.name, 0.0)
        bytes_out = sum(prepared.graph.tensors[name].bytes for name in op.writes)
        table.add_row(
            op.name, op.op_type, format_seconds(seconds), f"{seconds / costs.total:.1%}",
            size(bytes_out), size(costs.scratch.get(op.name, 0)),
        )  # fmt: skip
    return table
