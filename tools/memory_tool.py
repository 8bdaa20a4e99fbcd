"""What the tool itself takes, for `make bench-memory`: memory of large weights, the first run.

Each function prints what it found and returns the targets that it misses.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SIDE, GIB, MIB = 2048, 1 << 30, 1 << 20
LEAST = 0.5  # seconds: below, runs are not compared
CLI = "from onnxremat.cli.app import main; main()"


def one_gib(folder: Path, threads: int) -> list[str]:
    """`optimize` with 1 GiB of weights: at most 2.5 GiB resident."""
    took, code = optimized(stacked(folder, 1), threads)
    good = code == 0 and took <= 2.5 * GIB
    return [] if good else [f"exit {code}, {took / GIB:.2f} GiB resident (at most 2.5)"]


def two_gib(folder: Path, threads: int) -> list[str]:
    """`optimize` with 2 GiB of weights in a limit of 6 GiB of data."""
    took, code = optimized(stacked(folder, 2), threads, 6 * GIB)
    return [] if code == 0 and took <= 6 * GIB else [f"exit {code}, {took / GIB:.2f} GiB resident"]


def first_run(folder: Path, threads: int) -> list[str]:
    """The first `optimize` of a fresh installation takes at most 1.5 times the second. Both
    measure costs anew."""
    import onnx

    import models
    from onnxremat.grad import differentiate

    source = folder / "first.onnx"
    onnx.save(differentiate(models.build("unet", batch=1, size=64, width=16)), source)
    with tempfile.TemporaryDirectory() as fresh:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--target", fresh, str(ROOT)], check=True)
        seconds = []
        for cache in ("a", "b"):
            env = {"PYTHONPATH": fresh, "ONNXREMAT_CACHE": f"{fresh}/{cache}"}
            begin = time.perf_counter()
            _, code = run(source, ["--budget", "0.6x", "--threads", threads], env=env, cwd=fresh)
            seconds.append(time.perf_counter() - begin)
            if code:
                return [f"exit {code}"]
    first, second = seconds
    print(f"first {first:.1f} s, second {second:.1f} s", flush=True)
    return [] if first <= 1.5 * max(second, LEAST) else [f"first {first / second:.2f} x second"]


TOOL: dict[str, Callable[[Path, int], list[str]]] = {
    "optimize_1GiB": one_gib,
    "optimize_2GiB": two_gib,
    "first_optimize": first_run,
}


def stacked(folder: Path, gib: int) -> Path:
    """A stack of square products with so many GiB of weights, in a file of their own."""
    import onnx
    from onnx import TensorProto, helper

    path, count = folder / f"stacked_{gib}.onnx", gib * GIB // (4 * SIDE * SIDE)
    if path.exists():
        return path
    data = path.with_suffix(".data")
    random, weights, nodes = np.random.default_rng(0), [], []
    with data.open("wb") as file:
        for k in range(count):
            tensor = TensorProto(name=f"w{k}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", data.name), ("offset", file.tell()), ("length", 4 * SIDE * SIDE),
            ):  # fmt: skip
                tensor.external_data.add(key=key, value=str(value))
            weight = random.standard_normal((SIDE, SIDE), np.float32) * np.float32(SIDE**-0.5)
            file.write(weight.tobytes())
            weights.append(tensor)
            nodes.append(
                helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"], name=f"n{k}")
            )
    ends = [helper.make_tensor_value_info(n, 1, [8, SIDE]) for n in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "stacked", ends[:1], ends[1:], weights)
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


def optimized(source: Path, threads: int, limit: int = 0) -> tuple[int, int]:
    """Most resident bytes of `optimize -v`, and its exit code."""
    words = ["--budget", "1.0x", "--target", "portable", "--threads", threads, "-v"]
    begin = time.perf_counter()
    took, code = run(source, words, limit=limit)
    print(
        f"{source.stem}: {took / MIB:.0f} MiB resident, {time.perf_counter() - begin:.0f} s, "
        f"exit {code}",
        flush=True,
    )
    return took, code


def run(
    source: Path,
    words: list[object],
    *,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    limit: int = 0,
) -> tuple[int, int]:
    """Most resident bytes and exit code of an `optimize`; what it says is shown."""
    out = source.with_suffix(".out.onnx")
    command = [sys.executable, "-c", CLI, "optimize", source, out, *words]

    def limited() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    child = subprocess.Popen(
        list(map(str, command)), env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=cwd or ROOT, preexec_fn=limited,
    )  # fmt: skip
    _, status, usage = os.wait4(child.pid, 0)
    return usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)
