"""Plan to ONNX: duplicates, gates, pins, and the plan itself in the model's metadata."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import onnx

from onnxremat import plain_json
from onnxremat.errors import ModelError, UsageError
from onnxremat.grad import updated_inputs
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.traits import is_alias
from onnxremat.graph.unforeseen import all_unforeseen, constants_unforeseen
from onnxremat.limits import PLAN_BYTES
from onnxremat.ort import blocks
from onnxremat.rewrite.gates import add_gates
from onnxremat.rewrite.pins import add_pins, is_added, misplaced
from onnxremat.rewrite.unpacked import list_as_inputs
from onnxremat.schedule.expand import expand
from onnxremat.schedule.plan import Plan
from onnxremat.units import format_bytes

# What there is in the entry "facts" of a file, by kind; all of it may be missing, or null.
_SECONDS = "seconds_by_phase"
_NUMBERS = re.compile(
    r".*_(bytes|ops|ratio|seconds|spread)|overhead_.*|bound|difference_to_original|gap|ops|rounds"
)
_LISTS, _OBJECTS = ("fission", "not_counted", "notes", "split_batch"), (_SECONDS, "written_model")
_OF_PIPELINES = ("loads_of_costs_seconds", "loads_seconds", "rounds")  # else "rounds" is a number
KEY = "onnxremat"
PIN_ROUNDS = 6
UNFUSED = 0.02  # of the bytes that ops make, those that may be left unfused for hidden shapes


@dataclass(frozen=True)
class Rewritten:
    """A graph ready to run, and the model to write.

    Attributes:
        graph: one op per step in planned order, gates before recomputations, pins last.
        plan: what it carries out.
        unpacked: weights that kernels read as they are (:mod:`onnxremat.rewrite.unpacked`).
    """

    graph: Graph
    plan: Plan
    unpacked: frozenset[str] = field(default=frozenset(), kw_only=True)

    def model(self, facts: Mapping[str, Any] | None = None) -> onnx.ModelProto:
        """The ONNX model; ``facts`` go into its metadata beside the plan."""
        made = to_model(self.graph)
        list_as_inputs(made, self.unpacked)
        if any(op.domain == blocks.DOMAIN for op in self.graph.ops):
            facts = {**(facts or {}), "block": str(blocks.block_size())}
        set_metadata(made, {**(facts or {}), "plan": pack(self.plan)})
        return made


class Runtime(Protocol):
    """What a rewrite asks onnxruntime about a graph in a session with default options."""

    def lasting(self, graph: Graph) -> Collection[str]:
        """Tensors that are still there after it has fused the graph."""

    def executed(self, graph: Graph) -> Sequence[str]:
        """Op names in executed order."""


def rewrite(
    graph: Graph, plan: Plan, runtime: Runtime | None = None, *, foreseen: bool = False
) -> Rewritten:
    """Carry out a plan.

    Args:
        runtime: lets the pins suit what onnxruntime fuses at load under default options; without
            it they hold for a session that fuses nothing. Pins that make it refuse the model are
            left out.
        foreseen: shapes stay known when the file is loaded: nothing is added that finds them as it
            runs, and under default options dead buffers wait for values of their shape.

    Raises:
        UsageError: the plan does not fit the graph.
    """
    gated = blocks.add_guard(add_gates(expand(graph, plan.sequence)))
    if runtime is None:
        return Rewritten(add_pins(gated), plan)
    if foreseen:
        lasting = set(runtime.lasting(gated))
    else:
        gated, lasting = _unforeseen(gated, runtime)
    extra: set[str] = set()
    pinned, tried = gated, add_pins(gated, extra, lasting)
    for _ in range(PIN_ROUNDS):
        try:
            found = misplaced(gated, runtime.executed(tried)) - extra
        except ModelError:  # a pin stands in the way of a fusion after all
            break
        pinned = tried
        if not found:
            break
        extra |= found
        # They ran under their names: with pins about, onnxruntime may fuse less than without.
        lasting |= {name for op in gated.ops if op.name in found for name in op.writes}
        tried = add_pins(gated, extra, lasting)
    return Rewritten(pinned, plan)


def _unforeseen(graph: Graph, runtime: Runtime) -> tuple[Graph, set[str]]:
    """The graph whose dead buffers go back under default options, too, where onnxruntime fuses as
    much without knowing its shapes; and tensors that last. What follows from constants alone may
    last: folded at load, it would be held all the time. So may a view that another view is made of
    (two Reshapes in a row take no bytes), and the gate before it. So may a few values that would be
    fused away: plans count them, and files that wait take more than the budget under default
    options for them. Where much less is fused without shapes, what follows from constants alone is
    hidden."""
    lasting = set(runtime.lasting(graph))
    computed = set(graph.inputs)
    taking = set[str]()  # bytes
    for op in graph.ops:
        if computed.intersection(op.reads):
            computed.update(op.writes)
            taking.update(op.writes if not (is_alias(op) or is_added(op.name)) else ())
    for hidden in (
        partial(all_unforeseen, known=updated_inputs(graph.model)),
        constants_unforeseen,
    ):
        made = hidden(graph)
        if made is graph:
            continue
        try:
            found = set(runtime.lasting(made))
        except ModelError:
            break
        lost = found & taking - lasting
        if _bytes(graph, lost) <= UNFUSED * _bytes(graph, taking):
            return made, found
    return graph, lasting


def _bytes(graph: Graph, names: Collection[str]) -> int:
    """Of values together."""
    return sum(graph.tensors[name].bytes for name in names)


def pack(plan: Plan) -> str:
    """A plan as compressed text."""
    return base64.b85encode(zlib.compress(plan.dumps().encode(), 9)).decode()


def unpack(text: str) -> Plan:
    """The plan of :func:`pack`'s text.

    Raises:
        UsageError: damaged text.
    """
    try:
        packed = zlib.decompressobj()
        plain = packed.decompress(base64.b85decode(text), PLAN_BYTES)
        if packed.unconsumed_tail or not packed.eof:
            raise ValueError(f"it is cut short, or longer than {format_bytes(PLAN_BYTES)}")
        return Plan.from_json(plain_json.loads(plain))
    except (ValueError, zlib.error) as error:
        raise UsageError("the plan in the model's metadata is damaged", why=str(error)) from error


def figures(facts: Mapping[str, str], name: str = "facts") -> dict[str, Any]:
    """What one entry of :func:`metadata` says; nothing where there is none.

    Raises:
        UsageError: it is no JSON object.
    """
    try:
        found = plain_json.loads(facts.get(name, "{}"))
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        for key, value in found.items():
            if not _is_said_so(name, key, value):
                raise ValueError(f"'{key}' is {json.dumps(value)[:80]}")
    except ValueError as error:
        raise UsageError(
            f"what the model's metadata says in '{KEY}.{name}' is damaged",
            why=str(error),
            hint="plan again",
        ) from error
    return found


def _is_said_so(entry: str, key: str, value: object) -> bool:
    """Whether a value is of the kind that is written under its name."""
    if entry == "options":
        return True  # they are looked at where they are read
    if value is None:
        return entry == "facts"
    if key in _OF_PIPELINES and isinstance(value, dict):
        return True
    if entry == "scratch" or _NUMBERS.fullmatch(key):
        return _is_number(value)
    if key in _LISTS:
        return isinstance(value, list)
    if key in _OBJECTS:
        return isinstance(value, dict) and (key != _SECONDS or all(map(_is_number, value.values())))
    return True


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def set_metadata(model: onnx.ModelProto, facts: Mapping[str, Any]) -> None:
    """Write ``onnxremat.<name>`` entries, replacing older ones of these names."""
    names = {f"{KEY}.{name}" for name in facts}
    kept = [entry for entry in model.metadata_props if entry.key not in names]
    copies = [(entry.key, entry.value) for entry in kept]
    del model.metadata_props[:]
    for key, value in copies:
        model.metadata_props.add(key=key, value=value)
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value)
        model.metadata_props.add(key=f"{KEY}.{name}", value=text)


def metadata(model: onnx.ModelProto) -> dict[str, str]:
    """The ``onnxremat.<name>`` entries of a model, by name; empty for any other model."""
    prefix = KEY + "."
    return {
        entry.key.removeprefix(prefix): entry.value
        for entry in model.metadata_props
        if entry.key.startswith(prefix)
    }
