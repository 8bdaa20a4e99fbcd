"""onnxremat export-partitions OUT.onnx FOLDER: one file per partition, and a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice


def command(
    planned: Annotated[
        Path, typer.Argument(metavar="OUT", help="Model planned for several devices.")
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder to write to; made when not there.")
    ],
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Write the partitions of a model for programs in C, C++, C# or Java."""
    from onnxremat.execute.deployment import read_deployment
    from onnxremat.execute.exported import export_partitions

    voice = Voice(as_json, quiet)
    made = read_deployment(planned)
    written = export_partitions(made, folder)
    voice.note(
        f"partitions: {len(made.parts.partitions)}, copies: {len(made.parts.copies)}; "
        f"wrote {len(written)} files to {folder}"
    )
    if as_json:
        voice.result({"files": [str(path) for path in written]})
