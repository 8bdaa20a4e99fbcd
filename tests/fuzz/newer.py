"""Cases of what came after single sessions: parts, training steps, devices, placement, workers, and
options with values that nobody means."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat import api
from onnxremat.grad import Settings as Training
from tests.fuzz.case import FAST, Case
from tests.fuzz.models import convolutions, valid
from tests.fuzz.mutations import VALUES, change_json, change_text
from tests.toolbox import parse

MACHINE = """name = "two"
[[device]]
name = "a"
provider = "cpu"
threads = 1
memory = "{a}"
[[device]]
name = "b"
provider = "cpu"
threads = 1
memory = "{b}"
[[link]]
from = "a"
to = "b"
{link}
latency = 1e-6
"""
CLUSTER = """name = "mine"
devices_per_node = 4
flops = 14e12
efficiency = 0.6
bandwidth = "900GB"
memory = "32GB"
dispatch = 8e-6
[within]
bandwidth = "12GB"
latency = 1e-5
[between]
bandwidth = "0.3GB"
latency = 5e-5
"""
SHARES = ("0.2x", "0.4x", "0.6x", "0.8x", "0.95x", "min")


def images(draw: Random) -> onnx.ModelProto:
    """Convolutions whose largest values are larger than results and weights together."""
    batch, rows = draw.choice((1, 4)), draw.choice((32, 64))
    body = ["a0 = Conv<pads: ints = [1, 1, 1, 1]>(x, w0)"]
    depth = draw.randint(2, 4)
    for k in range(1, depth):
        before = f"b{k}" if draw.random() < 0.7 else f"a{k - 1}"
        body.append(f"b{k} = Relu(a{k - 1})")
        body.append(f"a{k} = Conv<pads: ints = [1, 1, 1, 1]>({before}, w{k})")
    body.append(f"s = GlobalAveragePool(a{depth - 1})  y = Flatten(s)")
    shapes = f"float[{batch}, 3, {rows}, {rows}] x) => (float[{batch}, 8] y"
    made = parse(f"g ({shapes}) {{ {' '.join(body)} }}")
    random = np.random.default_rng(draw.randrange(1 << 30))
    for k in range(depth):
        weight = random.standard_normal((8, 8 if k else 3, 3, 3)).astype(np.float32) / 8
        made.graph.initializer.append(numpy_helper.from_array(weight, f"w{k}"))
    return made


def in_parts(draw: Random) -> Case:
    """An inference, or the step made of it, within budgets that often need parts."""
    rows = ("--split-batch", draw.choice(("2", "4", "3,1", "1", "7")))
    more = draw.choice(((), (), ("--fission", "off"), rows, ("--max-overhead", "20%")))
    train = draw.random() < 0.5
    more = ("--train", "--optimizer", draw.choice(("sgd", "adamw"))) if train else more
    budget = () if "--max-overhead" in more else ("-b", draw.choice(SHARES))
    command = ("optimize", "in.onnx", "out.onnx", *budget, *more, *FAST)
    same = None if train else ("in.onnx", "out.onnx")
    return Case("parts", {"in.onnx": images(draw).SerializeToString()}, command, same)


@cache
def _step(optimizer: str, seed: int) -> bytes:
    """A training step, made once."""
    net = convolutions() if seed % 2 else images(Random(seed))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.onnx"
        dims = {"batch": 2} if seed % 2 else {}
        api.differentiate(net, path, settings=Training(optimizer=optimizer), dims=dims)
        return path.read_bytes()


def step(draw: Random) -> Case:
    """A training step within a budget, its gradients of weights early or late."""
    policy = draw.choice((None, "asap", "late", "reverse-first-k=1", "auto"))
    more = ("--dw-policy", policy) if policy else ()
    data = _step(draw.choice(("sgd", "adamw")), draw.randrange(4))
    command = ("optimize", "in.onnx", "out.onnx", "-b", draw.choice(SHARES), *more, *FAST)
    return Case("step", {"in.onnx": data}, command, ("in.onnx", "out.onnx"))


def over_devices(draw: Random) -> Case:
    """A model over two devices, whose machine file may be broken."""
    sizes = [draw.choice(("1GiB", "8MiB", "3MiB", "100KiB")) for _ in range(2)]
    link = draw.choice(("shared = true", 'bandwidth = "8GB"'))
    text = MACHINE.format(a=sizes[0], b=sizes[1], link=link)
    if draw.random() < 0.3:
        text = change_text(text, draw, draw.choice((1, 2)))
    objective = draw.choice(("auto", "time", "makespan", "throughput"))
    more: tuple[str, ...] = ("--objective", objective)
    if objective == "throughput":
        more += draw.choice(
            (
                (),
                ("--replicas", "1"),
                ("--in-flight", "3"),
                ("--replicas", "9"),
                ("--any",),
                ("--any", "--in-flight", "5"),
            )
        )
    elif draw.random() < 0.3:
        more += ("--pin", draw.choice(("*=b", "MatMul=a", "nothing=b", "*=c", "*", "=")))
    net = valid(draw) if draw.random() < 0.6 else images(draw)
    command = ("optimize", "in.onnx", "out.onnx", "--devices", "m.toml", *more, *FAST)
    files = {"in.onnx": net.SerializeToString(), "m.toml": text.encode(errors="replace")}
    return Case("devices", files, command, ("in.onnx", "out.onnx"))


def placed(draw: Random) -> Case:
    """A placement graph, broken or not."""
    count = draw.randint(1, 9)
    nodes = [
        {
            "id": i, "supportedOnFpga": int(draw.random() < 0.9), "cpuLatency": draw.randint(1, 90),
            "fpgaLatency": draw.randint(1, 9), "isBackwardNode": False, "size": draw.randint(0, 50),
        }
        for i in range(count)
    ]  # fmt: skip
    edges = [
        {"sourceId": i, "destId": j, "cost": draw.randint(0, 9)}
        for j in range(count) for i in range(j) if draw.random() < 0.4
    ]  # fmt: skip
    graph = {
        "maxSizePerFPGA": draw.choice((10, 100, 1000)), "maxFPGAs": draw.randint(0, 3),
        "maxCPUs": draw.randint(0, 2), "nodes": nodes, "edges": edges,
    }  # fmt: skip
    data = change_json(graph, draw, draw.choice((0, 0, 1, 2)))
    asked = draw.choice(
        (
            (), ("--any",), ("--objective", "latency"), ("--objective", "two-maxima"),
            ("--check", "s.json"),
        )
    )  # fmt: skip
    split = {"fpgas": [list(range(count))], "cpus": [[]]}
    files = {
        "g.json": json.dumps(data).encode(),
        "s.json": json.dumps(change_json(split, draw, draw.choice((0, 1, 2)))).encode(),
    }
    command = ("place", "g.json", *asked, "--time-limit", "1")
    return Case("place", files, command)


def workers(draw: Random) -> Case:
    """A pipeline of given times, or a step on a cluster whose file may be broken."""
    few = ("-1", "0", "1", "2", "3", "7", "40", "1000000000", "x", "")
    schedule = draw.choice(("auto", "1f1b", "gpipe", "zb-h1", "zb-v", "interleaved", "none"))
    more = ["--schedule", schedule, "--micro-batches", draw.choice(few[2:8])]
    if draw.random() < 0.3:
        more += ["--in-flight", draw.choice(few)]
    if draw.random() < 0.5:
        text = change_text(CLUSTER, draw, draw.choice((0, 1, 2)))
        more += ["--data-parallel", draw.choice(few), "--pipeline", draw.choice(few)]
        files = {"in.onnx": _step("adamw", 0), "c.toml": text.encode(errors="replace")}
        return Case("workers", files, ("simulate", "in.onnx", "--cluster", "c.toml", *more))
    times = ("1", "0", "-1", "nan", "inf", "1e300", "1,2", "1,2,3", "0.1,", "x", "1e-300")
    for option in ("--forward", "--backward", "--weight", "--communication"):
        if draw.random() < 0.4:
            more += [option, draw.choice(times)]
    return Case("workers", {}, ("simulate", "--stages", draw.choice(few), *more))


OPTIONS = {
    "optimize": (
        "--budget", "--max-overhead", "--planner", "--formulation", "--devices", "--pin",
        "--objective", "--in-flight", "--replicas", "--loss", "--optimizer", "--trainable",
        "--freeze", "--parameters", "--clip-norm", "--accumulate", "--precision", "--shape",
        "--dim", "--target", "--gap", "--solver", "--seed", "--dw-policy", "--split-batch",
        "--not-counted", "--fission", "--data", "--report", "--plot", "--trace",
    ),
    "plan": ("--budget", "--formulation", "--solver", "--write-model", "--output", "--work"),
    "differentiate": ("--loss", "--optimizer", "--freeze", "--parameters", "--precision"),
    "explain": ("--budget", "--shape", "--dim", "--target", "--data"),
    "sweep": ("--budget", "--points", "--plot", "--output"),
}  # fmt: skip


def any_option(draw: Random) -> Case:
    """A good model, and options with values that nobody means."""
    name = draw.choice(list(OPTIONS))
    words: list[str] = []
    for option in draw.sample(OPTIONS[name], draw.choice((1, 1, 2))):
        value = str(draw.choice(VALUES)) if draw.random() < 0.7 else draw.choice(SHARES)
        if option == "--work" and value.isdigit():  # much work takes long, as asked
            value = value[:3]
        words += [option, value.replace("\0", "")]
    made = ("out.onnx",) if name in ("optimize", "differentiate") else ()
    limits = {
        "optimize": FAST,
        "plan": FAST[:2],
        "sweep": FAST[:2],
        "explain": ("--time-limit", "0"),
    }
    command = (name, "in.onnx", *made, *limits.get(name, ()), *words)
    files = {"in.onnx": valid(draw).SerializeToString()}
    return Case("options", files, command)
