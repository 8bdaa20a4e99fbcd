"""Updates of single elements, by formulas for many parameters at once; what is none stays alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from onnxremat.grad import differentiate
from onnxremat.workers.sums.alike import formulas_of
from onnxremat.workers.sums.gathering import gathering
from onnxremat.workers.sums.halves import halves_of
from onnxremat.workers.turns import last_first
from tests.workers.test_data_parallel import net


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        # Though the rate of w2 waits until the old w2 is read for the last time.
        ({"optimizer": "sgd"}, [("w1", "b1", "w2", "b2")]),
        ({"optimizer": "momentum", "accumulate": 2}, [("w1", "b1", "w2", "b2")]),
        ({"optimizer": "adamw"}, [("w1", "b1", "w2", "b2")]),
    ],
)
def test_parameters_of_one_formula(settings: dict[str, Any], rows: list[tuple[str, ...]]) -> None:
    halves = halves_of(gathering(differentiate(net(4), **settings)), None)
    found = formulas_of(halves.update, halves.told, 2)
    assert found is not None
    own = [{name for row in each.states for name in row if "." not in name} for each in found.alike]
    assert sorted(map(sorted, own)) == sorted(sorted(row) for row in rows)
    for each in found.alike:
        assert all(len(row) == len(each.states[0]) for row in each.states)
        assert len(each.changes) == len(each.states[0])


def test_a_formula_adds_up_gradients_and_computes_any_stretch() -> None:
    halves = halves_of(gathering(differentiate(net(4), optimizer="sgd")), None)
    found = formulas_of(halves.update, halves.told, 3)
    assert found is not None
    alike = next(each for each in found.alike if ("w1",) in each.states)
    formula = alike.formula.SerializeToString()
    session = ort.InferenceSession(formula, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    old, *rows = rng.standard_normal((4, 7)).astype(np.float32)
    said = {"learning_rate": 0.5, "gradient_share": 1 / 3}
    numbers = {name: np.array(value, np.float32) for name, value in said.items()}
    given = {f"gradient/{k}": row for k, row in enumerate(rows)} | {"state/0": old}
    (new,) = session.run(None, given | {name: numbers[name] for name in alike.given})
    np.testing.assert_allclose(new, old - 0.5 * np.mean(rows, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "clip_norm": 1.0},  # of all gradients
        {"optimizer": "lamb"},  # norms of each parameter
        {"optimizer": "adamw", "precision": "fp16"},  # no update where any is infinite
    ],
)
def test_what_is_no_function_of_single_elements(settings: dict[str, Any]) -> None:
    halves = halves_of(gathering(differentiate(net(4), **settings)), None)
    assert formulas_of(halves.update, halves.told, 2) is None


def test_what_is_ready_last_is_listed_first() -> None:
    """onnxruntime begins with the end that is listed last: gradients of weights of the last layer,
    which the rest of the backward pass is not needed for."""
    graph = halves_of(gathering(differentiate(net(4), optimizer="sgd")), None).step
    listed = last_first(graph)
    assert sorted(op.name for op in listed.ops) == sorted(op.name for op in graph.ops)
    made = set[str]()
    for op in listed.ops:
        assert not {n for n in op.reads if n in graph.producer} - made
        made.update(op.writes)
    ends = [name for op in listed.ops for name in op.writes if name in graph.outputs]
    layers = [name.partition("Gemm_")[2][:1] for name in ends if "Gemm_" in name]
    assert layers == ["0", "0", "2", "2"]
