"""What is a plan: steps in order, and where they came from.

A plan names ops and tensors of the graph it was made for. ``copy`` counts the runs of an op: copy
0 is its first run, copy 1 its first recomputation. A step reads the latest copy of each tensor;
graph outputs are made once and their first copy is read throughout.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, TypeVar

from onnxremat import plain_json
from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph
from onnxremat.limits import OP_RUNS, PLAN_RUNS, check

VERSION = 1
MOST = 1 << 62  # of any number in a plan


@dataclass(frozen=True, slots=True)
class Compute:
    """Run an op on a device."""

    op: str
    copy: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Free:
    """Give a tensor's copy back; nothing reads it any more."""

    tensor: str
    copy: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copy a tensor to another device (or to host memory and back)."""

    tensor: str
    source: str
    target: str
    copy: int = 0


Step = Compute | Free | Transfer
_KINDS: dict[str, type[Step]] = {"compute": Compute, "free": Free, "transfer": Transfer}


@dataclass(frozen=True)
class Provenance:
    """How a plan was found and what is proven about it.

    Attributes:
        planner: method that found it.
        status: ``optimal``, ``feasible``, ...
        budget: bytes it was made for (0 when there was no limit).
        bound: proven lower bound on the compute seconds of any plan within the budget.
        bound_kind: the argument behind the bound.
        any_order: the bound holds for every order of the ops.
        staged: the bound holds only for plans that run each op at most once per stage.
        seconds: planned compute seconds.
        store_all_seconds: compute seconds without recomputation.
        plan_seconds: wall time of planning.
        graph_hash: :func:`graph_hash` of the graph it belongs to.
        cost_source: ``measured`` or ``analytic``.
        notes: fall-backs and limits hit.
        settings: how the graph was prepared (target, shapes, dims), to prepare it again.
    """

    planner: str = "store-all"
    status: str = "feasible"
    budget: int = 0
    bound: float = 0.0
    bound_kind: str = "store-all"
    any_order: bool = True
    staged: bool = False
    seconds: float = 0.0
    store_all_seconds: float = 0.0
    plan_seconds: float = 0.0
    graph_hash: str = ""
    cost_source: str = ""
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def overhead(self) -> float:
        """Planned extra compute as a share of the store-all time."""
        return self._share(self.seconds)

    @property
    def bound_overhead(self) -> float:
        """Proven least extra compute as a share of the store-all time."""
        return max(0.0, self._share(self.bound))

    @property
    def gap(self) -> float:
        """Planned minus proven least extra compute, as a share of the store-all time."""
        return max(0.0, self.overhead - self.bound_overhead)

    def _share(self, seconds: float) -> float:
        if not self.store_all_seconds:
            return 0.0
        return seconds / self.store_all_seconds - 1.0


@dataclass(frozen=True)
class Plan:
    """Steps in execution order and their provenance."""

    steps: tuple[Step, ...] = field(repr=False)
    provenance: Provenance = field(default_factory=Provenance)

    @classmethod
    def of(
        cls, graph: Graph, sequence: Sequence[str], provenance: Provenance | None = None
    ) -> Plan:
        """A plan that runs ops in the given order, repeats being recomputations, and frees every
        copy after its last reader.

        Raises:
            UsageError: the sequence runs an unknown op or reads what is not there yet.
        """
        from onnxremat.schedule.expand import resolve

        runs = resolve(graph, sequence)
        last: dict[tuple[str, int], int] = {}
        for step, run in enumerate(runs):
            for name, copy in (*run.reads, *run.writes):
                last[name, copy] = step
        dying: dict[int, list[tuple[str, int]]] = {}
        kept = set(graph.outputs)
        for (name, copy), step in last.items():
            if not (name in kept and copy == 0):
                dying.setdefault(step, []).append((name, copy))
        steps: list[Step] = []
        for step, run in enumerate(runs):
            steps.append(Compute(run.op.name, run.copy))
            steps += [Free(name, copy) for name, copy in dying.get(step, ())]
        return cls(tuple(steps), provenance or Provenance())

    @property
    def sequence(self) -> tuple[str, ...]:
        """Op names in execution order."""
        return tuple(step.op for step in self.steps if isinstance(step, Compute))

    @property
    def recomputations(self) -> int:
        """How many steps run an op again."""
        return sum(1 for step in self.steps if isinstance(step, Compute) and step.copy)

    def with_provenance(self, **changes: Any) -> Plan:
        """The same steps, other provenance."""
        return replace(self, provenance=replace(self.provenance, **changes))

    def to_json(self) -> dict[str, Any]:
        """Plain data with a version; :meth:`from_json` reads it back."""
        kinds = {kind: name for name, kind in _KINDS.items()}
        steps = [
            [kinds[type(step)], *(getattr(step, name) for name in step.__slots__)]
            for step in self.steps
        ]
        facts = {
            name: getattr(self.provenance, name) for name in self.provenance.__dataclass_fields__
        }
        return {
            "format": "onnxremat.plan",
            "version": VERSION,
            "provenance": facts,
            "steps": steps,
        }

    def dumps(self) -> str:
        """Compact JSON text."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Read plain data.

        Raises:
            UsageError: not a plan, or of a newer version.
        """
        if not isinstance(data, Mapping) or data.get("format") != "onnxremat.plan":
            raise UsageError("not an onnxremat plan", hint="make one with: onnxremat plan IN -o F")
        if data.get("version") != VERSION:
            raise UsageError(
                f"plan version {data.get('version')} is not supported",
                why=f"this onnxremat reads version {VERSION}",
                hint="use the onnxremat that wrote it, or plan again",
            )
        try:
            steps = tuple(_checked(_KINDS[kind](*rest)) for kind, *rest in data["steps"])
            facts = dict(data["provenance"])
            facts["notes"] = tuple(facts.get("notes", ()))
            made = cls(steps, _checked(Provenance(**facts)))
            _check_settings(made.provenance.settings)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = plain_json.why_damaged(error)[:200]
            raise UsageError("the plan file is damaged", why=why, hint="plan again") from error
        runs = Counter(made.sequence)
        check(
            runs.total(), PLAN_RUNS, "runs of ops in the plan", hint="plan again", kind=UsageError
        )
        for op, count in runs.most_common(1):
            check(count, OP_RUNS, f"runs of op '{op}'", hint="plan again", kind=UsageError)
        return made


Record = TypeVar("Record", Step, Provenance)
_PLAIN: dict[Any, Any] = {
    "str": str, "int": int, "float": (int, float), "bool": bool, "tuple[str, ...]": tuple,
    "Mapping[str, Any]": Mapping,
}  # fmt: skip


def _checked(record: Record) -> Record:
    """The record itself, every field being of its declared type.

    Raises:
        TypeError: one is not.
    """
    for part in fields(record):
        value, kind = getattr(record, part.name), part.type
        fits = isinstance(value, _PLAIN[kind]) and isinstance(value, bool) == (kind == "bool")
        if kind in ("int", "float"):
            fits = fits and 0 <= value <= MOST
        if kind == "tuple[str, ...]":
            fits = fits and all(isinstance(row, str) for row in value)
        if not fits:
            raise TypeError(f"{part.name} is {value!r}")
    return record


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raises:
    TypeError: the settings are none that a model can be prepared with.
    """
    shapes, dims = settings.get("shapes", {}), settings.get("dims", {})
    target, parts = settings.get("target", ""), settings.get("split_batch", [])
    if not isinstance(shapes, Mapping) or not isinstance(dims, Mapping):
        raise TypeError(f"settings are {settings!r}")
    sizes = [parts, *shapes.values(), list(dims.values())]
    rows = [*sizes, settings.get("fission", [])]
    if not isinstance(target, str) or not all(isinstance(row, list | tuple) for row in rows):
        raise TypeError(f"settings are {settings!r}")
    for size in chain.from_iterable(sizes):
        if type(size) is not int or not 0 < size < MOST:
            raise TypeError(f"a size in settings is {size!r}")
    for key in ("not_counted", "narrow"):
        names = settings.get(key, [])
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise TypeError(f"{key} in settings is {names!r}")


def graph_hash(graph: Graph) -> str:
    """Fingerprint of a graph's ops and what they are told, order-free, and of its tensor sizes."""
    digest = hashlib.sha256()
    for op in sorted(graph.ops, key=lambda o: o.name):
        digest.update(repr((op.name, op.op_type, op.domain, op.inputs, op.outputs)).encode())
        for each in sorted(op.node.attribute, key=lambda attribute: attribute.name):
            digest.update(each.SerializeToString(deterministic=True))
        sizes = [graph.tensors[name].bytes for name in op.writes]
        digest.update(repr(sizes).encode())
    return digest.hexdigest()[:16]
