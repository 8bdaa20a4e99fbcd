"""What a process takes for a model beside weights and values, part by part.

A plan changes weights and values; the rest is there whatever the plan: inputs, the parameters and
state of a training step, and what onnxruntime keeps of every node (the node and its names, its
kernel, the allocation plan). The last is a model of measured growth (:mod:`structures`, and
1 to 2 MiB of a session without nodes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from onnxremat.graph.ir import Graph, Role
from onnxremat.session.structures import graph_bytes, node_bytes, places_bytes
from onnxremat.units import format_bytes

SESSION = 2 << 20  # bytes of a session without nodes, a worker's stack included
FURTHER = 32 << 10  # bytes of a further session of the same process without nodes
KEPT = 10 << 10  # bytes per op of graph and plan, kept by a run over devices (9.4 KiB measured)
LENT = 64 << 10  # bytes from which an output takes its pages of the slab with it (slab.c)
SLACK = 4 << 20  # bytes of a process that are in no part: pages of libraries, the interpreter's own
PARTS = ("inputs", "state", "session")
# Not beside weights and values but among them: new values of parameters and state, which a trainer
# writes over the old ones, so that they take no bytes.
UPDATES = "updates"


@dataclass(frozen=True)
class Beside:
    """Bytes beside weights and values; 0 for what a budget does not count.

    Attributes:
        inputs: of a run, less what is state.
        state: parameters and optimizer state of a training step.
        session: what onnxruntime keeps of the nodes; and small outputs a second time.
        update: of a step that gathers gradients: the optimizer's state, and a session that updates
            (:mod:`onnxremat.session.gathered`); left out with ``state``.
        unused: bytes of the slab that no value has, where values do not pack.
    """

    inputs: int = 0
    state: int = 0
    session: int = 0
    update: int = 0
    unused: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.inputs + self.state + self.session + self.update + self.unused

    @property
    def words(self) -> str:
        """The parts, for people."""
        parts = {
            "parameters and state": self.state, "inputs": self.inputs,
            "the session's structures": self.session,
            "the update of gathered gradients": self.update,
            "gaps between values at planned addresses": self.unused,
        }  # fmt: skip
        return ", ".join(f"{format_bytes(size)} {name}" for name, size in parts.items() if size)

    def without(self, parts: Iterable[str]) -> Beside:
        """The same, some of :data:`PARTS` not counted; other names are of parts that are not
        beside."""
        left_out = {name for name in parts if name in PARTS}
        return replace(
            self,
            **dict.fromkeys(left_out, 0),
            update=0 if "state" in left_out else self.update,
        )


def beside(graph: Graph, state: Iterable[str] = (), update: int = 0) -> Beside:
    """Of a session of ``graph``.

    Args:
        state: inputs that are parameters and state.
        update: bytes of an update that is a graph of its own.
    """
    held = set(state)
    sizes = {n: t.bytes for n, t in graph.tensors.items() if t.role is Role.INPUT}
    kept = sum(size for name, size in sizes.items() if name in held)
    results = [graph.tensors[name].bytes for name in set(graph.outputs)]
    small = sum(size for size in results if size < LENT)  # their places in the slab stay as well
    return Beside(sum(sizes.values()) - kept, kept, session_bytes(graph) + small, update)


def in_any_parts(whole: Beside, graph: Graph) -> Beside:
    """What is there of it whatever is computed in parts: kernels that list places list fewer."""
    return replace(whole, session=max(0, whole.session - places_bytes(graph)))


def session_bytes(graph: Graph, nodes: int | None = None) -> int:
    """What onnxruntime keeps of a session.

    Args:
        graph: that is opened.
        nodes: that onnxruntime makes of its ops, where they are not opened as they are.
    """
    more = 0 if nodes is None else (nodes - len(graph.ops)) * node_bytes(graph)
    return SESSION + max(0, graph_bytes(graph) + more) + places_bytes(graph)


def nodes_bytes(graph: Graph, nodes: int, not_counted: Iterable[str]) -> int:
    """What budgets count of so many nodes more than a graph has."""
    return 0 if "session" in not_counted else nodes * node_bytes(graph)


def further_bytes(graph: Graph | None = None) -> int:
    """What a process that runs several sessions over devices keeps of one, without nodes where
    there is no graph."""
    if graph is None:
        return FURTHER
    return FURTHER + graph_bytes(graph) + KEPT * len(graph.ops) + places_bytes(graph)


def updates_words(state: int, peak: int, not_counted: Iterable[str]) -> str:
    """What a plan for a trainer would do without, where that is a tenth of the peak or more.

    Args:
        state: bytes of parameters and state, and so of their new values.
        peak: bytes of weights and values, the new ones among them.
        not_counted: what the budget leaves out already.
    """
    left_out = tuple(not_counted)
    if UPDATES in left_out or not state or 10 * state < peak:
        return ""
    return (
        f"{format_bytes(state)} of the values are new parameters and state: a Trainer writes them "
        f"over the old ones, and --not-counted {','.join((*left_out, UPDATES))} plans for that"
    )


def counted(facts: Mapping[str, Any]) -> Beside:
    """What the budget in the facts of a file counts; nothing in files of versions that did not."""
    if facts.get("session_bytes") is None:
        return Beside()
    state, inputs = facts.get("state_bytes") or 0, facts.get("input_bytes") or 0
    update, unused = facts.get("update_bytes") or 0, facts.get("unused_bytes") or 0
    whole = Beside(max(0, inputs - state), state, facts["session_bytes"], update, unused)
    return whole.without(facts.get("not_counted") or ())
