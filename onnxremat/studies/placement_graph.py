"""A model on a machine as a placement graph: prepared, measured, and written in its terms."""

from __future__ import annotations

from dataclasses import replace

from onnxremat.device.machine import PROVIDERS, Machine
from onnxremat.errors import ModelError, UsageError
from onnxremat.grad import training_of
from onnxremat.graph.ir import Graph
from onnxremat.pipeline.optimize import Request, site_of
from onnxremat.pipeline.phases import Phases, Say
from onnxremat.pipeline.prepare import Prepared, Settings, prepare
from onnxremat.placement.from_problem import graph_of
from onnxremat.placement.graph import PlacementGraph, check

PORTABLE = "portable"  # what every provider takes


def placement_graph(
    source: str, machine: Machine, settings: Settings, say: Say | None = None
) -> PlacementGraph:
    """The graph of a model file, its ops priced on the devices of a machine.

    Accelerators are the devices that compute and are no CPUs; where there are none, all CPUs are
    taken for accelerators, so that what moves between them counts.

    Raises:
        ModelError, UsageError: wrong input.
        UnsupportedError: devices of one kind that are not alike.
    """
    log = Phases.of(say)
    if settings.target == "auto":
        settings = replace(settings, target=PORTABLE)
    prepared = prepare(source, settings, log)
    model = site_of(prepared, Request(machine=machine, objective="time"), machine, log).model
    computing = [d for d, device in enumerate(machine.devices) if device.computes]
    cpus = [d for d in computing if machine.devices[d].provider == PROVIDERS["cpu"]]
    accelerators = [d for d in computing if d not in cpus]
    if not accelerators:
        accelerators, cpus = cpus, []
    if not accelerators:
        raise UsageError(f"no device of machine '{machine.name}' computes")
    first = model.problem.host_inputs
    names = [str(name) for name in model.names.ops[first:]]
    ahead = _forward(prepared)
    graph = graph_of(
        model.problem, accelerators, cpus, names=names,
        forward=[ahead is None or name in ahead for name in names],
        memory=min(machine.devices[d].memory for d in accelerators),
    )  # fmt: skip
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
