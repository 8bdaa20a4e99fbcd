"""`set-input`: flags and numbers that always have one value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxremat.grad import training_of
from tests.cli.conftest import Command
from tests.toolbox import parse

RATES = """g (float[2, 3] x, int64 rate, bool[flags] on) => (float[2, k] y) <int64 low = {8000}> {
    c = Equal(rate, low)
    y = If(c) <
        then_branch = narrow () => (float[2, 1] p) <float[3, 1] slim = {1.5, -0.25, 2.25}>
            { p = MatMul(x, slim) },
        else_branch = broad () => (float[2, 2] q)
            { wide = Constant <value = float[3, 2] {1, 2.5, 3, -4, 5, 0.25}> ()
              q = MatMul(x, wide) }>
    unread = Not(on)
}"""


@pytest.fixture
def rates(folder: Path) -> Path:
    """A model of two rates, whose weights lie in its branches."""
    onnx.save(parse(RATES), "in.onnx")
    return folder


def outputs(path: str, **feeds: np.ndarray) -> np.ndarray:
    return ort.InferenceSession(path).run(None, feeds)[0]


@pytest.mark.parametrize(("rate", "weight"), [(8000, "slim"), (16000, "wide")])
def test_a_model_of_several_rates_is_trained_for_one(
    cli: Command, rates: Path, rate: int, weight: str
) -> None:
    made = cli("set-input", "in.onnx", "one.onnx", f"rate={rate}", "on=true")
    assert (made.code, made.out) == (0, ""), made.err
    assert f"'rate' is {rate}" in made.err
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    whole = outputs("in.onnx", x=x, rate=np.array(rate), on=np.array([True]))
    np.testing.assert_array_equal(outputs("one.onnx", x=x), whole)
    said = cli("differentiate", "one.onnx", "step.onnx", "--loss", "mse")
    assert said.code == 0, said.err
    about = training_of(onnx.load("step.onnx"))
    assert [variable.input for variable in about.parameters] == [weight]
    assert cli("optimize", "one.onnx", "out.onnx", "-b", "2x", "--bench-seconds", 0).code == 0
    np.testing.assert_allclose(outputs("out.onnx", x=x), whole, rtol=1e-5)


def test_what_cannot_be_set(cli: Command, rates: Path) -> None:
    def refused(value: str, *parts: str) -> None:
        cli("set-input", "in.onnx", "out.onnx", value).assert_refused(2, *parts)

    refused("rate=1.5", "no value of input 'rate'", "int64")
    refused("rate=99999999999999999999", "no value of input 'rate'")
    refused("on=3", "no value of input 'on'", "bool")
    refused("x=nan", "no value of input 'x'")
    refused("x=1,2", "shape [2, 3], not 2 values")
    refused("speed=1", "'speed' cannot be set", "inputs are x, rate, on")
    refused("rate", "not understood", "NAME=VALUE")
    cli("set-input", "in.onnx", "o.onnx", "rate=1", "rate=2").assert_refused(2, "set twice")
    cli("set-input", "in.onnx", "in.onnx", "rate=1").assert_refused(2, "the output is the input")
    onnx.save(parse("g (float[n, 3] x) => (float[n, 3] y) { y = Sin(x) }"), "in.onnx")
    refused("x=1", "its shape is not known", "--dim")
    onnx.save(
        parse("g (float[n] x, float[n] y, float16 z) => (float[n] a) { a = Mul(x, y) }"), "in.onnx"
    )
    refused("x=1", "its length 'n' is that of 'y' too")
    refused("z=1e6", "no value of input 'z'", "float16")
    assert not Path("out.onnx").exists()
    assert cli("set-input", "in.onnx", "both.onnx", "x=1,2", "y=3,4", "z=-inf").code == 0


def test_a_branch_that_is_not_known_says_how_to_choose_it(cli: Command, rates: Path) -> None:
    asked = ("differentiate", "in.onnx", "step.onnx", "--loss", "mse", "--dim", "flags=1")
    cli(*asked).assert_refused(2, "size of tensor 'y' is not known", "set-input IN OUT rate=VALUE")
    same = RATES.replace("[2, k]", "[2, 2]").replace("float[2, 1] p", "float[2, 2] p")
    same = same.replace("float[3, 1]", "float[3, 2]").replace("2.25}", "2.25, 1.25, 3, 7}")
    onnx.save(parse(same), "in.onnx")
    both = cli(*asked)  # of one size: trained as it is, or as one of its branches
    assert both.code == 0, both.err
    step = cli("set-input", "in.onnx", "o.onnx", "rate=1", "on=true,false")
    assert step.code == 0, step.err
    cli("differentiate", "o.onnx", "step.onnx", "--loss", "mse")
    cli("set-input", "step.onnx", "p.onnx", "x=1").assert_refused(2, "is a training step")


def test_what_ran_of_a_choice_is_said(cli: Command, rates: Path) -> None:
    """Made-up inputs run one branch: what the others take is not seen."""
    chosen = "what If_1 (If) runs follows from rate"
    asked = ("optimize", "in.onnx", "out.onnx", "-b", "4MiB", "--dim", "flags=1")
    made = cli(*asked, "--bench-seconds", 0)
    assert made.code == 0, made.err
    assert chosen in " ".join(made.err.split())
    refused = cli("explain", "in.onnx", "--dim", "flags=1")
    refused.assert_refused(2, "size of tensor 'y' is not known", "rate=VALUE")
    by_data = "s = ReduceSum<keepdims=0>(x) c = Cast<to=9>(s)"
    onnx.save(parse(RATES.replace("c = Equal(rate, low)", by_data)), "in.onnx")
    refused = cli("explain", "in.onnx", "--dim", "flags=1")
    refused.assert_refused(2, "size of tensor 'y' is not known")
    assert "set-input" not in refused.err
