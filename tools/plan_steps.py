"""Training steps of the test models as instances of the planner, with roofline times of a GPU."""

from __future__ import annotations

import warnings
from pathlib import Path

import models
from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.devices import roofline
from onnxremat.cost.table import CostTable
from onnxremat.device.files import read_machine
from onnxremat.errors import TrainingWarning
from onnxremat.grad import Settings as Training
from onnxremat.graph.ir import Graph
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.problem import Problem

MACHINE = Path(__file__).resolve().parent.parent / "devices" / "cpu-cuda.toml"
STEPS = ("unet", "bert", "gpt2", "resnet50")


def training_step(name: str) -> Problem:
    """A step of a model of ``models/`` in its own size, with plain SGD, on the GPU of
    devices/cpu-cuda.toml."""
    ideal = roofline(read_machine(MACHINE).device("cuda:0"))

    def costs(graph: Graph) -> CostTable:
        return analytic_costs(graph, ideal)

    training = Training(optimizer="sgd", portable=True, dropout=False)
    settings = Settings(train=training, target="portable", costs=costs, measure=False, threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)  # parameters that the loss leaves out
        return prepare(models.build(name), settings).reduced.problem
