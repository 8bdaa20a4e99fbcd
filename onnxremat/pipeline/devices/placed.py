"""A placement that was carried out as a pipeline, with what is proven of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from onnxremat.errors import InfeasibleError, NoPlanError
from onnxremat.execute.deployment import Deployment, deploy_pipeline
from onnxremat.execute.pipelined import Flow
from onnxremat.pipeline.devices.device_ways import Trials
from onnxremat.pipeline.devices.pipelined import Pipelined
from onnxremat.pipeline.devices.placement_bridge import Bridge
from onnxremat.pipeline.devices.several_devices import SeveralDevices
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.balance import balance
from onnxremat.placement.from_problem import UNIT
from onnxremat.schedule.plan import Plan, Provenance
from onnxremat.units import format_bytes

EACH = 2  # samples in flight for every device, where budgets allow: one at work, one waiting
FIRST = 0.5  # of the time left, for a placement
BALANCE = "balance"  # who proves what holds for every placement, stages on several devices too
CHAIN, ANY = "any chain of devices", "any placement"  # whose largest load a bound is


@dataclass(frozen=True)
class Wanted:
    """What a pipeline is to be like.

    Attributes:
        in_flight: samples inside at most; as many as are of use and fit when None.
        replicas: most devices of one stage; as many as are of use and fit when None.
        contiguous: True for a chain of stages, False for a placement of any shape; what is quicker
            when None.
    """

    in_flight: int | None = None
    replicas: int | None = None
    contiguous: bool | None = None


def work_of(trials: Trials, most: float = inf) -> Work:
    """How long a placement may take."""
    options = trials.options
    work = Work(min(most, max(1.0, FIRST * options.left)), options.gap, options.seed)
    if options.stop is not None:
        work.stop = options.stop
    return work


def floor(made: Bridge) -> float:
    """The load of perfect balance: each device has its share of every op, as a stage's has."""
    graph = made.graph
    found = balance(graph.acc, graph.cpu, graph.supported, graph.accelerators, graph.cpus)
    return found.bound


def deployed(
    target: SeveralDevices,
    plan: Plan,
    answer: Answer,
    limits: Mapping[str, int],
    flow: Flow,
    shape: str = CHAIN,
) -> Deployment:
    """A plan cut to stages, with what is proven.

    Args:
        shape: that the bound is for.
    """
    prepared = target.prepared
    shape = ANY if answer.bound_by == BALANCE else shape
    tables = target.tables
    about = Provenance(
        planner=f"placement ({answer.method})",
        status=answer.status,
        bound=answer.bound * UNIT,
        bound_kind=f"largest load of {shape} of the placement graph, {answer.bound_by}",
        seconds=answer.value * UNIT,
        plan_seconds=answer.seconds,
        cost_source="; ".join(f"{name}: {table.source}" for name, table in tables.items()),
        settings=prepared.settings.to_json(),
        notes=(*prepared.notes, *answer.notes),
    )
    plan, terms = replace(plan, provenance=about), target.terms(limits)
    found = deploy_pipeline(prepared.graph, plan, target.site.machine, tables, terms, flow)
    return replace(found, limits=dict(target.limits))


def as_pipelined(
    target: SeveralDevices, made: Bridge, answer: Answer, deployed: Deployment
) -> Pipelined:
    """With figures of the placement."""
    alone = [t.alone for t in target.tables.values()
             if {op.name for op in target.prepared.graph.ops} <= t.seconds.keys()]  # fmt: skip
    placed: dict[str, Any] = {
        "max_load_seconds": answer.value * UNIT,
        "bound_seconds": answer.bound * UNIT,
        "gap": answer.gap,
        "accelerators": made.graph.accelerators,
        "cpus": made.graph.cpus,
        "best_single_device_seconds": min(alone, default=None),
    }
    return Pipelined(deployed, None, target.tables, placed=placed)


def impossible(
    target: SeveralDevices,
    error: InfeasibleError,
    how: str = "",
    kind: type[InfeasibleError] = InfeasibleError,
) -> InfeasibleError:
    """What a placement proves, said of the model.

    Args:
        how: what was asked for.
        kind: of error.
    """
    return kind(
        f"{target.prepared.name} cannot run within {kept(target.limits)}{how}",
        why=error.why,
        hint="give the devices more (--budget), or add a device to the machine file",
    )


def none_in_time() -> NoPlanError:
    """A search that ended before its first placement."""
    return NoPlanError("no placement found in time", hint="a longer --time-limit")


def kept(limits: Mapping[str, int]) -> str:
    """Budgets for people."""
    return ", ".join(f"{device}={format_bytes(size)}" for device, size in limits.items())
