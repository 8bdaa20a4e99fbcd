"""A planned training step, its state updated in place, learns the same as the unplanned one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import models
from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.grad import Settings as Training
from onnxremat.grad import differentiate, training_of
from onnxremat.graph.onnx_io import to_ops
from onnxremat.ort.session import TUNED
from onnxremat.training.trainer import Trainer
from tests.limits import LONG

MODELS = {
    "mlp": {"batch": 2048, "width": 64},
    "resnet18": {"batch": 8, "size": 64, "width": 16},
}


def build(name: str) -> onnx.ModelProto:
    return models.build(name, **MODELS[name])


@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_planned_steps_learn_what_unplanned_steps_learn(name: str) -> None:
    model = build(name)
    training = Training(optimizer="adam")
    plain = differentiate(model, settings=training)
    planned = api.optimize(
        plain,
        budget="0.7x",
        # As given: onnxruntime's rewrites change the last bits, and Adam makes them large.
        settings=api.Settings(target="none", threads=1, costs=analytic_costs),
        options=api.PlanOptions(time_limit=LONG),
        bench_seconds=0,
    )
    if name == "mlp":
        assert planned.plan.recomputations > 0
    rng = np.random.default_rng(3)
    about = training_of(plain)
    feeds = models.feeds(model, seed=5)
    target = next(v for v in plain.graph.input if v.name == about.target)
    shape = [d.dim_value for d in target.type.tensor_type.shape.dim]
    batch = {**feeds, about.target: rng.integers(0, 2, shape).astype(np.int64)}
    trainers = [
        Trainer(graph, model, rate=1e-3, threads=1, options=TUNED)
        for graph in (plain, planned.model)
    ]
    losses = [[trainer.step(batch) for _ in range(4)] for trainer in trainers]
    assert losses[1] == losses[0]
    first, second = (trainer.values() for trainer in trainers)
    for tensor, value in first.items():
        np.testing.assert_array_equal(second[tensor], value, err_msg=tensor)


def test_no_op_reads_a_parameter_after_its_update() -> None:
    plain = differentiate(build("mlp"), settings=Training(optimizer="sgd"))
    planned = api.optimize(
        plain, budget="0.6x", settings=api.Settings(costs=analytic_costs),
        options=api.PlanOptions(time_limit=LONG), bench_seconds=0,
    ).model  # fmt: skip
    ops = to_ops(planned)
    made = {tensor: step for step, op in enumerate(ops) for tensor in op.writes}
    for variable in training_of(planned).variables:
        readers = [step for step, op in enumerate(ops) if variable.input in op.reads]
        assert max(readers) <= made[variable.output], variable.input


def test_first_values_in_a_step_are_no_constants_of_the_planned_one() -> None:
    model = models.build("mlp", batch=64, width=16)
    step = differentiate(model, optimizer="sgd", initializers=True)
    planned = api.optimize(
        step, budget="1.0x",
        settings=api.Settings(target="none", threads=1, costs=analytic_costs),
        options=api.PlanOptions(time_limit=LONG), bench_seconds=0,
    )  # fmt: skip
    assert any("first values" in note for note in planned.prepared.notes)
    held = {variable.input for variable in training_of(step).variables}
    assert held <= {value.name for value in planned.model.graph.input}
    trainer = Trainer(planned.model, step, rate=1e-3, threads=1)
    assert set(trainer.state) == held
