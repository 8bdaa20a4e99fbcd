"""A partitioned model as one ONNX file per partition and a manifest, and back.

The manifest says which file runs on which device, what goes in and out, in which order partitions
and copies run, what may run at the same time, when a value is no longer needed, and the session
options: all that a program in C, C++, C# or Java needs. Every file's hash is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxremat import plain_json
from onnxremat.device.files import machine_toml, parse_machine
from onnxremat.device.machine import Machine
from onnxremat.errors import ModelError, UsageError
from onnxremat.execute.deployment import Deployment
from onnxremat.execute.executor import Executor, Kept, Opening
from onnxremat.execute.read_back import read_sizes, read_waits, sound
from onnxremat.graph.atomic import atomic, not_left_empty
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.onnx_io import to_model, write_model
from onnxremat.graph.subgraph import subgraph
from onnxremat.ort.session import LEVELS, TUNED, config_entries
from onnxremat.rewrite.partition import Action, Copy, Partition, Partitioned, part_graph
from onnxremat.rewrite.pins import add_pins
from onnxremat.schedule.devices import Followed, Moved, Ran

FORMAT, VERSION = "onnxremat.partitions", 1
MANIFEST = "manifest.json"
UNFINISHED = ".unfinished"  # folder in that of an export, while it is made


def export_partitions(made: Deployment, folder: Path) -> list[Path]:
    """Write every partition and the manifest; returns the files written. What an earlier export has
    left in the folder is replaced once all of them are there.

    Raises:
        UsageError: the folder holds other files, or cannot be written.
    """
    with not_left_empty(folder):
        return _replaced(made, folder, _made_ready(folder))


def _replaced(made: Deployment, folder: Path, earlier: set[str]) -> list[Path]:
    """All files in a folder of their own, then in the place of earlier ones."""
    aside = folder / UNFINISHED
    try:
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir()
        except OSError as error:
            raise _not_written(folder, error) from error
        files = _written(made, aside)
        try:
            for name in earlier:
                (folder / name).unlink(missing_ok=True)
            return [file.replace(folder / file.name) for file in files]
        except OSError as error:
            raise _not_written(folder, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _written(made: Deployment, folder: Path) -> list[Path]:
    """All files, the manifest last."""
    written: list[Path] = []
    rows: list[dict[str, Any]] = []
    for index, action in enumerate(made.parts.actions):
        row: dict[str, Any] = {
            "after": list(made.parts.after[index]),
            "frees": [list(key[:2]) for key in made.parts.dies[index]],
        }
        if isinstance(action, Copy):
            row |= {"copy": action.value, "source": action.source, "target": action.target}
        else:
            files = _write(action, made, folder)
            written += files
            row |= {
                "partition": action.name,
                "device": action.device,
                "file": files[0].name,
                "sha256": {path.name: _hash(path) for path in files},
                "nodes": [op.name for op in action.graph.ops],
                "inputs": _signature(action.graph, action.graph.inputs),
                "outputs": _signature(action.graph, action.graph.outputs),
            }
        rows.append(row)
    manifest = folder / MANIFEST
    with atomic(manifest) as temporary:
        temporary.write_text(json.dumps(_manifest(made, rows), indent=1) + "\n")
    return [*written, manifest]


def _made_ready(folder: Path) -> set[str]:
    """Make it; files of an earlier export in it, which would mislead where parts are no more.
    Nothing else in it is touched."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from error
    there = {path.name for path in folder.iterdir()} - {UNFINISHED}
    ours = _earlier(folder) if MANIFEST in there else set()
    if there - ours:
        raise UsageError(
            f"{folder} holds other files",
            why=", ".join(sorted(there - ours)[:5]),
            hint="give an empty folder, or one that does not exist yet",
        )
    return ours & there


def _not_written(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write to {folder}", why=error.strerror or str(error))


def _earlier(folder: Path) -> set[str]:
    """Files of an earlier export."""
    rows = _read_manifest(folder).get("actions", [])
    try:
        return {MANIFEST} | {name for row in rows for name in row.get("sha256", ())}
    except (TypeError, AttributeError) as error:
        raise _damaged(folder, error) from error


def _write(part: Partition, made: Deployment, folder: Path) -> list[Path]:
    device = made.machine.device(part.device)
    graph = part_graph(part, device)
    model = to_model(graph if device.opaque else add_pins(graph))  # for sessions of any options
    if made.folder is not None:
        onnx.load_external_data_for_model(model, str(made.folder))
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", part.name)
    return write_model(model, folder / f"{name}.onnx")


def _manifest(made: Deployment, rows: list[dict[str, Any]]) -> dict[str, Any]:
    graph = made.graph
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": machine_toml(made.machine),
        "inputs": _signature(graph, graph.inputs),
        "outputs": _signature(graph, graph.outputs),
        "final": dict(made.parts.followed.final),
        "state": [list(pair) for pair in made.parts.pairs],
        "limits": dict(made.limits),
        "counted": asdict(made.parts.counted),
        "waits": [list(pair) for pair in made.waits],
        **({"pipeline": made.stages_in_rounds()} if made.in_flight else {}),
        "session": {
            "SetSessionGraphOptimizationLevel": LEVELS[TUNED.level],
            "execution_order": "PRIORITY_BASED",
            "EnableMemPattern": TUNED.pattern,
            "enable_mem_reuse": TUNED.reuse,
            "EnableCpuMemArena": TUNED.arena,
            "AddSessionConfigEntry": config_entries(TUNED),
        },
        "actions": rows,
    }


def _signature(graph: Graph, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: {
            "type": helper.tensor_dtype_to_string(graph.tensors[name].dtype).split(".")[-1],
            "shape": list(graph.tensors[name].shape or ()),
        }
        for name in names
    }


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- reading back ----------------------------------------------------------------------------


def load_partitions(
    folder: str | os.PathLike[str],
    *,
    machine: Machine | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    overlap: bool | None = None,
) -> Executor:
    """Ready to run what :func:`export_partitions` wrote.

    Args:
        machine: with devices of the same names, instead of the one planned for.
        state: array per input that the model updates in place.

    Raises:
        UsageError: no manifest, or a damaged one.
        ModelError: a partition's file is missing, or not what was exported.
        MissingComponentError: a device's provider is not here.
    """
    base = Path(folder)
    data = _read_manifest(base)
    try:
        parts = sound(_partitioned(data))
        target = machine or parse_machine(data["machine"])
        waits, limits = read_waits(data["waits"], len(parts.actions)), read_sizes(data["limits"])
        files = {
            row["partition"]: (base / row["file"], row["sha256"])
            for row in data["actions"]
            if "file" in row
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(base, error) from error
    for name, (_, hashes) in files.items():
        for file, expected in hashes.items():
            _check(base / file, expected, name)
    models = [files[part.name][0] for part in parts.partitions]
    return Executor(
        parts, target, Opening(models=models), Kept(waits, limits), state=state, overlap=overlap
    )


def _read_manifest(base: Path) -> dict[str, Any]:
    path = base / MANIFEST
    if not path.is_file():
        raise UsageError(
            f"no {MANIFEST} in {base}", hint="onnxremat export-partitions OUT.onnx FOLDER"
        )
    try:
        data = plain_json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} is not readable", why=str(error)) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path} is no manifest of partitions")
    if data.get("version") != VERSION:
        raise UsageError(
            f"{path} is of version {data.get('version')}", why=f"this onnxremat reads {VERSION}"
        )
    return data


def _damaged(base: Path, error: Exception) -> UsageError:
    return UsageError(
        f"{base / MANIFEST} is damaged", why=plain_json.why_damaged(error),
        hint="export the partitions again, to an empty folder",
    )  # fmt: skip


def _check(path: Path, expected: str, part: str) -> None:
    if not path.is_file():
        raise ModelError(
            f"partition {part} is missing: no file {path}", hint="export the partitions again"
        )
    if _hash(path) != expected:
        raise ModelError(
            f"partition {part} was changed after it was exported",
            where=str(path),
            why="its hash is not that of the manifest",
            hint="export the partitions again",
        )


def _partitioned(data: Mapping[str, Any]) -> Partitioned:
    """Partitions of which only the signatures are known: each is one op."""
    tensors: dict[str, Tensor] = {}
    events: list[Ran | Moved] = []
    for step, row in enumerate(data["actions"]):
        if "copy" in row:
            events.append(Moved(step, row["copy"], row["source"], row["target"]))
            continue
        for names in (row["inputs"], row["outputs"]):
            tensors |= {name: _tensor(name, about) for name, about in names.items()}
        node = onnx.NodeProto(op_type="Partition", name=row["partition"])
        op = Op(
            row["partition"], "Partition", "", tuple(row["inputs"]), tuple(row["outputs"]), (), node
        )
        events.append(Ran(step, op, row["device"]))
    for name, about in data["inputs"].items():
        tensors[name] = _tensor(name, about, Role.INPUT)
    ops = tuple(event.op for event in events if isinstance(event, Ran))
    graph = Graph(ops, tensors, tuple(data["inputs"]), tuple(data["outputs"]), onnx.ModelProto())
    actions: list[Action] = []
    for event in events:
        if isinstance(event, Moved):
            actions.append(Copy(event.value, event.source, event.target, event.step))
            continue
        index = sum(isinstance(action, Partition) for action in actions)
        part = subgraph(graph, [event.op], set(event.op.outputs))
        actions.append(Partition(index, event.device, event.step, part))
    pairs = tuple((str(old), str(new)) for old, new in data["state"])
    followed = Followed(graph, tuple(events), dict(data["final"]))
    return Partitioned(followed, tuple(actions), pairs)


def _tensor(name: str, about: Mapping[str, Any], role: Role = Role.ACTIVATION) -> Tensor:
    dtype = onnx.TensorProto.DataType.Value(about["type"])
    shape = tuple(int(size) for size in about["shape"])
    return Tensor(name, dtype, shape, tensor_bytes(dtype, shape), role)
