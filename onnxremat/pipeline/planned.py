"""A planned model read back: its plan timestep by timestep, with the bytes of each device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import UsageError
from onnxremat.execute.deployment import Deployment, read_deployment
from onnxremat.execute.device_memory import device_bytes
from onnxremat.execute.inside import insides
from onnxremat.fission.region import Region
from onnxremat.graph.ir import Graph
from onnxremat.graph.light import read_light
from onnxremat.ort.infer import build_graph
from onnxremat.ort.session import Options
from onnxremat.pipeline.in_place import in_place
from onnxremat.pipeline.original.source import Source
from onnxremat.pipeline.original.unchanged import as_loaded
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.rewrite.emit import figures, metadata, rewrite, unpack
from onnxremat.rewrite.pins import is_added
from onnxremat.rewrite.restore import restored
from onnxremat.schedule.plan import Plan, graph_hash
from onnxremat.schedule.simulate import Timeline
from onnxremat.schedule.timesteps import Timesteps, timesteps
from onnxremat.schedule.updates import written_over
from onnxremat.session.load import options_of
from onnxremat.session.measure import predict
from onnxremat.session.process import PARTS, counted


@dataclass(frozen=True)
class Planned:
    """What a file says about its plan.

    Attributes:
        facts: figures written with it.
        plan: the steps.
        steps: the same by timestep.
        bytes: the most a device holds in each timestep, by the simulator, session by session:
            (device, timestep) -> bytes.
        budgets: bytes for weights and values, per device that has a budget.
    """

    facts: Mapping[str, Any]
    plan: Plan
    steps: Timesteps
    bytes: Mapping[tuple[str, int], int]
    budgets: Mapping[str, int]


@dataclass(frozen=True)
class Written:
    """A planned model's file.

    Attributes:
        model: without its big weights.
        about: its metadata.
        folder: where these are.
    """

    model: onnx.ModelProto
    about: Mapping[str, str]
    folder: Path

    @property
    def several(self) -> bool:
        """Its plan is over several devices."""
        return "devices" in self.about

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Figures written with the plan."""
        return figures(self.about)

    @property
    def scratch(self) -> Mapping[str, int]:
        """Bytes of workspace per op."""
        return figures(self.about, "scratch")

    @cached_property
    def plan(self) -> Plan:
        """Of one session."""
        return unpack(self.about["plan"])

    @property
    def options(self) -> Options:
        """That a session is to be opened with."""
        return options_of(self.model)

    @cached_property
    def carried(self) -> Graph:
        """The graph that runs."""
        if self.options.fuses:  # written as it was
            return self._counted(as_loaded(self.model, self.plan, self.folder))
        return self._counted(build_graph(self.model, self.folder))

    def graphs(self) -> tuple[Graph, Graph]:
        """The graph that the plan is one of, and the graph that runs."""
        if self.options.fuses:
            return self.carried, self.carried
        before = build_graph(restored(self.model, planned=True), self.folder)
        return self._counted(before), self.carried

    @property
    def updates(self) -> Mapping[str, str]:
        """Inputs to the outputs that its budget takes as written over them."""
        return in_place(self.model, self.facts.get("not_counted"))

    def _counted(self, graph: Graph) -> Graph:
        return written_over(graph, self.updates.values())


def read_written(path: Path, original: Source | None = None) -> Written:
    """A file that carries a plan.

    Args:
        original: what was given as the model before; it may be the other way round.

    Raises:
        UsageError: it carries none.
        ModelError: it cannot be read.
    """
    model, folder = read_light(path)
    about = metadata(model)
    if "plan" not in about:
        if isinstance(original, (str, os.PathLike)) and Path(original).is_file():
            _not_the_other(Path(original), path)
        raise UsageError(
            f"{path} carries no plan",
            hint="make one with: onnxremat optimize IN.onnx OUT.onnx --budget 0.6x",
        )
    return Written(model, about, folder)


def _not_the_other(original: Path, path: Path) -> None:
    """Raises:
    UsageError: it is the original that carries a plan.
    """
    if "plan" in metadata(read_light(original)[0]):
        raise UsageError(
            f"{path} carries no plan, {original} does",
            why="the original comes first, what onnxremat wrote of it second",
            hint=f"the two the other way round: {path} {original}",
        )


def read_planned(path: Path) -> Planned:
    """A model that onnxremat wrote, for one device or several.

    Raises:
        UsageError: it carries no plan.
        ModelError: it cannot be read, or was changed after it was planned.
    """
    written = read_written(path)
    if written.several:
        return _several(read_deployment(path), written.facts)
    graph, carried = written.graphs()
    weights = written.facts.get("weight_bytes")
    line = predict(carried, written.options, scratch=written.scratch, weights=weights)
    return _single(graph, written.plan, line, written.facts)


def prepare_for(
    plan: Plan, source: Source, settings: Settings, say: Callable[[str], None] | None = None
) -> Prepared:
    """Prepare a model as it was when the plan was made; shapes and dims of ``settings`` go first.

    Raises:
        UsageError: the plan belongs to another model.
    """
    kept = plan.provenance.settings
    prepared = prepare(
        source,
        replace(
            settings,
            shapes=settings.shapes or kept.get("shapes", {}),
            dims=settings.dims or kept.get("dims", {}),
            target=kept.get("target", settings.target),
            split_batch=tuple(kept.get("split_batch", ())),
            not_counted=tuple(kept.get("not_counted", PARTS)),  # older plans count none of them
            hide_shapes=bool(kept.get("hide_shapes", True)),
            held_once=bool(kept.get("held_once", False)),
            narrow=tuple(kept.get("narrow", ())),
            fission=tuple(Region.from_json(region) for region in kept.get("fission", ())),
        ),
        say or (lambda _: None),
    )
    if graph_hash(prepared.graph) != plan.provenance.graph_hash:
        raise UsageError(
            "the plan belongs to another model",
            why="ops or sizes of the prepared graph differ (another file, shape or onnxruntime)",
            hint="plan again with: onnxremat plan",
        )
    return prepared


def prepare_to_show(plan: Plan, source: Path) -> Prepared:
    """Prepare a model for a plan that is only shown: seconds and workspace are estimated, and
    nothing is run unless the plan computes something in parts, which is checked against the whole.

    Raises:
        UsageError: the plan belongs to another model.
    """
    kept = plan.provenance.settings
    in_parts = bool(kept.get("fission") or kept.get("split_batch"))
    return prepare_for(plan, source, Settings(measure=in_parts, costs=analytic_costs))


def plan_of_model(plan: Plan, source: Path) -> Planned:
    """A plan by itself with the model that it was made for; bytes by estimated workspace.

    Raises:
        UsageError: the plan belongs to another model, or is one for several devices.
    """
    if any(getattr(step, "device", "") != "cpu" for step in plan.steps):
        raise UsageError("the plan is for several devices", hint="report the model: OUT.onnx")
    prepared = prepare_to_show(plan, source)
    carried = rewrite(prepared.graph, plan).graph
    scratch, weights = prepared.costs.scratch, prepared.weights
    line = predict(carried, prepared.tuned, scratch=scratch, weights=weights)
    return _single(prepared.graph, plan, line, {})


def _single(graph: Graph, plan: Plan, line: Timeline, said: Mapping[str, Any]) -> Planned:
    steps = timesteps(graph, plan, ("cpu",))
    held: dict[tuple[str, int], int] = {}
    first, t = {name: at for at, name in enumerate(steps.ops)}, 0
    for index, name in enumerate(line.ops):
        total = line.weight_bytes + line.live[index] + line.scratch[index]
        held["cpu", t] = max(held.get(("cpu", t), 0), total)
        if first.get(name) == t and not is_added(name):
            t = min(t + 1, len(steps.ops) - 1)
    budget = plan.provenance.budget
    limit = {"cpu": budget - counted(said).total} if budget else {}
    return Planned(said, plan, steps, held, limit)


def _several(made: Deployment, said: Mapping[str, Any]) -> Planned:
    steps = timesteps(made.graph, made.plan, made.machine.names)
    inside = insides(made.parts, made.machine, made.scratch, measure=False)
    ran = {event.op.name: event.step for event in made.parts.followed.runs}
    begins = [steps.at[action.begin] for action in made.parts.actions]
    held: dict[tuple[str, int], int] = {}
    for name, found in device_bytes(made.parts, made.machine, inside).items():
        at = 0
        for (action, op), total in zip(found.steps, found.held, strict=True):
            if op in ran:
                at = steps.at[ran[op]]
            elif not is_added(op):  # a copy, or a partition that is one op to its provider
                at = begins[action]
            held[name, at] = max(held.get((name, at), 0), total)
        for t in range(len(steps.ops)):
            if (name, t) not in held:  # idle: what it holds after the last action begun by then
                last = max((i for i, begin in enumerate(begins) if begin <= t), default=-1)
                held[name, t] = found.between[last] if last >= 0 else found.resident
    return Planned(said, made.plan, steps, held, made.limits)
