"""When a training step makes gradients of weights: each policy's order, and plans that keep it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from onnxremat.api import read_plan
from onnxremat.cli.commands import app
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import UnsupportedError, UsageError
from onnxremat.grad import differentiate
from onnxremat.grad.roles import roles_of
from onnxremat.graph.ir import Graph
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.original.base_order import as_listed, as_run, base_order, two_ends
from onnxremat.pipeline.weight_order import DwPolicy, ordered
from onnxremat.schedule.simulate import simulate

LAYERS = 4


def net() -> onnx.ModelProto:
    """Layers alike, of one weight each."""
    rng = np.random.default_rng(0)
    nodes, stored, value = [], [], "x"
    for k in range(LAYERS):
        weight = rng.standard_normal((16, 16)).astype(np.float32)
        stored.append(numpy_helper.from_array(weight, f"w{k}"))
        nodes += [
            helper.make_node("MatMul", [value, f"w{k}"], [f"h{k}"], f"layer{k}/MatMul"),
            helper.make_node("Tanh", [f"h{k}"], [f"a{k}"], f"layer{k}/Tanh"),
        ]
        value = f"a{k}"
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", 1, [64, 16])],
        [helper.make_tensor_value_info(value, 1, [64, 16])],
        stored,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@cache
def step() -> Graph:
    return build_graph(differentiate(net(), optimizer="momentum"))


def order(policy: str) -> list[str]:
    """``B3``: all that the chain needs of layer 3 is done; ``W3``: its gradient; ``U3``: w3 is
    updated."""
    graph = ordered(step(), DwPolicy.parse(policy))
    made = {name for op in graph.ops for name in op.reads if name not in graph.producer}
    for op in graph.ops:
        assert all(name in made for name in op.reads)
        made.update(op.writes)
    assert sorted(op.name for op in graph.ops) == sorted(op.name for op in step().ops)
    roles, told = roles_of(graph), dict[str, None]()
    for op in graph.ops:
        part = op.name.removeprefix("grad/").split("/")[0].removeprefix("layer")
        if roles[op.name] in ("chain", "weight"):
            told.pop(f"{roles[op.name][0]}{part}", None)
            told[f"{roles[op.name][0]}{part}"] = None
        told.update((f"u{k}", None) for k in range(LAYERS) if f"w{k}.next" in op.writes)
    return [name for name in told if name[1:].isdigit()]


def test_at_once_every_gradient_comes_before_the_chain_goes_on() -> None:
    found = order("asap")
    assert [name for name in found if name[0] == "w"] == ["w3", "w2", "w1", "w0"]
    for k in range(1, LAYERS):
        assert found.index(f"w{k}") < found.index(f"c{k - 1}")
        assert found.index(f"u{k}") < found.index(f"w{k - 1}")


def test_late_is_after_the_chain() -> None:
    found = order("late")
    chain = max(found.index(f"c{k}") for k in range(LAYERS))
    assert found[chain + 1 :] == ["w3", "u3", "w2", "u2", "w1", "u1", "w0", "u0"]


def test_the_first_layers_come_last_the_first_of_them_first() -> None:
    found = order("reverse-first-k=2")
    assert found[-4:] == ["w0", "u0", "w1", "u1"]
    assert found.index("u2") < found.index("c1")
    assert order("reverse-first-k=0") == order("asap")


@pytest.mark.parametrize("text", ["soon", "asap=1", "reverse-first-k", "reverse-first-k=-1", ""])
def test_what_is_no_policy_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="is no policy"):
        DwPolicy.parse(text)


def test_more_layers_than_there_are() -> None:
    with pytest.raises(UsageError, match="4 layers"):
        order("reverse-first-k=5")


def test_a_model_without_gradients_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="training steps"):
        ordered(build_graph(net()), DwPolicy("asap"))


def test_plans_keep_the_order_and_say_what_both_ends_take(tmp_path: Path) -> None:
    """``auto`` takes no more time than either end at the same budget."""
    source, over = tmp_path / "step.onnx", dict[str, float]()
    onnx.save(differentiate(net(), optimizer="momentum"), source)
    for policy in ("asap", "late", "auto"):
        out = tmp_path / f"{policy}.json"
        given = ["--dw-policy", policy, "--budget", "0.8x", "--no-measure", "--work", "400"]
        said = CliRunner().invoke(app, ["plan", str(source), "-o", str(out), *given])
        assert said.exit_code == 0, said.output
        assert "nothing recomputed: asap" in said.output
        over[policy] = read_plan(out).provenance.overhead
    assert over["auto"] <= min(over["asap"], over["late"]) + 1e-6


def drawn(seed: int) -> onnx.ModelProto:
    """Convolutions of any sizes, whose gradients take more workspace than some activations."""
    r, nodes, stored = np.random.default_rng(seed), [], []
    value, channels, size = "x", 3, int(r.integers(6, 12))
    for k in range(int(r.integers(2, 6))):
        wide, kernel = int(r.integers(2, 24)), int(r.choice([1, 3, 5]))
        weight = r.standard_normal((wide, channels, kernel, kernel)).astype(np.float32)
        stored.append(numpy_helper.from_array(weight, f"w{k}"))
        conv = [value, f"w{k}"], [f"h{k}"], f"layer{k}/Conv"
        nodes += [
            helper.make_node("Conv", *conv, pads=[kernel // 2] * 4),
            helper.make_node("Relu", [f"h{k}"], [f"a{k}"], f"layer{k}/Relu"),
        ]
        value, channels = f"a{k}", wide
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["mean"], "mean"),
        helper.make_node("Flatten", ["mean"], ["y"], "flat"),
    ]
    graph = helper.make_graph(
        nodes, "drawn",
        [helper.make_tensor_value_info("x", 1, [8, 3, size, size])],
        [helper.make_tensor_value_info("y", 1, [8, channels])],
        stored,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("seed", [0, 1, 5, 7, 11])
def test_auto_begins_with_no_more_than_either_end(seed: int) -> None:
    """Workspace of convolutions included: without it another order seems to be the least."""
    graph = build_graph(differentiate(drawn(seed), optimizer="momentum"))
    scratch = analytic_costs(graph).scratch
    chosen = base_order(graph, graph, False, DwPolicy("auto"), scratch)
    ends = [as_run(end) for end in two_ends(as_listed(graph, graph))]
    peak, *others = (simulate(each, scratch=scratch).peak for each in (chosen, *ends))
    assert peak <= min(others)


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--fixed-order"], "each say an order"), (["--devices", "cpu-gpu"], "one device")],
)
def test_what_does_not_go_together(options: list[str], said: str, tmp_path: Path) -> None:
    source = tmp_path / "step.onnx"
    onnx.save(differentiate(net()), source)
    given = ["optimize", str(source), "--dry-run", "--dw-policy", "asap", *options]
    result = CliRunner().invoke(app, given)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)
