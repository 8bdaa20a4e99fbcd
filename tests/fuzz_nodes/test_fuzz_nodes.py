"""What was found once stays right; the same few random nodes in every test run; and the harness
sees what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxremat.grad.rules  # noqa: F401  (registers the rules)
from onnxremat.grad import differentiate, registry
from onnxremat.grad.lowering.decompose import _MAKERS
from onnxremat.graph.axes import BLOCKED, ML, TABLE
from tests.fuzz_nodes import judges, runner
from tests.fuzz_nodes.case import FOLDER, KINDS, Case, case, keep, kept
from tests.fuzz_nodes.runner import Job, answers
from tests.grad import judge
from tests.toolbox import parse

ROOT = Path(__file__).resolve().parents[2]
# Stopping gradients is all that is known of them; or they have bodies, which grad/test_control.py
# draws.
NOT_DRAWN = {
    "Bernoulli", "Constant", "ConstantOfShape", "ConvInteger", "DynamicQuantizeLinear", "EyeLike",
    "If", "Loop", "MatMulInteger", "Multinomial", "NonMaxSuppression", "NonZero",
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Range",
    "RegexFullMatch", "Scan", "Shape", "Size", "StringConcat", "StringNormalizer", "StringSplit",
    "TfIdfVectorizer", "Unique",
}  # fmt: skip


def harness(*arguments: object) -> subprocess.CompletedProcess[str]:
    """``python -m tests.fuzz_nodes`` in a process of its own: cases are forked from it."""
    command = [sys.executable, "-m", "tests.fuzz_nodes", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_what_was_found_stays_right() -> None:
    files = sorted(FOLDER.glob("*.zip"))
    assert files
    done = harness("--again", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(".zip: ") == len(files)


def test_the_same_few_cases(tmp_path: Path) -> None:
    """One of each operator: counted cases, not minutes."""
    done = harness("--cases", len(KINDS), "--keep", tmp_path / "found")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split()[0] == "all"


def test_every_operator_with_a_rule_is_drawn() -> None:
    known = {(rule.domain, rule.op_type) for rule in registry.rules()} | registry._STOPS
    known |= {key for key in TABLE if key[0] not in (BLOCKED, ML)} | {
        ("com.microsoft", op) for op in _MAKERS
    }
    wanted = {f"{domain}.{op}".removeprefix(".") for domain, op in known if op not in NOT_DRAWN}
    assert wanted <= {*KINDS}


def test_equal_draws_are_equal_cases() -> None:
    for number in range(0, len(KINDS), 5):
        first, second = case(3, number), case(3, number)
        if first is None or second is None:
            assert first is second
            continue
        assert first.model == second.model
        assert first.options == second.options
        for one, other in zip(first.feeds, second.feeds, strict=True):
            np.testing.assert_array_equal(one, other)


def test_findings_are_kept_whole(tmp_path: Path) -> None:
    made = case(1, KINDS.index("Gemm"))
    assert made is not None
    keep(made, "why", tmp_path / "f.zip")
    again = kept(tmp_path / "f.zip")
    assert (again.kind, again.model, again.stored) == (made.kind, made.model, made.stored)
    assert again.options == dict(made.options)
    for one, other in zip(made.feeds, again.feeds, strict=True):
        np.testing.assert_array_equal(one, other)


# The harness itself: every kind of wrong answer is seen


def small() -> Case:
    """A node with a gradient, and facts about its axes."""
    x = np.arange(8, dtype=np.float32).reshape(4, 2) / 7 - 0.4
    return Case("Tanh", parse("g (float[4, 2] x) => (float[4, 2] y) { y = Tanh(x) }"), [x])


def answer(made: Case) -> tuple[str, str]:
    ((_, found),) = answers([Job("it", lambda: made)])
    return found


def test_what_is_right_is_right() -> None:
    assert answer(small()) == ("right", "")


def test_a_wrong_graph_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(graph: Any) -> onnx.ModelProto:
        made = to_model(graph)
        made.graph.node[0].op_type = "Sin"
        return made

    to_model = judges.to_model
    monkeypatch.setattr(judges, "to_model", other)
    assert answer(small())[1].startswith("written again: y is another, by ")


def test_wrong_parts_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    split = judges.split

    def other(graph: Any, regions: Any, block: int) -> Any:
        made = split(graph, regions, block)
        return made.with_ops((*made.ops[:-1], _swapped(made.ops[-1])), made.tensors)

    monkeypatch.setattr(judges, "split", other)
    assert answer(small())[1].startswith("Tanh in parts along 0: y is another, by ")


def _swapped(op: Any) -> Any:
    return replace(op, inputs=(op.inputs[0], op.inputs[0], *op.inputs[2:]))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda step: _rename(step, "Mul", "Div"), "gradient, of x, "),
        (lambda step: _rename(step, "ReduceSum", "ReduceMax"), "gradient, the loss is "),
        (lambda step: _reshape(step), "gradient, the shape of "),
    ],
)
def test_wrong_gradients_are_seen(
    change: Callable[[onnx.ModelProto], None], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(loss: Any, **options: Any) -> onnx.ModelProto:
        step = differentiate(loss, **options)
        change(step)
        return step

    monkeypatch.setattr(judge, "differentiate", other)
    kind, text = answer(small())
    assert (kind, text[: len(word)]) == ("wrong", word)


def _rename(step: onnx.ModelProto, old: str, new: str) -> None:
    node = next(n for n in reversed(step.graph.node) if n.op_type == old)
    node.op_type = new


def _reshape(step: onnx.ModelProto) -> None:
    value = next(v for v in step.graph.value_info if len(v.type.tensor_type.shape.dim) == 2)
    value.type.tensor_type.shape.dim[0].dim_value += 1


@pytest.mark.parametrize(
    ("what", "kind", "word"),
    [
        ("import os; os.kill(os.getpid(), 11)", "wrong", "forward: ended by SIGSEGV"),
        ("while True: pass", "wrong", "forward: did not end in 1 s"),
        ("1 / 0", "wrong", "a traceback, ZeroDivisionError"),
    ],
)
def test_crashes_are_seen(what: str, kind: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the case behind one is judged."""
    forward = judges.forward

    def other(made: Case, wanted: Any) -> Any:
        if made.kind == "this":
            exec(what)
        return forward(made, wanted)

    monkeypatch.setattr(judges, "forward", other)
    monkeypatch.setattr(runner, "SECONDS", 1)
    bad = Case("this", small().model, small().feeds)
    first, second = (found for _, found in answers([Job("a", lambda: bad), Job("b", small)]))
    assert first[0] == kind
    assert first[1].startswith(word)
    assert second == ("right", "")
