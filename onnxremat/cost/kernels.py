"""What a kernel costs beside the rows it computes, measured once per machine and kept.

Two small models: a chain of convolutions of a few hundred numbers, and copies of values that stay
in a core's cache. The least of many short runs is taken: the machine may be busy meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat import plain_json
from onnxremat.cost.kept import cache_folder
from onnxremat.cost.measure import machine_key, write_cache
from onnxremat.cost.table import KernelCosts
from onnxremat.errors import OnnxrematError
from onnxremat.ort.profile import run_session
from onnxremat.ort.session import TUNED, open_session, session_options

CHAIN, CHANNELS, SIDE = 200, 16, 4  # of the convolutions
COPIES, ROW, ROWS = 32, 1024, 64  # rows of 4 KiB: 256 to 384 KiB
RUNS, WITHIN = 60, 0.5  # runs, and seconds for them
# Here code, weights and values are in the nearest cache. In nets of convolutions in parts a piece
# takes 1.5 us beside its rows, and its weights arrive at 30 to 80 GB/s, where these models take
# 0.6 us and move 107 GB/s (AMD EPYC, Zen 5).
COLD_CALL, COLD_RATE = 3.0, 2.0
MOST = KernelCosts(call=1e-3, rate=1e12)  # beyond these nothing was measured
LEAST = KernelCosts(call=1e-8, rate=1e8)


def kernel_costs(threads: int = 0, fresh: bool = False) -> KernelCosts:
    """Of this machine: measured, where the cache does not know; usual ones, where that fails.

    Args:
        threads: intra-op threads, 0 for one per core.
    """
    path = cache_folder() / f"kernels-{machine_key(threads)}.json"
    found = None if fresh else _kept(path)
    if found is None:
        try:
            found = _measured(threads)
        except OnnxrematError:
            return KernelCosts()
        write_cache(path, asdict(found))
    return found


def _kept(path: Path) -> KernelCosts | None:
    try:
        data = plain_json.loads(path.read_text())
        found = KernelCosts(float(data["call"]), float(data["rate"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    sound = LEAST.call <= found.call <= MOST.call and LEAST.rate <= found.rate <= MOST.rate
    return found if sound else None


def _measured(threads: int) -> KernelCosts:
    small = _least(_convolutions(), (1, CHANNELS, SIDE, SIDE), threads) / CHAIN
    first = ROWS + COPIES
    moved = 4 * ROW * sum(range(ROWS, first))
    took = _least(_copies(), (first, ROW), threads) - COPIES * small
    call, rate = COLD_CALL * small, moved / max(took, 1e-9) / COLD_RATE
    return KernelCosts(min(max(call, LEAST.call), MOST.call), min(max(rate, LEAST.rate), MOST.rate))


def _least(model: onnx.ModelProto, shape: tuple[int, ...], threads: int) -> float:
    """Seconds of the quickest run."""
    session = open_session(model, session_options(replace(TUNED, threads=threads)))
    feeds, least = {"x": np.ones(shape, np.float32)}, np.inf
    until = time.monotonic() + WITHIN
    for _ in range(RUNS):
        begin = time.perf_counter()
        run_session(session, feeds)
        least = min(least, time.perf_counter() - begin)
        if time.monotonic() > until:
            break
    return float(least)


def _convolutions() -> onnx.ModelProto:
    weight = np.full((CHANNELS, CHANNELS, 1, 1), 1 / CHANNELS, np.float32)
    shape = [1, CHANNELS, SIDE, SIDE]
    nodes = [
        helper.make_node("Conv", [f"{i}" if i else "x", "w"], [f"{i + 1}"]) for i in range(CHAIN)
    ]
    return _model(nodes, shape, shape, [numpy_helper.from_array(weight, "w")])


def _copies() -> onnx.ModelProto:
    """Slices, each of one row less than the one before."""
    names = {"one": 1, "end": ROWS + COPIES, "axis": 0}
    constants = [numpy_helper.from_array(np.array([n]), name) for name, n in names.items()]
    nodes = [
        helper.make_node("Slice", [f"{i}" if i else "x", *names], [f"{i + 1}"])
        for i in range(COPIES)
    ]
    return _model(nodes, [ROWS + COPIES, ROW], [ROWS, ROW], constants)


def _model(
    nodes: list[onnx.NodeProto], read: list[int], made: list[int], weights: list[onnx.TensorProto]
) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", read), (str(len(nodes)), made))
    ]
    graph = helper.make_graph(nodes, "kernels", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
