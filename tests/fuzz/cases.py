"""Cases: files, a command on them, and what its answer has to be."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from random import Random

import numpy as np

from onnxremat.cost.measure import machine_key
from onnxremat.cost.table import signatures
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import bind, build_graph
from onnxremat.schedule.plan import Plan, graph_hash
from tests.fuzz import newer, odd
from tests.fuzz.case import FAST, Case
from tests.fuzz.models import base, convolutions, study, valid
from tests.fuzz.mutations import (
    change_archive,
    change_bytes,
    change_header,
    change_json,
    change_message,
    change_text,
)
from tests.toolbox import parse

PLANNED = ("--time-limit", "0.5", "--threads", "1", "--no-measure")
STUDY = ("--time-limit", "0.5", "--threads", "1", "-b", "60%")
XENGINE = "cpu_0;cpu;0;1;0\ngpu_0;gpu;0;1;4000000000"
MACHINE = """name = "two"
[[device]]
name = "cpu"
memory = "1GiB"
[[device]]
name = "other"
provider = "cpu"
threads = 1
flops = 1e9
bandwidth = "10GB"
[[link]]
from = "cpu"
to = "other"
bandwidth = "8GB"
latency = 1e-6
"""


def broken_model(draw: Random) -> Case:
    """A model with some of its fields changed."""
    made, files = base(draw)
    change_message(made, draw, draw.choice((1, 1, 2, 5)))
    data = made.SerializeToString()
    if draw.random() < 0.05:
        data = change_bytes(data, draw, 2)
    command = draw.choice(
        (
            ("optimize", "in.onnx", "out.onnx", "-b", draw.choice(("0.8x", "min", "100")), *FAST,
             "--dim", "batch=2"),
            ("optimize", "in.onnx", "out.onnx", "-b", "0.9x", *FAST),
            ("plan", "in.onnx", "-o", "out.json", "-b", "0.8x", *PLANNED),
            ("differentiate", "in.onnx", "out.onnx", "--dim", "batch=2"),
            ("inspect", "in.onnx"),
            ("run", "in.onnx"),
            ("set-batch", "in.onnx", "out.onnx", "3"),
        )
    )  # fmt: skip
    return Case("model", {**files, "in.onnx": data}, command, ("in.onnx", "out.onnx"))


def planned_model(draw: Random) -> Case:
    """A valid model and any budget."""
    share = draw.choice(("0.3x", "0.5x", "0.7x", "0.8x", "0.9x", "0.95x", "1x", "min"))
    target = draw.choice(("auto", "portable", "none", "onnxruntime", "host"))
    command = ("optimize", "in.onnx", "out.onnx", "-b", share, "--target", target, *FAST)
    files = {"in.onnx": valid(draw).SerializeToString()}
    return Case("valid", files, command, ("in.onnx", "out.onnx"))


def broken_plan(draw: Random) -> Case:
    """A plan with some of its parts changed."""
    body = "a = Sin(x) b = Cos(a) c = Exp(b) y = Add(c, a)"
    model = parse(f"g (float[8] x) => (float[8] y) {{ {body} }}")
    graph = build_graph(bind(inline_functions(model)))
    made = Plan.of(graph, [op.name for op in graph.ops])
    made = made.with_provenance(graph_hash=graph_hash(graph), settings={"target": "none"})
    data = change_json(json.loads(made.dumps()), draw, draw.choice((1, 2, 4)))
    text = json.dumps(data)
    if draw.random() < 0.1:
        text = change_text(text, draw, 1)
    command = draw.choice((("apply", "in.onnx", "p.json", "out.onnx"), ("inspect", "p.json")))
    files = {"in.onnx": model.SerializeToString(), "p.json": text.encode(errors="replace")}
    return Case("plan", files, command, ("in.onnx", "out.onnx"))


def broken_machine(draw: Random) -> Case:
    """A machine file, of ours or of XEngine's."""
    text = change_text(draw.choice((MACHINE, XENGINE)), draw, draw.choice((1, 2, 4)))
    files = {"m.toml": text.encode(errors="replace")}
    return Case("machine", files, ("devices", "show", "m.toml"))


def broken_arrays(draw: Random) -> Case:
    """An archive of arrays."""
    target = io.BytesIO()
    np.savez(target, x=np.ones((4, 8), np.float32))
    data = change_archive(target.getvalue(), draw, draw.choice((1, 3)))
    model = parse("g (float[4, 8] x) => (float[4, 8] y) { y = Sin(x) }")
    files = {"in.onnx": model.SerializeToString(), "a.npz": data}
    return Case("npz", files, ("run", "in.onnx", "--data", "a.npz"))


def broken_tensors(draw: Random) -> Case:
    """A safetensors file, as the names of parameters."""
    arrays = {"w": np.ones((4, 3, 3, 3), np.float32), "v": np.ones((5, 4), np.float32)}
    header, data = {}, b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), end],
        }  # fmt: skip
        data += array.tobytes()
    text = json.dumps(header).encode()
    whole = change_header(len(text).to_bytes(8, "little") + text + data, draw, 2)
    files = {"in.onnx": convolutions().SerializeToString(), "p.safetensors": whole}
    command = ("differentiate", "in.onnx", "out.onnx", "--dim", "batch=2", "--parameters",
               "p.safetensors")  # fmt: skip
    return Case("safetensors", files, command)


def broken_study(draw: Random) -> Case:
    """A graph file of a planner study."""
    data = change_json(json.loads(study(draw)), draw, draw.choice((0, 1, 1, 2)))
    return Case("graph", {"g.json": json.dumps(data).encode()}, ("plan", "g.json", *STUDY))


def broken_solution(draw: Random) -> Case:
    """A solution file of a solver elsewhere."""
    count = draw.randint(1, 6)
    lines = ["# Objective value = 1"] + [
        f"{draw.choice('RSFU')}_{draw.randrange(4)}_{draw.randrange(4)} {draw.choice((0, 1, 0.5))}"
        for _ in range(count)
    ]
    text = change_text("\n".join(lines), draw, draw.choice((0, 1, 3)))
    files = {"g.json": study(draw).encode(), "s.sol": text.encode(errors="replace")}
    command = ("plan", "g.json", *STUDY, "--formulation", "checkmate", "--read-solution", "s.sol")
    return Case("solution", files, command)


def broken_costs(draw: Random) -> Case:
    """A cache of measured costs, read for a model whose ops it knows."""
    model = parse("g (float[4, 8] x) => (float[4, 8] y) { a = Sin(x) y = Cos(a) }")
    graph = build_graph(bind(model))
    rows = {key: [1e-6, 0, 0] for key in signatures(graph).values()}
    text = json.dumps(change_json(rows, draw, 2))
    cache = f"cache/costs-{machine_key(1)}.json"
    files = {"in.onnx": model.SerializeToString(), cache: text.encode()}
    return Case("costs", files, ("profile", "in.onnx", "--threads", "1"))


KINDS: dict[str, tuple[int, Callable[[Random], Case]]] = {
    "model": (10, broken_model), "valid": (4, planned_model), "plan": (3, broken_plan),
    "machine": (2, broken_machine), "npz": (2, broken_arrays), "safetensors": (2, broken_tensors),
    "graph": (2, broken_study), "solution": (1, broken_solution), "costs": (1, broken_costs),
    "parts": (3, newer.in_parts), "step": (2, newer.step), "devices": (4, newer.over_devices),
    "place": (2, newer.placed), "workers": (2, newer.workers), "options": (4, newer.any_option),
    "odd": (5, odd.odd_model), "exported": (3, odd.exported_model),
    "written": (2, odd.written_model), "train": (2, odd.training),
}  # fmt: skip


def case(seed: int, number: int, only: str = "") -> Case:
    """The case of a number, of the kind that is asked for or of any."""
    draw = Random(f"{seed}/{number}/{only}")
    weights = [weight for weight, _ in KINDS.values()]
    kind = only or draw.choices(list(KINDS), weights)[0]
    made = KINDS[kind][1](draw)
    assert isinstance(made, Case)
    return made
