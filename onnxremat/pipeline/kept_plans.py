"""The plan of least memory that a refusal has named for a model, kept between commands.

How small a plan is found in a limit of seconds depends on how busy the machine is. What a refusal
gives as a budget that works has to work when it is asked for, so the plan that it was seen with is
kept: what to compute in parts, and ops in order. It is taken where else that budget would be
refused (:mod:`onnxremat.pipeline.plan_again`). A limit of work needs none of it: it finds the same
again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from onnxremat import plain_json
from onnxremat.cost.kept import cache_folder
from onnxremat.cost.measure import machine_key
from onnxremat.errors import OnnxrematError
from onnxremat.fission.training import StepParts
from onnxremat.graph.atomic import atomic
from onnxremat.limits import PLAN_RUNS
from onnxremat.pipeline.lean_weights import said_of_inputs
from onnxremat.pipeline.limits import Limit
from onnxremat.pipeline.prepared import Prepared
from onnxremat.schedule.expand import settled
from onnxremat.schedule.plan import Plan, Provenance, graph_hash
from onnxremat.schedule.updates import updates_last

FOLDER = "plans"
ADDED = 64  # bytes per op that carrying a plan out may add: pins, gates, shapes
MODELS = 64  # that plans are kept of; the oldest go
PARTS = ("split_batch", "fission", "step")
STEP = [field.name for field in fields(StepParts)]


@dataclass(frozen=True)
class Known:
    """A plan that keeps a budget.

    Attributes:
        prepared: the model in the parts that it is of.
        held, beside: bytes of weights and values, and those beside them that budgets count.
        ops: their names in execution order.
        tried: the graph that carries it out was made; else what that adds is missing.
    """

    prepared: Prepared
    held: int
    beside: int
    ops: Sequence[str]
    tried: bool = True

    @property
    def fits(self) -> int:
        """Bytes of weights and values that it keeps for certain."""
        return self.held + (0 if self.tried else ADDED * (1 + len(self.ops)))

    @property
    def works(self) -> int:
        """Bytes of the process that it keeps for certain."""
        return self.fits + self.beside


@dataclass(frozen=True)
class KeptPlan:
    """The same as it is kept.

    Attributes:
        parts: what is computed in parts, by the one of :data:`PARTS` that it is; empty for nothing.
        held: bytes of weights and values that it keeps; 0 where that is not known.
    """

    budget: int
    parts: Mapping[str, Any]
    ops: tuple[str, ...]
    held: int = 0

    def keeps(self, limit: Limit) -> bool:
        """Whether it keeps a limit: of the process, or of weights and values."""
        if limit.total is None:
            return (self.held or self.budget) <= limit.planned
        return self.budget <= limit.total


def plan_of(prepared: Prepared, ops: Sequence[str], budget: int = 0) -> Plan:
    """A plan that runs ops in an order, repeats being recomputations.

    Args:
        prepared: the model in the parts that it is of.

    Raises:
        UsageError: it does not fit the graph.
    """
    costs = prepared.costs.seconds
    store_all = sum(costs[op.name] for op in prepared.graph.ops)
    provenance = Provenance(
        planner="smallest-budget", budget=budget, bound=store_all,
        seconds=sum(costs.get(name, 0.0) for name in ops), store_all_seconds=store_all,
        graph_hash=graph_hash(prepared.graph), cost_source=prepared.costs.source,
        notes=(*prepared.notes, *said_of_inputs(prepared.graph)),
        settings=prepared.settings.to_json(),
    )  # fmt: skip
    ops = settled(prepared.graph, updates_last(prepared.graph, list(ops), prepared.in_place))
    return Plan.of(prepared.graph, ops, provenance)


def keep(whole: Prepared, known: Known, share: bool = False) -> None:
    """Keep a plan, unless one of less is kept already or the folder cannot be written.

    Args:
        whole: the model as it was asked for.
        share: it is of less where its weights and values are: a share of the original's was asked
            for.
    """
    parts = _parts(whole, known.prepared)
    kept = KeptPlan(known.works, parts, tuple(known.ops), known.fits)
    keep_at(_path(whole), kept, share)


def kept_plan(whole: Prepared) -> KeptPlan | None:
    """What is kept of a model; None for nothing, or what nobody can have written."""
    return kept_at(_path(whole))


def keep_at(path: Path, kept: KeptPlan, share: bool = False) -> None:
    """As :func:`keep`, of what :func:`place_of` tells apart."""
    before = kept_at(path)
    if len(kept.ops) > PLAN_RUNS:
        return
    if before and (before.held <= kept.held if share else before.budget <= kept.budget):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(asdict(kept)))
        _forget(path.parent)
    except (OSError, OnnxrematError):  # a read-only home is no reason to fail
        return


def kept_at(path: Path) -> KeptPlan | None:
    """As :func:`kept_plan`."""
    try:
        said = plain_json.loads(path.read_text())
        kept = KeptPlan(
            said["budget"], said["parts"], tuple(said["ops"]), said.get("held", said["budget"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    right = (
        type(kept.budget) is type(kept.held) is int
        and _are_parts(kept.parts)
        and len(kept.ops) <= PLAN_RUNS
    )
    return kept if right and all(isinstance(name, str) for name in kept.ops) else None


def _are_parts(said: object) -> bool:
    """Whether it is what :func:`_parts` may give."""
    if not isinstance(said, dict) or len(said) > 1:
        return False
    kinds = {"split_batch": (int,), "fission": (dict,), "step": (int, float)}
    return all(
        way in kinds and isinstance(rows, list) and all(type(row) in kinds[way] for row in rows)
        for way, rows in said.items()
    ) and len(said.get("step", STEP)) == len(STEP)


def _parts(whole: Prepared, split: Prepared) -> dict[str, Any]:
    """What is in parts beyond what was asked for."""
    if isinstance(split.parting, StepParts):
        return {"step": list(astuple(split.parting))}
    before, now = whole.settings.to_json(), split.settings.to_json()
    return {name: now[name] for name in PARTS if name in now and name not in before}


def _path(whole: Prepared) -> Path:
    """Of a model in the shapes, with the options and on the machine that sizes depend on."""
    asked = whole.settings
    about = [
        graph_hash(whole.unsplit.graph), asked.to_json(), asked.split_batch, asked.fission is None,
        asked.fixed_order, str(asked.dw_policy), machine_key(asked.threads),
    ]  # fmt: skip
    return place_of(about)


def place_of(about: object) -> Path:
    """Where a plan is kept of what is told apart by plain data."""
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
    return cache_folder() / FOLDER / f"{name}.json"


def _forget(folder: Path) -> None:
    """Of the oldest, what is too many."""
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths[MODELS:]:
        with suppress(OSError):
            path.unlink()
