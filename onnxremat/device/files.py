"""Machine files: TOML with ``[[device]]`` and ``[[link]]`` tables, and XEngine's device lines.

name = "cpu-cuda"
[[device]]
name = "cuda"            # unique
provider = "cuda"        # cpu, cuda, openvino, tensorrt, directml, coreml, webgpu, storage
index = 0
memory = "24GiB"         # or bytes; without it this machine's own, not known elsewhere or of a GPU
threads = 0              # of processors; 0 for one per core
flops = 31.2e12          # per second
bandwidth = "600GB"      # bytes per second
holds_state = false      # true: state that its ops update counts in its budget. A GPU holds state
                         # unless this is false: then its ops get parameters anew in every run
precision = "fp32"       # bf16: products in bfloat16; OpenVINO only
[[link]]                 # both ways, unless the other way is listed too
from = "cpu"
to = "cuda"
bandwidth = "25GB"
latency = 10e-6          # seconds
shared = false           # true: one memory, values are handed over
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from onnxremat.device.host import memory_bytes, processors
from onnxremat.device.machine import (
    OWN_MEMORY,
    PROVIDERS,
    Device,
    Link,
    Machine,
    provider_name,
    short_name,
)
from onnxremat.errors import UsageError
from onnxremat.limits import DEVICES, check
from onnxremat.units import format_bytes, parse_bytes

_DEVICE = {
    "name": str, "provider": str, "index": int, "memory": (str, int), "threads": int,
    "flops": (int, float), "bandwidth": (str, int, float), "options": dict, "source": str,
    "holds_state": bool, "precision": str,
}  # fmt: skip
_MACHINE = {"name": str, "elsewhere": bool}
_LINK = {
    "from": str, "to": str, "bandwidth": (str, int, float), "latency": (int, float),
    "shared": bool, "origin": str,
}  # fmt: skip
_MOST = {"index": 1024, "threads": 4096, "latency": 1e6}  # of other numbers 1e18
FEWER = "name the devices that are to be used"
# Host memory, for links whose file gives no bandwidth: what one core copies in a second.
ASSUMED_HOST, ASSUMED_BUS = 8e9, 12e9


def shipped() -> list[str]:
    """Names of the machine files that come with onnxremat."""
    folder = resources.files("onnxremat.device") / "machines"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def read_machine(name: str | os.PathLike[str]) -> Machine:
    """A machine from a file, or one that comes with onnxremat by its name.

    Args:
        name: ``my.toml``, a file of XEngine's device lines, or ``cpu-2x1``.

    Raises:
        UsageError: no such file or name, or a file that is neither.
    """
    path = Path(name)
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path}", why=str(error)) from error
        return parse_machine(text, path.stem, str(path))
    label = str(name).removesuffix(".toml")
    if label in shipped():
        file = resources.files("onnxremat.device") / "machines" / f"{label}.toml"
        return parse_machine(file.read_text(encoding="utf-8"), label, f"{label}.toml")
    raise UsageError(
        f"no machine file {path}",
        why="it is neither a file nor the name of a shipped one",
        hint="shipped are " + ", ".join(shipped()) + "; onnxremat devices detect > my.toml",
    )


def parse_machine(text: str, name: str = "machine", where: str = "") -> Machine:
    """A machine from the text of a machine file.

    Raises:
        UsageError: the text is no machine file; the message names the line or key.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()[:1] not in ("", "#")]
    if lines and all(";" in line and "=" not in line for line in lines):
        return _xengine(lines, name, where)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            "the machine file is not valid TOML", where=where, why=str(error)[:200],
            hint="see docs/devices.md for the format",
        ) from error  # fmt: skip
    _checked({k: v for k, v in data.items() if k in _MACHINE}, _MACHINE, "the machine", where)
    unknown = sorted(set(data) - {"device", "link", *_MACHINE})
    if unknown or not isinstance(data.get("device"), list):
        raise UsageError(
            f"the machine file has unknown keys {', '.join(unknown)}"
            if unknown
            else "the machine file names no device",
            where=where,
            hint="write [[device]] and [[link]] tables, see docs/devices.md",
        )
    rows = _tables(data, "device", where)
    check(len(rows), DEVICES, "devices", where=where, hint=FEWER, kind=UsageError)
    elsewhere = data.get("elsewhere", False)
    devices = tuple(_device(row, where, here=not elsewhere) for row in rows)
    links = [_link(row, where) for row in _tables(data, "link", where)]
    given = {(link.source, link.target) for link in links}
    back = [
        Link(k.target, k.source, k.bandwidth, k.latency, k.shared, k.origin)
        for k in links
        if (k.target, k.source) not in given
    ]
    try:
        return Machine(devices, (*links, *back), data.get("name", name), elsewhere)
    except UsageError as error:
        raise UsageError(error.what, where=where, why=error.why, hint=error.hint) from error


def _tables(data: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    rows = data.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"'{key}' is no list of tables", where=where, hint=f"write [[{key}]]")
    return rows


def _checked(row: Mapping[str, Any], kinds: Mapping[str, Any], what: str, where: str) -> None:
    for key, value in row.items():
        if key not in kinds:
            raise UsageError(
                f"{what} has an unknown key '{key}'", where=where, hint="one of " + ", ".join(kinds)
            )
        wrong = isinstance(value, bool) and kinds[key] is not bool
        if wrong or not isinstance(value, kinds[key]):
            raise UsageError(f"{what}: {key} = {value!r} is of the wrong type", where=where)
        if isinstance(value, int | float) and not 0 <= value <= _MOST.get(key, 1e18):
            problem = "negative" if value < 0 else "no usable number"
            raise UsageError(f"{what}: {key} = {str(value)[:40]} is {problem}", where=where)


def _device(row: Mapping[str, Any], where: str, *, here: bool) -> Device:
    what = f"device '{row.get('name', '?')}'"
    _checked(row, _DEVICE, what, where)
    name = row.get("name", "")
    if not name or any(mark in name for mark in "=,; "):
        raise UsageError(f"{what} has no usable name", where=where, hint='name = "cuda:0"')
    try:
        provider = provider_name(row.get("provider", "cpu"))
        memory = _amount(row.get("memory", 0))
        bandwidth = float(_amount(row.get("bandwidth", 0)))
    except UsageError as error:
        raise UsageError(f"{what}: {error.what}", where=where, hint=error.hint) from error
    if here and provider in (PROVIDERS["cpu"], PROVIDERS["openvino"]) and not memory:
        memory = memory_bytes()  # the device is this machine's processor
    threads = row.get("threads", 0)
    if here and provider == PROVIDERS["cpu"] and not threads:
        threads = processors()
    options = {str(key): str(value) for key, value in row.get("options", {}).items()}
    try:
        return Device(
            name, provider, row.get("index", 0), int(memory), threads, float(row.get("flops", 0)),
            bandwidth, options, row.get("source", "given"),
            row.get("holds_state", provider in OWN_MEMORY), row.get("precision", "fp32"),
        )  # fmt: skip
    except UsageError as error:
        raise UsageError(error.what, where=where, why=error.why, hint=error.hint) from error


def _link(row: Mapping[str, Any], where: str) -> Link:
    what = f"link from '{row.get('from', '?')}' to '{row.get('to', '?')}'"
    _checked(row, _LINK, what, where)
    if "from" not in row or "to" not in row:
        raise UsageError(f"{what} lacks an end", where=where, hint='from = "cpu", to = "cuda"')
    shared = row.get("shared", False)
    try:
        bandwidth = float(_amount(row.get("bandwidth", 0)))
    except UsageError as error:
        raise UsageError(f"{what}: {error.what}", where=where, hint=error.hint) from error
    if not bandwidth and not shared:
        raise UsageError(
            f"{what} has no bandwidth", where=where, hint='bandwidth = "25GB" (per second)'
        )
    return Link(
        row["from"], row["to"], bandwidth or ASSUMED_HOST, float(row.get("latency", 0)), shared,
        row.get("origin", "given"),
    )  # fmt: skip


def _amount(value: str | float) -> float:
    return parse_bytes(value.removesuffix("/s")) if isinstance(value, str) else value


def _xengine(lines: list[str], name: str, where: str) -> Machine:
    """``name;cpu|gpu;index;streams;budget`` per line (dfki-asr/xengine); budget 0 means all of
    the device's memory. The lines hold no links: host memory and a bus are assumed."""
    check(len(lines), DEVICES, "device lines", where=where, hint=FEWER, kind=UsageError)
    devices = []
    for number, line in enumerate(lines, 1):
        parts = [part.strip() for part in line.split(";")]
        numbers = [part for part in parts[2:5] if part.isascii() and part.isdigit()]
        if len(parts) != 5 or len(numbers) != 3 or parts[1] not in ("cpu", "gpu") or not parts[0]:
            raise UsageError(
                f"device line {number} is not understood: {line}",
                where=where,
                hint="name;cpu|gpu;index;streams;budget, for example cpu_0;cpu;0;1;0",
            )
        if max(map(len, numbers)) > 18 or int(numbers[0]) > _MOST["index"]:
            raise UsageError(f"device line {number} has too large a number: {line}", where=where)
        index, _, budget = map(int, numbers)
        processor = parts[1] == "cpu"
        memory = budget or (memory_bytes() if processor else 0)
        threads = processors() if processor else 0
        devices.append(
            Device(parts[0], provider_name(parts[1]), index, memory, threads, source="XEngine file")
        )
    links = [
        Link(
            a.name, b.name,
            ASSUMED_HOST if a.in_host_memory and b.in_host_memory else ASSUMED_BUS,
            1e-5, a.in_host_memory and b.in_host_memory, "assumed",
        )
        for a in devices
        for b in devices
        if a is not b
    ]  # fmt: skip
    return Machine(tuple(devices), tuple(links), name)


def machine_toml(machine: Machine, comment: str = "") -> str:
    """The text of a machine file; :func:`parse_machine` reads it back."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += [f"name = {_quoted(machine.name)}"]
    if machine.elsewhere:
        lines.append("elsewhere = true")
    for device in machine.devices:
        lines += ["", "[[device]]", f"name = {_quoted(device.name)}"]
        lines.append(f"provider = {_quoted(short_name(device.provider))}")
        lines.append(f"index = {device.index}")
        if device.memory:
            lines.append(f"memory = {device.memory}  # {format_bytes(device.memory)}")
        for key in ("threads", "flops", "bandwidth"):
            if getattr(device, key):
                lines.append(f"{key} = {_number(getattr(device, key))}")
        if device.options:
            pairs = ", ".join(f"{_quoted(k)} = {_quoted(v)}" for k, v in device.options.items())
            lines.append(f"options = {{ {pairs} }}")
        if device.holds_state is device.in_host_memory:  # not what it is without this
            lines.append(f"holds_state = {str(device.holds_state).lower()}")
        if device.precision != "fp32":
            lines.append(f"precision = {_quoted(device.precision)}")
        lines.append(f"source = {_quoted(device.source)}")
    for link in machine.links:
        lines += ["", "[[link]]", f"from = {_quoted(link.source)}", f"to = {_quoted(link.target)}"]
        lines.append(f"bandwidth = {_number(link.bandwidth)}")
        lines.append(f"latency = {_number(link.latency)}")
        if link.shared:
            lines.append("shared = true")
        lines.append(f"origin = {_quoted(link.origin)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)
