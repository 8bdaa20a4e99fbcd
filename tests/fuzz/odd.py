"""Cases of files that are well formed and mean what nobody means, of files that exporters wrote, of
what this package writes itself, and of training."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat import api
from onnxremat.grad import Settings as Training
from tests.fuzz.case import FAST, Case
from tests.fuzz.mutations import NUMBERS, change_archive, change_header, change_json, change_message
from tests.toolbox import parse, wide_chain

EXPORTED = Path(__file__).parent.parent / "grad"
SMALL = 60_000  # bytes of an exporter's file that is changed
PLAIN = "a = Sin(x)  b = Cos(a)  y = Add(a, b)"


def _plain(body: str = PLAIN, shape: str = "4, 4", result: str = "4, 4") -> onnx.ModelProto:
    return parse(f"g (float[{shape}] x) => (float[{result}] y) {{ {body} }}")


def _weight(model: onnx.ModelProto, name: str, values: object) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(values), name))


def _versions(draw: Random) -> onnx.ModelProto:
    made = _plain()
    made.ir_version = draw.choice((0, 1, 2, 3, 8, 10, 11, 13, 99, 1 << 40))
    numbers = (-1, 0, 1, 5, 6, 7, 12, 13, 17, 20, 22, 24, 25, 26, 99, 1 << 40)
    domains = draw.sample(("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "my"), draw.randint(0, 3))
    del made.opset_import[:]
    made.opset_import.extend(helper.make_opsetid(name, draw.choice(numbers)) for name in domains)
    return made


def _types(draw: Random) -> onnx.ModelProto:
    """A value, a weight or a Cast of any element type."""
    kind = draw.choice(list(TensorProto.DataType.values()))
    made = parse("g (float[4, 4] x) => (float[4, 4] y) { c = Cast<to: int = 1>(x) y = Sin(c) }", 21)
    if draw.random() < 0.4:
        made.graph.input[0].type.tensor_type.elem_type = kind
    elif draw.random() < 0.5:
        made.graph.node[0].attribute[0].i = kind
        made.graph.node.insert(1, helper.make_node("Cast", ["c"], ["d"], to=1))
        made.graph.node[2].input[0] = "d"
    else:
        made.graph.initializer.add(name="x", data_type=kind, dims=[4, 4], raw_data=b"\1" * 128)
        del made.graph.input[:]
    return made


def _sizes(draw: Random) -> onnx.ModelProto:
    """Pads, strides, groups, shapes and ranges that no memory has."""
    number = lambda: draw.choice((*NUMBERS, -100, 100_000))  # noqa: E731
    kind = draw.randrange(4)
    if kind == 0:
        made = _plain("y = Conv(x, w)", "1, 1, 8, 8", "a, b, c, d")
        _weight(made, "w", np.ones((1, 1, 3, 3), np.float32))
        name = draw.choice(("pads", "strides", "dilations", "group", "kernel_shape"))
        length = draw.choice((2, 4, 100_000))
        value = number() if name == "group" else [number()] * length
        made.graph.node[0].attribute.append(helper.make_attribute(name, value))
        return made
    if kind == 1:
        op = draw.choice(("Expand", "Tile", "Reshape"))
        made = _plain(f"e = {op}(x, s)  y = ReduceSum<keepdims: int = 0>(e)", result="")
        _weight(made, "s", [number() for _ in range(draw.choice((1, 2, 4)))])
        return made
    if kind == 2:
        made = _plain("r = Range(p, q, s)  t = ReduceSum<keepdims: int = 0>(r)  y = Add(x, t)")
        for name in "pqs":
            _weight(made, name, np.float32(draw.choice((0, 1, -1, 1e12, 1e-30, float("nan")))))
        return made
    dims = [number() for _ in range(draw.choice((0, 1, 2, 30)))]
    made = _plain()
    for value in (*made.graph.input, *made.graph.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, 1, dims))
    return made


def _nested(draw: Random) -> onnx.ModelProto:
    """If or Loop in each other, their values perhaps named like outer ones."""
    depth, loops = draw.choice((1, 3, 12, 30)), draw.random() < 0.5
    shadow = draw.random() < 0.2
    body = helper.make_graph([helper.make_node("Sin", ["x"], ["o0"])], "b0", [], [_value("o0")])
    for level in range(1, depth + 1):
        name = "x" if shadow and level == depth // 2 else f"o{level}"
        if loops:
            ends = helper.make_node("Identity", ["c"], [f"k{level}"])
            inner = helper.make_graph(
                [*body.node, ends], f"l{level}",
                [_value(f"i{level}", 7), _value(f"j{level}", 9)],
                [_value(f"k{level}", 9), body.output[0]],
            )  # fmt: skip
            node = helper.make_node("Loop", ["n", "c"], [name], body=inner)
        else:
            other = [helper.make_node("Cos", ["x"], [f"e{level}"])]
            orelse = helper.make_graph(other, f"e{level}", [], [_value(f"e{level}")])
            node = helper.make_node("If", ["c"], [name], then_branch=body, else_branch=orelse)
        body = helper.make_graph([node], f"b{level}", [], [_value(name)])
    made = _plain("y = ReduceSum<keepdims: int = 0>(o)", result="")
    made.graph.node[0].input[0] = body.output[0].name
    made.graph.node.insert(0, body.node[0])
    _weight(made, "c", True)
    _weight(made, "n", draw.choice((0, 1, 2, 3)))
    return made


def _value(name: str, kind: int = 1) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None if kind == 1 else [])


def _functions(draw: Random) -> onnx.ModelProto:
    """Functions that call each other as they are drawn to: in rings, in rows, twice, wrongly."""
    count = draw.choice((1, 2, 7, 120, 3000))
    opsets = [helper.make_opsetid("", draw.choice((18, 18, 7))), helper.make_opsetid("my", 1)]
    made = _plain()
    made.opset_import.append(helper.make_opsetid("my", 1))
    for index in range(count):
        after = draw.choice((index + 1, index + 1, draw.randrange(count)))
        calls = [helper.make_node(f"F{after}", ["a"], ["b"], domain="my")]
        calls += [helper.make_node(f"F{after}", ["b"], ["c"], domain="my")] * draw.randint(0, 1)
        body = calls if after < count else [helper.make_node("Sin", ["a"], ["b"])]
        name = f"F{draw.choice((index, index, index, 0))}"
        made.functions.append(helper.make_function("my", name, ["a"], ["b"], body, opsets))
    inputs = draw.choice((["x"], ["x"], [], ["x", "x"]))
    made.graph.node[0].CopyFrom(helper.make_node("F0", inputs, ["a"], domain="my"))
    return made


def _names(draw: Random) -> onnx.ModelProto:
    """Values renamed: to nothing, to each other, to what no file system takes."""
    made = _plain()
    new = draw.choice(("", "x", "y", "a", "n" * 200_000, "\n", "%s{}/..", "\0"))
    old = draw.choice(("x", "a", "b", "y"))
    for node in made.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for value in (*made.graph.input, *made.graph.output):
        if value.name == old and draw.random() < 0.7:
            value.name = new
    return made


ODD: Sequence[Callable[[Random], onnx.ModelProto]] = (
    _versions, _types, _sizes, _nested, _functions, _names,
)  # fmt: skip
NO_MODELS = (
    b"", bytes(1000), b"<html>404", b"hello\n" * 100, b'{"a": 1}', gzip.compress(b"\x08\x09"),
    b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
)  # fmt: skip


def _asked(draw: Random) -> tuple[str, ...]:
    return draw.choice(
        (
            ("optimize", "in.onnx", "out.onnx", "-b", draw.choice(("0.8x", "min", "1x")), *FAST),
            ("plan", "in.onnx", "-o", "out.json", "-b", "0.8x", *FAST[:2], "--no-measure"),
            ("differentiate", "in.onnx", "out.onnx"), ("inspect", "in.onnx"), ("run", "in.onnx"),
            ("explain", "in.onnx", "--time-limit", "0"), ("set-batch", "in.onnx", "out.onnx", "3"),
            ("set-input", "in.onnx", "out.onnx", draw.choice(("x=1", "x=nan", "n=-3", "x=1,2"))),
        )
    )  # fmt: skip


def odd_model(draw: Random) -> Case:
    """A model that means what nobody means, or no model."""
    data = draw.choice(ODD)(draw).SerializeToString() if draw.random() < 0.95 else None
    if data is None:
        data = draw.choice(NO_MODELS)
    return Case("odd", {"in.onnx": data}, _asked(draw), ("in.onnx", "out.onnx"))


@cache
def _exported() -> tuple[Path, ...]:
    return tuple(sorted(p for p in EXPORTED.rglob("*.onnx") if p.stat().st_size < SMALL))


def exported_model(draw: Random) -> Case:
    """What an exporter wrote, with some of its fields changed, or as it is."""
    made = onnx.load(draw.choice(_exported()))
    change_message(made, draw, draw.choice((0, 1, 1, 3)))
    train = draw.random() < 0.3
    command = ("optimize", "in.onnx", "out.onnx", "-b", "0.7x", *FAST)
    command = (*command, "--train") if train else _asked(draw)
    same = None if train else ("in.onnx", "out.onnx")
    return Case("exported", {"in.onnx": made.SerializeToString()}, command, same)


@cache
def _written() -> tuple[bytes, bytes]:
    """A model, and what is written of it."""
    made = wide_chain(4)
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.onnx", Path(folder) / "out.onnx"
        onnx.save(made, source)
        api.optimize(source, budget="0.7x", bench_seconds=0).save(out)
        return source.read_bytes(), out.read_bytes()


def written_model(draw: Random) -> Case:
    """What this package has written, its metadata or its graph changed."""
    source, out = _written()
    made = onnx.ModelProto.FromString(out)
    if draw.random() < 0.6:
        entry = draw.choice(list(made.metadata_props))
        try:
            entry.value = json.dumps(change_json(json.loads(entry.value), draw, 2))
        except ValueError:  # the plan, which is packed
            at = draw.randrange(len(entry.value))
            entry.value = (
                entry.value[:at] + draw.choice(("", "x", "0" * 50)) + entry.value[at + 1 :]
            )
    else:
        change_message(made, draw, draw.choice((1, 2)))
    command = draw.choice(
        (
            ("verify", "in.onnx", "out.onnx"), ("inspect", "out.onnx"), ("run", "out.onnx"),
            ("report", "out.onnx", "-o", "page.html"),
            ("optimize", "out.onnx", "again.onnx", "-b", "0.9x", *FAST),
        )
    )  # fmt: skip
    files = {"in.onnx": source, "out.onnx": made.SerializeToString()}
    return Case("written", files, command, allowed=(5,) if command[0] == "verify" else ())


@cache
def _trained() -> dict[str, bytes]:
    """A net, its step and data."""
    net = parse("g (float[4, 3] x) => (float[4, 2] y) { h = MatMul(x, w)  y = Add(h, c) }")
    _weight(net, "w", np.arange(6, dtype=np.float32).reshape(3, 2) / 10)
    _weight(net, "c", np.zeros(2, np.float32))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.onnx"
        api.differentiate(net, path, settings=Training(optimizer="adamw"))
        step = path.read_bytes()
    data, numbers = io.BytesIO(), np.random.default_rng(0)
    x = numbers.standard_normal((8, 3)).astype(np.float32)
    np.savez(data, x=x, labels=numbers.integers(0, 2, 8))
    return {"net.onnx": net.SerializeToString(), "step.onnx": step, "data.npz": data.getvalue()}


def training(draw: Random) -> Case:
    """A step trained on data, from weights or with rates that are broken."""
    files = dict(_trained())
    what = draw.choice(("data", "net", "step", "rate", "checkpoint"))
    more: tuple[str, ...] = ("--rate", "0.01")
    if what == "data":
        files["data.npz"] = change_archive(files["data.npz"], draw, draw.choice((1, 3)))
    elif what in ("net", "step"):
        made = onnx.ModelProto.FromString(files[f"{what}.onnx"])
        change_message(made, draw, draw.choice((1, 2)))
        files[f"{what}.onnx"] = made.SerializeToString()
    elif what == "rate":
        more = (draw.choice(("--rate", "--epochs", "--warmup")), draw.choice(("1e300", "nan", "0")))
    else:
        header = json.dumps({"w": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}})
        data = len(header).to_bytes(8, "little") + header.encode() + bytes(24)
        files["kept.safetensors"] = change_header(data, draw, draw.choice((0, 1, 2)))
        more = ("--checkpoint", "kept.safetensors", "--resume")
    command = ("train", "step.onnx", "--weights", "net.onnx", "--data", "data.npz", "--epochs", "2")
    return Case("train", files, (*command, *more))
