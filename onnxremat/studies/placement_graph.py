"""A model on a machine as a placement graph: prepared, measured, and written in its terms."""

from __future__ import annotations

from dataclasses import replace

from onnxremat.device.machine import Machine
from onnxremat.errors import ModelError
from onnxremat.grad import training_of
from onnxremat.graph.ir import Graph
from onnxremat.pipeline.devices.placement_bridge import bridge
from onnxremat.pipeline.optimize import Request, site_of
from onnxremat.pipeline.phases import Phases, Say
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.placement.graph import PlacementGraph, check

PORTABLE = "portable"  # what every provider takes


def placement_graph(
    source: str, machine: Machine, settings: Settings, say: Say | None = None
) -> PlacementGraph:
    """The graph of a model file, its ops priced on the devices of a machine.

    Raises:
        ModelError, UsageError: wrong input.
        UnsupportedError: more than two kinds of devices, or devices of one that are not alike.
    """
    log = Phases.of(say)
    if settings.target == "auto":
        settings = replace(settings, target=PORTABLE)
    prepared = prepare(source, settings, log)
    target = site_of(prepared, Request(machine=machine, objective="time"), machine, log)
    memory = {device.name: device.memory for device in machine.devices if device.memory}
    found = bridge(target.model, target.tables, memory, _forward(prepared), lumped=True)
    graph = found.graph
    check(graph, source)
    return graph


def _forward(prepared: Prepared) -> set[str] | None:
    """Ops of a training step that its loss needs; None where the model is no training step."""
    try:
        loss = training_of(prepared.original).loss
    except ModelError:
        return None
    return ancestors(prepared.graph, loss)


def ancestors(graph: Graph, tensor: str) -> set[str]:
    """Names of the ops that a tensor depends on."""
    found: set[str] = set()
    todo = [tensor]
    while todo:
        index = graph.producer.get(todo.pop())
        if index is not None and graph.ops[index].name not in found:
            found.add(graph.ops[index].name)
            todo += graph.ops[index].reads
    return found
