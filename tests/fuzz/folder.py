"""Cases of models that others made: every file of a folder, as it lies there."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from onnxremat.graph.ir import all_nodes
from tests.fuzz.case import FAST, Case
from tests.fuzz.runner import Answer, answer, forked

DIMENSION = 2  # of every symbol
COMMAND = ("optimize", "in.onnx", "out.onnx", "-b", "0.8x", *FAST)


def models(folder: Path) -> list[Path]:
    """All ``.onnx`` files below a folder."""
    return sorted(folder.rglob("*.onnx"))


def case(path: Path, command: Sequence[str] = COMMAND) -> Case:
    """A command on a model, with its weights beside it; dimensions without a number are 2."""
    files, sizes = {"in.onnx": path.read_bytes()}, []
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, OSError):
        return Case("folder", files, tuple(command), ("in.onnx", "out.onnx"))
    for name in sorted(_external(model)):
        if (beside := path.parent / name).is_file():
            files[name] = beside.read_bytes()
    for value in _fed(model):
        dims = value.type.tensor_type.shape.dim
        if any(dim.dim_value <= 0 for dim in dims):
            known = (dim.dim_value if dim.dim_value > 0 else DIMENSION for dim in dims)
            shape = ",".join(map(str, known))
            sizes += ["--shape", f"{value.name}:{shape}"]
    return Case("folder", files, (*command, *sizes), ("in.onnx", "out.onnx"))


def _external(model: onnx.ModelProto) -> set[str]:
    constants = [each.t for node in all_nodes(model.graph) for each in node.attribute]
    tensors = (*model.graph.initializer, *constants)
    return {ExternalDataInfo(each).location for each in tensors if uses_external_data(each)}


def _fed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def judged(path: Path) -> tuple[Path, Answer, bool]:
    """The answer for a file, and whether plain onnxruntime runs it."""
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / "work"
        work.mkdir()
        code, why = forked(lambda: _run(path.resolve()), work)
    return path, answer(case(path)), not code and not why


def _run(path: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    kinds = {"float": np.float32, "double": np.float64, "float16": np.float16, "string": object}
    feeds = {}
    for value in session.get_inputs():
        kind = value.type.removeprefix("tensor(").removesuffix(")")
        shape = [size if isinstance(size, int) else DIMENSION for size in value.shape]
        feeds[value.name] = np.zeros(shape, kinds[kind] if kind in kinds else np.dtype(kind))
    session.run(None, feeds)


def told(found: Sequence[tuple[Path, Answer, bool]]) -> list[str]:
    """One line per exit code and kind of message: how many files, and one of them. Those that plain
    onnxruntime does not run are counted apart: what it refuses may be refused."""
    kinds: Counter[tuple[int, bool, str]] = Counter()
    first: dict[tuple[int, bool, str], Path] = {}
    for path, given, runs in found:
        kind = (given.code, runs, _kind(given.said) if given.code else "done")
        kinds[kind] += 1
        first.setdefault(kind, path)
    return [
        f"{number:5} x exit code {code}, onnxruntime {'runs' if runs else 'does not run'} it: "
        f"{text} ({first[code, runs, text]})"
        for (code, runs, text), number in sorted(kinds.items())
    ]


def _kind(said: str) -> str:
    """A message without names and numbers, so that those of one kind are equal."""
    text = " ".join(said.partition("error: ")[2].split()) or " ".join(said.split())
    text = re.sub(r"'[^']*'", "'...'", text)
    return re.sub(r"\d[\d.,]*", "N", text)[:160]
