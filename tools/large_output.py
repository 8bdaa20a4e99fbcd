"""How stock onnxruntime can write a large output of a graph in parts, and what that takes.

A block of two products (16384 x 256, 2048 hidden: 128 MiB between them, an output of 16 MiB) in
several forms; each opened and run in a process of its own: the most that the session's allocator
holds at once where the caller holds the input and the output (bound before the run), how far the
process rises in the first run, and the processor time of the quickest of five.

    python tools/large_output.py [--form whole ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onnxremat.ort.profile import Profiling, profile
from onnxremat.ort.session import TUNED

ROWS, WIDTH, HIDDEN, PARTS = 16384, 256, 2048, 256
EACH = ROWS // PARTS
Made = tuple[list[onnx.NodeProto], list[onnx.TensorProto], list[onnx.ValueInfoProto]]


def node(kind: str, reads: Sequence[str], makes: str, **attributes: object) -> onnx.NodeProto:
    """An op with one output."""
    return helper.make_node(kind, list(reads), [makes], **attributes)


def value(name: str, *shape: int) -> onnx.ValueInfoProto:
    """A float32 tensor."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def numbers(name: str, *values: int) -> onnx.TensorProto:
    """A list of integers."""
    return numpy_helper.from_array(np.asarray(values, np.int64), name)


def block(reads: str, makes: str) -> list[onnx.NodeProto]:
    """Both products."""
    inner, active = f"{makes}/inner", f"{makes}/active"
    return [
        node("MatMul", [reads, "up"], inner),
        node("Relu", [inner], active),
        node("MatMul", [active, "down"], makes),
    ]


def _parts() -> tuple[list[list[onnx.NodeProto]], list[onnx.TensorProto]]:
    bounds = [numbers(f"at{part}", part * EACH) for part in range(PARTS + 1)]
    groups = [
        [node("Slice", ["x", f"at{n}", f"at{n + 1}", "at0"], f"x{n}"), *block(f"x{n}", f"y{n}")]
        for n in range(PARTS)
    ]
    return groups, bounds


def whole() -> Made:
    """In one piece."""
    return block("x", "y"), [], [value("y", ROWS, WIDTH)]


def concat() -> Made:
    """Parts, joined in the end: what plans do."""
    groups, bounds = _parts()
    join = node("Concat", [f"y{n}" for n in range(PARTS)], "y", axis=0)
    return [*chain(*groups), join], bounds, [value("y", ROWS, WIDTH)]


def scatter() -> Made:
    """Each part written into a buffer in place, which is handed out in the end."""
    groups, bounds = _parts()
    shapes = [numbers("wide", 1, 1, ROWS, WIDTH), numbers("part", 1, 1, EACH, WIDTH),
              numbers("flat", ROWS, WIDTH), numbers("none", 0, 0), numbers("one", 1, 1),
              numbers("both", 0, 1)]  # fmt: skip
    first = [node("Slice", ["y0", "none", "one", "both"], "seed"),
             node("Expand", ["seed", "wide"], "buffer0")]  # fmt: skip
    ops = [*groups[0], *first]
    for n in range(PARTS):
        ops += [
            *(groups[n] if n else ()),
            node("Reshape", [f"y{n}", "part"], f"part{n}"),
            node("TensorScatter", [f"buffer{n}", f"part{n}", f"at{n}"], f"buffer{n + 1}", axis=2),
        ]
    ops.append(node("Reshape", [f"buffer{PARTS}", "flat"], "y"))
    return ops, [*bounds, *shapes], [value("y", ROWS, WIDTH)]


def scan() -> Made:
    """A Scan over parts, whose output has an axis more."""
    body = helper.make_graph(
        block("xi", "yi"), "body", [value("xi", EACH, WIDTH)], [value("yi", EACH, WIDTH)]
    )
    ops = [
        node("Reshape", ["x", "apart"], "xs"),
        node("Scan", ["xs"], "ys", body=body, num_scan_inputs=1),
        node("Reshape", ["ys", "flat"], "y"),
    ]
    shapes = [numbers("apart", PARTS, EACH, WIDTH), numbers("flat", ROWS, WIDTH)]
    return ops, shapes, [value("y", ROWS, WIDTH)]


def rows() -> Made:
    """A Scan over single rows, which writes the output itself."""
    inner = [node("Unsqueeze", ["xi", "at0"], "xr"), *block("xr", "yr"),
             node("Squeeze", ["yr", "at0"], "yi")]  # fmt: skip
    body = helper.make_graph(inner, "body", [value("xi", WIDTH)], [value("yi", WIDTH)])
    op = node("Scan", ["x"], "y", body=body, num_scan_inputs=1)
    return [op], [numbers("at0", 0)], [value("y", ROWS, WIDTH)]


def outputs() -> Made:
    """Every part an output of its own, bound to its rows of one array of the caller."""
    groups, bounds = _parts()
    return [*chain(*groups)], bounds, [value(f"y{n}", EACH, WIDTH) for n in range(PARTS)]


FORMS: dict[str, Callable[[], Made]] = {
    form.__name__: form for form in (whole, concat, scatter, scan, rows, outputs)
}


def run(name: str) -> str:
    """One line of the table."""
    ops, constants, made = FORMS[name]()
    draw = np.random.default_rng(0)
    weights = {"up": draw.normal(0, 1 / 16, (WIDTH, HIDDEN)),
               "down": draw.normal(0, 1 / 45, (HIDDEN, WIDTH))}  # fmt: skip
    weights = {key: array.astype("f4") for key, array in weights.items()}
    stored = [numpy_helper.from_array(array, key) for key, array in weights.items()]
    graph = helper.make_graph(ops, "block", [value("x", ROWS, WIDTH)], made, [*stored, *constants])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = options.enable_mem_pattern = options.enable_mem_reuse = False
    x, y = draw.normal(size=(ROWS, WIDTH)).astype("f4"), np.empty((ROWS, WIDTH), "f4")
    asked = Profiling(bound=[each.name for each in made])
    live = profile(model, {"x": x}, replace(TUNED, threads=1), asked).live_peak / 2**20
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    for number, each in enumerate(made):
        shape = [d.dim_value for d in each.type.tensor_type.shape.dim]
        address = y.ctypes.data + number * EACH * WIDTH * y.itemsize
        binding.bind_output(each.name, "cpu", 0, np.float32, shape, address)
    before, times = _bytes("VmRSS"), list[float]()
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(5):
        begin = time.process_time()
        session.run_with_iobinding(binding)
        times.append(time.process_time() - begin)
    risen = (_bytes("VmHWM") - before) / 2**20
    wanted = np.maximum(x[-64:] @ weights["up"], 0) @ weights["down"]
    worst = np.abs(y[-64:] - wanted).max() / np.abs(wanted).max()
    return f"| {name} | {live:.1f} | {risen:.1f} | {min(times):.3f} | {worst:.0e} |"


def _bytes(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", action="append", choices=FORMS, help="repeatable; all")
    parser.add_argument("--here", action="store_true", help="in this process, without a title")
    given = parser.parse_args()
    if given.here:
        print(run(given.form[0]))
        return
    print(
        "| form | live, MiB, beside the caller's | rises by, the output of 16 too | s | differs |"
    )
    print("|---|---|---|---|---|", flush=True)
    for form in given.form or FORMS:
        subprocess.run([sys.executable, __file__, "--here", "--form", form], check=True)


if __name__ == "__main__":
    main()
