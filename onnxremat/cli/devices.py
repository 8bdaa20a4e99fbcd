"""onnxremat devices: where models can run on this machine."""

from __future__ import annotations

from typing import Any

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.device.host import memory_bytes, processors
from onnxremat.ort.session import providers, runtime_version
from onnxremat.units import format_bytes

NAME = "devices"


def command(as_json: args.Json = False, quiet: args.Quiet = False) -> None:
    """List the devices stock onnxruntime offers here; plans are made for the CPU."""
    voice = Voice(as_json, quiet)
    facts: dict[str, Any] = {
        "onnxruntime": runtime_version(),
        "providers": providers(),
        "devices": [
            {"name": "cpu", "provider": "CPUExecutionProvider", "threads": processors(),
             "memory_bytes": memory_bytes()}
        ],
    }  # fmt: skip
    if as_json:
        voice.result(facts)
        return
    voice.out.print(
        f"cpu   {processors()} threads, {format_bytes(memory_bytes())}   CPUExecutionProvider"
    )
    voice.out.print(f"onnxruntime {facts['onnxruntime']} has {', '.join(facts['providers'])}")
