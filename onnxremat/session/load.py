"""Open a planned model with the options that keep its plan intact."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from onnxremat.errors import UsageError
from onnxremat.graph.atomic import atomic
from onnxremat.graph.wire import existing, read_light
from onnxremat.memory.arena import Region
from onnxremat.memory.mapped import can_own
from onnxremat.ort.blocks import require_block
from onnxremat.ort.providers import missing
from onnxremat.ort.session import LEVELS, TUNED, Options, config_entries, session_options
from onnxremat.rewrite.emit import figures, metadata
from onnxremat.rewrite.pins import PREFIX as PIN
from onnxremat.session.held import open_held, open_light
from onnxremat.session.whole import only_device, open_whole

OPTIONS_SUFFIX = ".options.json"


def load(path: str | os.PathLike[str], *, threads: int = 0, **changes: Any) -> Any:
    """A ready ``onnxruntime.InferenceSession`` for a model that onnxremat wrote.

    The process holds what the plan says: weights once, and one slab of the planned bytes. Where
    that cannot be had, the next best way is taken; ``describe()`` of the session says which, and
    why. See docs/memory.md. A plan over devices that gives everything to one of them, OpenVINO's
    say, is opened on that one; where it is not here, and where there are several, on the processor
    (:func:`onnxremat.load_devices` runs several).

    Args:
        path: the model.
        threads: intra-op threads, 0 for one per core.
        changes: fields of :class:`onnxremat.ort.session.Options` to set otherwise; with
            ``arena=False`` every block is asked of the C library.

    Raises:
        UsageError: the file was not written by onnxremat.
        ModelError: it cannot be read, or onnxruntime refuses it.
    """
    file = existing(path)
    light = read_light(file, PIN)
    options = replace(options_of(light.head, str(path)), threads=threads, **changes)
    require_block(light.head)
    device = only_device(light.head)
    why = missing(device) if device else ""
    if device and not why:
        return open_whole(file, replace(device, threads=threads or device.threads), options)
    made = session_options(options)
    listed = (options.level, options.order) == (TUNED.level, TUNED.order)
    without = PIN if listed else ""  # else the pins keep the order

    def search() -> Region | str:
        from onnxremat.session.region import find_region

        return find_region(file, options, (), without)

    if not can_own() or (light.elsewhere and file.is_symlink()):
        without = ""
        session = open_held(str(file), made, options, search)
    else:
        if not listed:
            light = read_light(file)
        session = open_light(file.resolve(), light.content, made, options, search)
        session._model_path = str(file)  # where providers are set anew from
    if device:
        how, told = session.describe, f"planned for '{device.name}', which is not here: {why}"
        session.describe = lambda: f"{told}; {how()}"  # type: ignore[method-assign]
    return session


def options_of(model: onnx.ModelProto, where: str = "") -> Options:
    """Session options a planned model wants.

    Raises:
        UsageError: onnxremat did not write the model.
    """
    facts = metadata(model)
    if "plan" not in facts:
        raise UsageError(
            "the model carries no plan",
            where=where,
            hint="make one with: onnxremat optimize IN.onnx OUT.onnx --budget 0.6x",
        )
    return Options.from_json(figures(facts, "options")) if "options" in facts else TUNED


def options_path(model: Path) -> Path:
    """Where the session options of a model are written."""
    return model.with_name(model.name + OPTIONS_SUFFIX)


@contextmanager
def options_beside(path: Path, options: Options, facts: dict[str, Any]) -> Iterator[Path]:
    """Write the session options beside a model, as ``<model>.options.json``: before the block, in
    which the model is written; they take their place after it. Where there is room for one alone,
    neither is written.

    The file holds ``format``, ``version``, ``session`` (fields of ``Options`` in plain words),
    ``onnxruntime`` (the same as onnxruntime's C API names and values) and ``plan`` (budget, peaks
    and overheads, for people).
    """
    target = options_path(path)
    data = {
        "format": "onnxremat.options",
        "version": 1,
        "session": options.to_json(),
        "onnxruntime": {
            "SetSessionGraphOptimizationLevel": LEVELS[options.level],
            "execution_order": {"priority": "PRIORITY_BASED"}.get(options.order, "DEFAULT"),
            "EnableMemPattern": options.pattern,
            "enable_mem_reuse": options.reuse,
            "EnableCpuMemArena": options.arena,
            "AddSessionConfigEntry": config_entries(options),
        },
        "plan": facts,
    }  # fmt: skip
    with atomic(target) as temporary:
        temporary.write_text(json.dumps(data, indent=2) + "\n")
        yield target
