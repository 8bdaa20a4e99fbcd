"""Single operators: stock onnxruntime, OpenVINO's provider, and PyTorch on the same numbers.

One process, sessions in turn, in an order drawn anew each round; medians of the ratio to PyTorch in
the same round. Ratios above 1: PyTorch is quicker. Say the processor with every figure: kernels are
chosen by what it has.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from bench_train import machine
from onnx import TensorProto, helper, numpy_helper

from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.errors import OnnxrematError
from onnxremat.ort.providers import missing, open_on
from onnxremat.ort.session import Options

Run = Callable[[], object]
Torch = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One operator at one shape.

    Attributes:
        name: as it is shown.
        op: ONNX operator.
        shapes: of its inputs.
        torch: the same in PyTorch.
        constant: inputs that are weights of the model (inference), not values (training).
        domain: of the operator.
    """

    name: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    torch: Torch
    constant: tuple[int, ...] = ()
    domain: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)

    def values(self) -> list[np.ndarray]:
        """Seeded numbers, one array per input."""
        draw = np.random.default_rng(0)
        return [draw.standard_normal(shape, np.float32) for shape in self.shapes]

    def model(self) -> onnx.ModelProto:
        """The operator alone."""
        names = [f"x{k}" for k in range(len(self.shapes))]
        fixed = [
            numpy_helper.from_array(value, names[k])
            for k, value in enumerate(self.values())
            if k in self.constant
        ]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for k, (name, shape) in enumerate(zip(names, self.shapes, strict=True))
            if k not in self.constant
        ]
        with torch.no_grad():
            result = self.torch(*map(torch.from_numpy, self.values()))
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(result.shape))
        node = helper.make_node(self.op, names, ["y"], domain=self.domain, **self.attributes)
        graph = helper.make_graph([node], "one", inputs, [output], fixed)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _products() -> list[Case]:
    """The three products of a layer's step in each of the forms that ONNX has for them."""
    found = []
    for m, k, n in ((4096, 256, 1024), (4096, 1024, 256), (256, 4096, 1024), (4096, 768, 768)):
        size = f"{m}x{k}x{n}"
        found += [
            Case(f"MatMul {size}", "MatMul", ((m, k), (k, n)), torch.matmul),
            Case(f"Gemm {size}", "Gemm", ((m, k), (k, n)), torch.matmul),
            Case(f"Gemm {size}, B transposed", "Gemm", ((m, k), (n, k)),
                 lambda a, b: a @ b.T, attributes={"transB": 1}),
            Case(f"Gemm {size}, A transposed", "Gemm", ((k, m), (k, n)),
                 lambda a, b: a.T @ b, attributes={"transA": 1}),
            Case(f"MatMul {size}, B packed", "MatMul", ((m, k), (k, n)), torch.matmul, (1,)),
        ]  # fmt: skip
    found.append(
        Case("MatMul 128 of 128x64x128", "MatMul", ((128, 128, 64), (128, 64, 128)), torch.matmul)
    )
    return found


def _convolutions() -> list[Case]:
    def case(
        channels: int, pixels: int, kernel: int, groups: int = 1, packed: bool = False
    ) -> Case:
        pad = kernel // 2
        return Case(
            f"Conv {kernel}x{kernel}, {channels} channels, {pixels} px"
            + (", depthwise" if groups > 1 else "") + (", W packed" if packed else ""),
            "Conv",
            ((8, channels, pixels, pixels), (channels, channels // groups, kernel, kernel)),
            lambda x, w: torch.conv2d(x, w, padding=pad, groups=groups),
            (1,) if packed else (),
            attributes={"pads": [pad] * 4, "group": groups},
        )  # fmt: skip

    return [
        case(64, 56, 3), case(64, 56, 3, packed=True), case(128, 28, 3), case(256, 14, 3),
        case(256, 14, 3, packed=True), case(512, 7, 3), case(256, 14, 1), case(96, 56, 3, 96),
    ]  # fmt: skip


def cases() -> list[Case]:
    """Every operator and shape."""
    wide, head = (4096, 1024), (32, 4, 128, 128)
    norm = torch.nn.functional.layer_norm
    return [
        *_products(),
        *_convolutions(),
        Case("Gelu 4096x1024", "Gelu", (wide,), torch.nn.functional.gelu),
        Case("FastGelu 4096x1024", "FastGelu", (wide,),
             lambda x: torch.nn.functional.gelu(x, approximate="tanh"), domain="com.microsoft"),
        Case("Softmax 32x4x128x128", "Softmax", (head,), lambda x: torch.softmax(x, -1),
             attributes={"axis": -1}),
        Case("LayerNormalization 4096x1024", "LayerNormalization", (wide, (1024,), (1024,)),
             lambda x, w, b: norm(x, (1024,), w, b)),
        Case("Add 4096x1024", "Add", (wide, wide), torch.add),
        Case("Mul 4096x1024", "Mul", (wide, wide), torch.mul),
        Case("Erf 4096x1024", "Erf", (wide,), torch.erf),
        Case("Transpose 32x128x4x64", "Transpose", ((32, 128, 4, 64),),
             lambda x: x.transpose(1, 2).contiguous(), attributes={"perm": [0, 2, 1, 3]}),
        Case("ReduceSum of rows, 4096x1024", "ReduceSum", (wide,), lambda x: x.sum((0, 1)),
             attributes={"keepdims": 0}),
        Case("MaxPool 64 channels, 112 px", "MaxPool", ((8, 64, 112, 112),),
             lambda x: torch.max_pool2d(x, 3, 2, 1),
             attributes={"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
    ]  # fmt: skip


def contenders(case: Case, threads: int) -> dict[str, Run]:
    """What runs a case here, by name; PyTorch last."""
    values, model = case.values(), case.model()
    feeds = {f"x{k}": value for k, value in enumerate(values) if k not in case.constant}
    found: dict[str, Run] = {}
    for name, provider in (("onnxruntime", "cpu"), ("openvino", "openvino")):
        device = Device(name, PROVIDERS[provider], threads=threads)
        if not missing(device):
            found[name] = _bound(open_on(device, model, Options()), feeds)
    tensors = [torch.from_numpy(value) for value in values]

    def by_torch() -> torch.Tensor:
        with torch.no_grad():
            return case.torch(*tensors)

    return {**found, "PyTorch": by_torch}


def _bound(session: Any, feeds: dict[str, np.ndarray]) -> Run:
    """A run whose inputs are bound, and whose output is written where it was before."""
    import onnxruntime as ort

    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
    output = session.get_outputs()[0]
    kept = np.empty(output.shape, np.float32)
    binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(kept))
    return lambda: session.run_with_iobinding(binding)


def measure(case: Case, threads: int, rounds: int) -> dict[str, Any]:
    """Seconds of each contender, and its ratio to PyTorch: medians over rounds."""
    runs = contenders(case, threads)
    for run in runs.values():
        run()
    begin = time.perf_counter()
    runs["PyTorch"]()
    times = max(1, int(0.02 / max(time.perf_counter() - begin, 1e-6)))
    took: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in random.sample(list(runs), len(runs)):
            begin = time.perf_counter()
            for _ in range(times):
                runs[name]()
            took[name].append((time.perf_counter() - begin) / times)
    row: dict[str, Any] = {"case": case.name, "threads": threads}
    for name, each in took.items():
        pairs = zip(each, took["PyTorch"], strict=True)
        row[name] = statistics.median(each)
        row[f"{name}_ratio"] = statistics.median(a / b for a, b in pairs)
    return row


def shown(row: dict[str, Any]) -> str:
    """A line of the table."""
    cells = [
        f"{1e3 * row[name]:.2f} ({row[f'{name}_ratio']:.2f})" if name in row else "not here"
        for name in ("onnxruntime", "openvino")
    ]
    return (
        f"| {row['case']} | {row['threads']} | {' | '.join(cells)} | {1e3 * row['PyTorch']:.2f} |"
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="make bench-ops", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="JSON lines")
    asked = parser.parse_args()
    print(f"{machine()}\n")
    print("| operator | threads | onnxruntime ms | OpenVINO ms | PyTorch ms |")
    print("|---|---:|---:|---:|---:|")
    rows = []
    for threads in asked.threads:
        torch.set_num_threads(threads)
        for case in cases():
            if asked.only not in case.name:
                continue
            try:
                rows.append(measure(case, threads, asked.rounds))
            except OnnxrematError as error:
                print(f"| {case.name} | {threads} | {error.what} | | |", flush=True)
                continue
            print(shown(rows[-1]), flush=True)
    if asked.out:
        asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
