"""A plan in one session, read back from a file: what runs, step by step, and what was planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph
from onnxremat.ort.session import Options
from onnxremat.pipeline.planned import Written, prepare_to_show
from onnxremat.report.pages.holders import Holders
from onnxremat.report.pages.recomputed import Recomputed, recomputed_ops
from onnxremat.rewrite.emit import rewrite
from onnxremat.schedule.plan import Plan
from onnxremat.schedule.simulate import Rules, simulate
from onnxremat.session.measure import executed
from onnxremat.session.process import Beside, counted


@dataclass(frozen=True)
class Carried:
    """A plan carried out.

    Attributes:
        source: file name, for people.
        facts: figures written with the plan; empty for a plan by itself.
        planned: the graph that the plan is one of.
        holders: what runs, in the order it runs in, with its bytes as the simulator has them.
    """

    source: str
    facts: Mapping[str, Any]
    plan: Plan
    planned: Graph
    holders: Holders

    @property
    def beside(self) -> Beside:
        """What its budget counts beside weights and values."""
        return counted(self.facts)

    @property
    def again(self) -> list[Recomputed]:
        """What runs more than once. The plan knows the seconds of all of it together; they are
        shared out by estimates."""
        rough = analytic_costs(self.planned).seconds
        found = recomputed_ops(self.plan, self.planned, rough)
        about = self.plan.provenance
        total = sum(row.seconds for row in found)
        scale = (about.seconds - about.store_all_seconds) / total if total else 0.0
        return recomputed_ops(self.plan, self.planned, {k: v * scale for k, v in rough.items()})


def of_written(written: Written, name: str) -> Carried:
    """A model that onnxremat wrote for one session.

    Args:
        name: of the file, for people.

    Raises:
        UsageError: it is one over several devices.
    """
    if written.several:
        raise several()
    planned, carried = written.graphs()
    weights = written.facts.get("weight_bytes")
    holders = _run(carried, written.options, written.scratch, weights)
    return Carried(name, written.facts, written.plan, planned, holders)


def of_model(plan: Plan, source: Path) -> Carried:
    """A plan by itself with the model that it was made for; workspace is estimated.

    Raises:
        UsageError: the plan belongs to another model, or is one over several devices.
    """
    if any(getattr(step, "device", "cpu") != "cpu" for step in plan.steps):
        raise several()
    made = prepare_to_show(plan, source)
    graph = rewrite(made.graph, plan).graph
    holders = _run(graph, made.tuned, made.costs.scratch, made.weights)
    return Carried(source.name, {}, plan, made.graph, holders)


def several() -> UsageError:
    """A plan by itself is one over several devices."""
    return UsageError(
        "a plan over several devices does not say by itself how it is cut",
        hint="report the model that carries it: onnxremat report OUT.onnx -o report.html",
    )


def _run(
    graph: Graph, options: Options, scratch: Mapping[str, int], weights: int | None
) -> Holders:
    ordered, rules = executed(graph, options), Rules(reuse=options.reuse)
    line = simulate(ordered, rules, scratch=scratch, weight_bytes=weights)
    return Holders.of(ordered, line, rules)
