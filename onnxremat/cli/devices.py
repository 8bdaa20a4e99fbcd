"""onnxremat devices [detect | show FILE]: where models can run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError
from onnxremat.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from onnxremat.device.machine import Device, Machine


def command(
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION",
            help="list, detect (measure and print a machine file), or show.",
        ),
    ] = "list",
    file: Annotated[
        str | None,
        typer.Argument(metavar="MACHINE", help="Of show: a machine file, or a shipped one's name."),
    ] = None,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """List the devices here; measure them: devices detect > my.toml; show a machine file."""
    from onnxremat.device.files import read_machine, shipped

    voice = Voice(as_json, quiet)
    if action == "detect" and file is None:
        _detect(voice)
    elif action == "show" and file is not None:
        _show(voice, read_machine(file))
    elif action == "list" and file is None:
        _list(voice)
    else:
        raise UsageError(
            f"devices {action}{f' {file}' if file else ''} is not understood",
            hint="devices, devices detect > my.toml, or devices show FILE; shipped files are "
            + ", ".join(shipped()),
        )


def _detect(voice: Voice) -> None:
    import datetime

    from onnxremat.cost.detect import detect
    from onnxremat.device.files import machine_toml
    from onnxremat.ort.session import runtime_version

    with voice.working():
        machine = detect(voice.say)
    if voice.as_json:
        voice.result(_facts(machine))
        return
    day = datetime.date.today().isoformat()
    note = f"Measured {day} by onnxremat devices detect, onnxruntime {runtime_version()}."
    sys.stdout.write(machine_toml(machine, note))


def _list(voice: Voice) -> None:
    from onnxremat.ort.providers import here
    from onnxremat.ort.session import providers, runtime_version

    found = here()
    if voice.as_json:
        rows = [_device_facts(device) for device in found]
        voice.result({"onnxruntime": runtime_version(), "providers": providers(), "devices": rows})
        return
    for device in found:
        voice.out.print(_line(device))
    voice.out.print(f"onnxruntime {runtime_version()} has {', '.join(providers())}")


def _show(voice: Voice, machine: Machine) -> None:
    from onnxremat.pipeline.devices.site import Site

    absent = Site(machine).absent
    if voice.as_json:
        voice.result({**_facts(machine), "missing": absent})
        return
    voice.out.print(machine.name)
    for device in machine.devices:
        why = absent.get(device.name)
        text = _line(device) + (f"   not here: {why}" if why else "")
        voice.out.print(text)
    for link in machine.links:
        speed = "handed over" if link.shared else f"{link.bandwidth / 1e9:.3g} GB/s"
        voice.out.print(
            f"{link.source} -> {link.target}   {speed}, {format_seconds(link.latency)}   "
            f"{link.origin}"
        )


def _line(device: Device) -> str:
    from onnxremat.device.machine import short_name

    parts = [f"{device.name:12s}", f"{short_name(device.provider):9s}"]
    parts.append(format_bytes(device.memory) if device.memory else "memory not known")
    if device.threads:
        parts.append(f"{device.threads} threads")
    if device.flops:
        parts.append(f"{device.flops / 1e9:.4g} GFLOPS")
    if device.bandwidth:
        parts.append(f"{device.bandwidth / 1e9:.3g} GB/s")
    parts.append(device.source)
    return "   ".join(parts)


def _device_facts(device: Device) -> dict[str, Any]:
    return {
        "name": device.name, "provider": device.provider, "index": device.index,
        "threads": device.threads, "memory_bytes": device.memory, "flops": device.flops,
        "bandwidth": device.bandwidth, "source": device.source,
    }  # fmt: skip


def _facts(machine: Machine) -> dict[str, Any]:
    links = [
        {
            "from": link.source, "to": link.target, "bandwidth": link.bandwidth,
            "latency_seconds": link.latency, "shared": link.shared, "origin": link.origin,
        }
        for link in machine.links
    ]  # fmt: skip
    return {
        "name": machine.name,
        "devices": [_device_facts(device) for device in machine.devices],
        "links": links,
    }
