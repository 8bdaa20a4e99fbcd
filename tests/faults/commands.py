"""Commands that write files, and how it is told that a file is whole."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from onnxremat import api
from onnxremat.grad import Settings as Training
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.tensor_files import read_tensors
from tests.toolbox import parse, training_chain

Check = Callable[[Path], object]  # raises where the file is not whole
FAST = ("--time-limit", "0.5", "--threads", "1")


def _model(path: Path) -> object:
    return onnx.checker.check_model(onnx.load(path))


def _json(path: Path) -> object:
    return json.loads(path.read_text())


@dataclass(frozen=True)
class Written:
    """A command that writes files.

    Attributes:
        files: by name; what it reads.
        arguments: of ``onnxremat``.
        outputs: file to the check that it is whole.
    """

    files: dict[str, bytes]
    arguments: tuple[str, ...]
    outputs: dict[str, Check]


def _study() -> bytes:
    nodes = [{"id": i, "cost_ram": 10 + i, "cost_cpu": 1 + i % 3} for i in range(8)]
    links = [{"source": i, "target": i + 1} for i in range(7)] + [{"source": 0, "target": 7}]
    return json.dumps({"nodes": nodes, "links": links}).encode()


def _training() -> dict[str, bytes]:
    """A step, the model it was made of, and data."""
    from tempfile import TemporaryDirectory

    net = parse("g (float[4, 3] x) => (float[4, 2] y) { y = MatMul(x, w) }")
    weight = np.arange(6, dtype=np.float32).reshape(3, 2) / 10
    net.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    with TemporaryDirectory() as folder:
        api.differentiate(net, Path(folder) / "step.onnx", settings=Training())
        step = (Path(folder) / "step.onnx").read_bytes()
    data, draw = io.BytesIO(), np.random.default_rng(0)
    np.savez(
        data, x=draw.standard_normal((16, 3)).astype(np.float32), labels=draw.integers(0, 2, 16)
    )
    return {"net.onnx": net.SerializeToString(), "step.onnx": step, "data.npz": data.getvalue()}


def commands() -> dict[str, Callable[[], Written]]:
    """By name; made when they are asked for."""
    return {
        "plan": lambda: Written(
            {"g.json": _study()}, ("plan", "g.json", "-b", "100%", "-o", "out.json", *FAST),
            {"out.json": _json},
        ),
        "sweep": lambda: Written(
            {"g.json": _study()}, ("sweep", "g.json", "-b", "100%", "-o", "out.json", *FAST),
            {"out.json": _json},
        ),
        "optimize": lambda: Written(
            {"in.onnx": to_model(training_chain(3, 16, 64)).SerializeToString()},
            ("optimize", "in.onnx", "out.onnx", "-b", "0.9x", "--bench-seconds", "0", *FAST),
            {"out.onnx": _model, "out.onnx.options.json": _json},
        ),
        "train": lambda: Written(
            _training(),
            ("train", "step.onnx", "--weights", "net.onnx", "--data", "data.npz", "--epochs", "2",
             "--checkpoint", "kept.safetensors", "--export", "out.onnx", "--resume"),
            {"kept.safetensors": read_tensors, "out.onnx": _model},
        ),
    }  # fmt: skip
