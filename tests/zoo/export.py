"""The zoo as ONNX files, by PyTorch's two exporters in the ways people call them."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

import onnxremat
from tests.zoo.registry import Architecture

OURS = "onnxremat"  # onnxremat.export
# How each exporter is called. The first and the third are what one gets without asking.
EXPORTERS: dict[str, dict[str, Any]] = {
    "dynamo": {"dynamo": True},
    "dynamo-plain": {"dynamo": True, "optimize": False},
    "legacy": {"dynamo": False},
    "legacy-train": {
        "dynamo": False,
        "training": torch.onnx.TrainingMode.PRESERVE,
        "do_constant_folding": False,
    },
    OURS: {},
}


class NotExportedError(Exception):
    """PyTorch's exporter cannot export the net; the text says why."""


def cache_folder(given: Path) -> Path:
    """Where files are kept from run to run: what ``ONNXREMAT_ZOO`` names, else as given."""
    folder = Path(os.environ.get("ONNXREMAT_ZOO") or given)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def exported(
    net: Architecture, module: torch.nn.Module, exporter: str, folder: Path
) -> onnx.ModelProto:
    """The file of a net, from the cache where it is there.

    Raises:
        NotExportedError: also remembered by the cache.
    """
    shapes = zlib.crc32(repr([(x.dtype, tuple(x.shape)) for x in net.data()]).encode())
    stem = f"{net.name}-{exporter}-{fingerprint(module):08x}-{shapes:08x}-{torch.__version__}"
    path, refusal = folder / f"{stem}.onnx", folder / f"{stem}.txt"
    if refusal.exists():
        raise NotExportedError(refusal.read_text())
    if not path.exists():
        try:
            with silence():
                export(net, module, exporter, path.with_suffix(".part"))
        except Exception as error:  # exporters raise whatever the traced code raises
            reason = why(error)
            refusal.write_text(reason)
            raise NotExportedError(reason) from error
        if _ends_a_process(path.with_suffix(".part")):
            refusal.write_text("onnxruntime's process ends where it opens the file")
            raise NotExportedError(refusal.read_text())
        path.with_suffix(".part").rename(path)
    return onnx.load(path)


def _ends_a_process(path: Path) -> bool:
    """Whether onnxruntime crashes on a file: 1.31 does where it removes branches of some Ifs in
    Ifs, as EmbeddingBag's mean has them with ``optimize=False``."""
    opened = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", opened, str(path)], capture_output=True)
    return done.returncode < 0


def export(net: Architecture, module: torch.nn.Module, exporter: str, path: Path) -> None:
    """Write the file."""
    data = net.data()
    if exporter == OURS:
        onnxremat.export(module, data, path, input_names=[f"input{k}" for k in range(len(data))])
        return
    settings = {
        "input_names": [f"input{k}" for k in range(len(data))],
        "output_names": ["prediction"],
        "external_data": False,
        **EXPORTERS[exporter],
    }
    torch.onnx.export(module, data, str(path), verbose=False, **settings)


def not_run(model: onnx.ModelProto, net: Architecture) -> str:
    """Why onnxruntime does not run a file as it comes, "" where it does."""
    data = {f"input{k}": x.numpy() for k, x in enumerate(net.data())}
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        read = {each.name for each in session.get_inputs()}
        session.run(None, {name: x for name, x in data.items() if name in read})
    except Exception as error:  # onnxruntime raises errors of many kinds
        return f"onnxruntime does not run the file: {why(error)}"
    return ""


def why(error: Exception) -> str:
    """The first line of the innermost error that says something."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    texts = [f"{type(each).__name__}: {line}" for each in reversed(chain)
             for line in [next(iter(str(each).strip().splitlines()), "")] if line]  # fmt: skip
    return (texts or [type(error).__name__])[0][:200]


def fingerprint(module: torch.nn.Module) -> int:
    """Changes when the net, its code, a weight or a buffer does."""
    code = zlib.crc32(repr(module).encode())
    for kind in sorted({type(part) for part in module.modules()}, key=lambda kind: kind.__name__):
        with contextlib.suppress(OSError):  # a class made at run time
            code = zlib.crc32(inspect.getsource(kind).encode(), code)
    for value in module.state_dict().values():
        code = zlib.crc32(np.ascontiguousarray(value.numpy()).tobytes(), code)
    return code


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Exporters print and warn a lot."""
    logging.disable(logging.CRITICAL)
    torch._C._jit_set_onnx_log_enabled(False)  # prints whole graphs
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
