"""Inference: stock onnxruntime, OpenVINO's provider, and PyTorch eager, on the same weights.

    make bench-infer ARGS='--nets bert vit --threads 1 --batch 1 8'

One process, contenders in turn, in an order drawn anew each round. Ratios are medians of the ratio
to PyTorch in the same round, of the processor time of all threads with one thread (a busy machine
changes it less) and of the wall with more. Outputs are compared with onnxruntime's first. OpenVINO
computes in float32, and in bfloat16 where the processor can (docs/devices.md). ``--compile`` adds
``torch.compile``, which wants a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_train import SETTINGS, machine  # adds the project to Python's path
from onnx import numpy_helper
from torch_nets import FORWARDS

import models
from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.ort.providers import missing, open_on
from onnxremat.ort.session import DEFAULT

NETS: dict[str, dict[str, int]] = {
    "resnet50": {"size": 224},
    "mobilenetv2": {"size": 224},
    "bert": {"sequence": 128, "hidden": 256, "layers": 4, "heads": 4},
    "vit": {"size": 224},
}
DEVICES = {
    "onnxruntime": Device("cpu"),
    "OpenVINO": Device("openvino", PROVIDERS["openvino"]),
    "OpenVINO bf16": Device("openvino", PROVIDERS["openvino"], precision="bf16"),
}
Run = Callable[[], Any]
WORST = {"fp32": 1e-4, "bf16": 5e-2}  # of the largest value of an output, between contenders


def contenders(net: str, batch: int, threads: int, compiled: bool) -> dict[str, Run]:
    """What runs a net here, by name; PyTorch first.

    Raises:
        AssertionError: two of them disagree.
    """
    model = models.build(net, batch=batch, **NETS[net])
    feeds = models.feeds(model)
    found: dict[str, Run] = {"PyTorch": _by_torch(net, model, feeds, False)}
    if compiled:
        found["torch.compile"] = _by_torch(net, model, feeds, True)
    for name, device in DEVICES.items():
        if not missing(device):
            session = open_on(replace(device, threads=threads), model, DEFAULT)
            found[name] = partial(_first, session, feeds)
    expected = np.asarray(found["onnxruntime"]())
    for name, run in found.items():
        off = np.abs(np.asarray(run()).reshape(expected.shape) - expected).max()
        allowed = WORST[DEVICES[name].precision if name in DEVICES else "fp32"]
        assert off <= allowed * np.abs(expected).max(), f"{net}: {name} is {off} off"
    return found


def _first(session: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(session.run(None, feeds)[0])


def _by_torch(net: str, model: Any, feeds: dict[str, np.ndarray], compiled: bool) -> Run:
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    values = {n: torch.tensor(a) for n, a in stored.items() if a.dtype == np.float32}
    inputs = {name: torch.tensor(value) for name, value in feeds.items()}

    def block(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def forward() -> torch.Tensor:
        return FORWARDS[net](values, inputs, block, **SETTINGS.get(net, {}))

    forward = torch.compile(forward) if compiled else forward

    def run() -> torch.Tensor:
        with torch.no_grad():
            return forward()

    return run


def measure(runs: dict[str, Run], threads: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of each contender, and its ratio to PyTorch."""
    clock = time.process_time if threads == 1 else time.perf_counter
    took: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(rounds + 1):
        for name in random.sample(list(runs), len(runs)):
            begin = clock()
            runs[name]()
            if index:  # the first is for warming up
                took[name].append(clock() - begin)
    row = {}
    for name, each in took.items():
        pairs = zip(each, took["PyTorch"], strict=True)
        row[name] = {
            "ms": round(1e3 * statistics.median(each), 2),
            "ratio": round(statistics.median(a / b for a, b in pairs), 3),
        }
    return row


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="make bench-infer", description=__doc__)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path, help="JSON lines")
    asked = parser.parse_args()
    print(f"{machine()}\n")
    names = ["PyTorch", *(["torch.compile"] if asked.compile else []), *DEVICES]
    print(f"| net | batch | threads | {' | '.join(f'{name} ms' for name in names)} |")
    print("|---|---:|---:|" + "---:|" * len(names))
    rows = []
    for threads in asked.threads:
        torch.set_num_threads(threads)
        for net in asked.nets:
            for batch in asked.batch:
                row = measure(contenders(net, batch, threads, asked.compile), threads, asked.rounds)
                rows.append({"net": net, "batch": batch, "threads": threads, **row})
                cells = (
                    f"{row[n]['ms']} ({row[n]['ratio']:.2f})" if n in row else "not here"
                    for n in names
                )
                print(f"| {net} | {batch} | {threads} | {' | '.join(cells)} |", flush=True)
    if asked.out:
        asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
