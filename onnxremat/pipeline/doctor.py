"""Does this installation work? Packages, runtime behaviour, solvers."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from onnxremat.device.host import bfloat16
from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.graph.ir import Graph
from onnxremat.ort.infer import build_graph
from onnxremat.ort.providers import missing
from onnxremat.ort.session import TUNED
from onnxremat.rewrite.emit import rewrite
from onnxremat.schedule.plan import Plan
from onnxremat.session.measure import Running, measure

_RUNTIMES = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml",
    "onnxruntime-training",
)  # fmt: skip


@dataclass
class Row:
    """One thing checked; ``needed`` ones must be ok."""

    name: str
    ok: bool
    needed: bool
    text: str


def checkup() -> list[Row]:
    """Check packages, the runtime's contract (order kept, duplicates kept, peak as predicted),
    and every solver by a small problem."""
    rows = [
        _package(name) for name in ("onnx", "onnx-graphsurgeon", "numpy", "numba", "typer", "rich")
    ]
    rows.append(_package("matplotlib", needed=False))
    found = [f"{n} {v}" for n in _RUNTIMES if (v := _version(n))]
    rows.append(Row("one onnxruntime flavour", len(found) == 1, True, ", ".join(found) or "none"))
    rows.append(_attempt("recomputation survives", _contract, needed=True))
    rows.append(_openvino())
    rows.append(_mpi())
    rows += _solvers()
    return rows


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str, *, needed: bool = True) -> Row:
    version = _version(name)
    return Row(name, version is not None, needed, version or "not installed")


def _attempt(name: str, check: Callable[[], str], *, needed: bool) -> Row:
    try:
        return Row(name, True, needed, check())
    except Exception as error:  # a check-up reports every failure
        return Row(name, False, needed, str(error).splitlines()[0])


def _openvino() -> Row:
    """Whether Intel's kernels are here; where they could be, what they gained when measured."""
    why = missing(Device("openvino", PROVIDERS["openvino"]))
    faster = "; --precision bf16: products in bfloat16, which this processor has"
    text = why or "ready: --devices cpu-openvino" + (faster if bfloat16() else "")
    if "not installed" in why:
        text += (
            "; pip install 'onnxremat[openvino]': on a Xeon BERT's inference took 0.65-0.75 of "
            "onnxruntime's time with it"
        )
    return Row("openvino", not why, False, text)


def _mpi() -> Row:
    """Whether several processes can train together. In a process of its own: to load MPI is to
    begin with it."""
    program = "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0])"
    ran = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or ["no mpi4py"])[-1]
        return Row("mpi", False, False, f"{why}; pip install 'onnxremat[mpi]'")
    if shutil.which("mpiexec", path=str(Path(sys.executable).parent)):
        launcher = "mpiexec beside this python"
    else:
        launcher = shutil.which("mpiexec") or "no mpiexec in the path"
    return Row("mpi", True, False, f"ready: {' '.join(ran.stdout.split())}, {launcher}")


def _chain() -> Graph:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[64, 256] x) => (float[64, 256] y) {
       a = Sin(x)  b = Cos(a)  c = Sin(b)  d = Cos(c)  e = Mul(d, b)  y = Add(e, a)
    }"""
    model = onnx.parser.parse_model(text)
    return build_graph(model)


def _contract() -> str:
    graph = _chain()
    names = [op.name for op in graph.ops]
    # a, b, c, then everything again for the end: a recomputation that merging would undo.
    sequence = [*names[:4], names[0], names[1], names[4], names[5]]
    made = rewrite(graph, Plan.of(graph, sequence))
    feeds = {"x": np.ones((64, 256), np.float32)}
    found = measure(Running(made.graph), made.model(), feeds, TUNED)
    if not found.order_kept or found.missing:
        raise RuntimeError("this onnxruntime changes the planned order")
    if abs(found.prediction_error) > 0.05:
        raise RuntimeError(f"predicted peak is off by {found.prediction_error:+.1%}")
    return f"order kept, peak {found.peak} B, predicted {found.prediction_error:+.2%}"


def _solvers() -> list[Row]:
    from onnxremat.planner.solvers import SOLVERS

    rows = []
    for name, solver in SOLVERS.items():
        reason = solver.unavailable()
        rows.append(Row(f"solver {name}", reason is None, name == "highs", reason or "ready"))
    return rows
