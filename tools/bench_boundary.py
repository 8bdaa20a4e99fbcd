"""What it costs to go from one partition to the next: a chain of tiny ops, cut at every op."""

from __future__ import annotations

import statistics
import time

import numpy as np
from onnx import TensorProto, helper

from onnxremat.device.files import read_machine
from onnxremat.execute.executor import Executor
from onnxremat.ort.infer import build_graph
from onnxremat.rewrite.partition import partition
from onnxremat.schedule.assign import assigned, round_robin
from onnxremat.schedule.devices import follow, settled

OPS, WIDTH, RUNS = 16, 64, 2000
LIMIT = 30e-6  # seconds
WAYS = {"one thread": False, "another thread": True}


def boundaries() -> dict[str, float]:
    """Seconds per boundary in one thread, and where each goes to another thread: what 16 partitions
    of one op each take over one session of 16 ops, by 15, medians; and the copies it made."""
    values = [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [WIDTH]) for i in (0, OPS)]
    nodes = [
        helper.make_node("Sigmoid", [f"v{i}"], [f"v{i + 1}"], name=f"op{i}") for i in range(OPS)
    ]
    chain = helper.make_graph(nodes, "chain", values[:1], values[1:])
    graph = build_graph(
        helper.make_model(chain, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    machine = read_machine("cpu-2x1")
    feeds = {"v0": np.ones(WIDTH, np.float32)}

    def seconds(places: dict[str, str], overlap: bool) -> tuple[float, int]:
        plan = settled(graph, assigned(graph, places, machine))
        with Executor(partition(follow(graph, plan)), machine, overlap=overlap) as executor:
            times = []
            for _ in range(RUNS):
                begin = time.perf_counter()
                executor.run(feeds)
                times.append(time.perf_counter() - begin)
            copies = executor.copies.between + executor.copies.numpy - RUNS  # one result a run
        return statistics.median(times), copies

    whole, _ = seconds({op.name: machine.names[0] for op in graph.ops}, False)
    turns = round_robin(graph, machine.names)
    found, copied = {}, 0
    for way, overlap in WAYS.items():
        cut, copies = seconds(turns, overlap)
        found[way], copied = (cut - whole) / (OPS - 1), copied + copies
    return {**found, "copies": copied}


def tell() -> bool:
    """Print it; whether both are below the limit and nothing was copied."""
    found = boundaries()
    for way in WAYS:
        print(f"boundary, {way}: {found[way] * 1e6:.1f} us (limit {LIMIT * 1e6:.0f})")
    print(f"copies at boundaries: {found['copies']:.0f}")
    return max(found[way] for way in WAYS) < LIMIT and not found["copies"]
