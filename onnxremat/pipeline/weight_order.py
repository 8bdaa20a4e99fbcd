"""When a training step makes its gradients of weights: at once, at its end, or those of some layers
late.

Nothing in a backward pass waits for the gradient of a weight (dW), so it may run at any time after
the gradient of its layer's output is there (Oh et al., Out-Of-Order BackProp, EuroSys'22). At once
it lets go of the layer's input soonest. Late it leaves the chain of the other gradients to itself,
and keeps that input. In all of these orders an update follows its gradient at once, so that
gradients do not pile up.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxremat.errors import UnsupportedError, UsageError
from onnxremat.grad.roles import roles_of
from onnxremat.graph.ir import Graph
from onnxremat.graph.order import reordered

ASAP, LATE, REVERSE, AUTO = "asap", "late", "reverse-first-k", "auto"
HINT = "asap, late, reverse-first-k=K, or auto"


@dataclass(frozen=True)
class DwPolicy:
    """What was asked for.

    Attributes:
        kind: ``asap``, ``late``, ``reverse-first-k`` or ``auto`` (the planner decides).
        first: layers of ``reverse-first-k``.
    """

    kind: str
    first: int = 0

    @property
    def fixed(self) -> bool:
        """Whether it says the order, so that the planner has to keep it."""
        return self.kind != AUTO

    @classmethod
    def parse(cls, text: str) -> DwPolicy:
        """From an option.

        Raises:
            UsageError: none of the policies.
        """
        kind, equals, number = text.partition("=")
        if kind == REVERSE and number.isascii() and number.isdigit():
            return cls(kind, int(number))
        if kind in (ASAP, LATE, AUTO) and not equals:
            return cls(kind)
        raise UsageError(f"--dw-policy '{text}' is no policy", hint=HINT)

    def __str__(self) -> str:
        return f"{self.kind}={self.first}" if self.kind == REVERSE else self.kind


def fixes_order(policy: DwPolicy | None, fixed: bool) -> bool:
    """Whether a policy fixes the order of first runs.

    Args:
        fixed: the file's order was asked for.

    Raises:
        UsageError: two orders were.
    """
    if policy is not None and fixed:
        raise UsageError("--dw-policy and --fixed-order each say an order", hint="one of them")
    return policy is not None and policy.fixed


def ordered(graph: Graph, policy: DwPolicy) -> Graph:
    """A training step with its gradients of weights where the policy has them, everything else in
    the order it has.

    Args:
        policy: not ``auto``.

    Raises:
        UnsupportedError: no gradient of a weight.
        UsageError: fewer layers than are to be late.
    """
    listing = _Listing(graph)
    groups = listing.groups
    if not groups:
        raise UnsupportedError(
            "--dw-policy is for training steps",
            why="no op of this model makes the gradient of a weight",
            hint="a step that onnxremat differentiate made, or optimize --train",
        )
    if policy.kind == REVERSE and policy.first > len(groups):
        raise UsageError(
            f"--dw-policy {policy}: the step has {len(groups)} layers with weights",
            hint=f"at most reverse-first-k={len(groups)}",
        )
    late = {ASAP: 0, LATE: len(groups)}.get(policy.kind, policy.first)
    held = groups[len(groups) - late :]
    return reordered(graph, listing.order(held if policy.kind == LATE else held[::-1]))


class _Listing:
    """Ops one after the other: those of the chain as they are, the others by policy.

    Attributes:
        groups: ops that can begin with gradients of weights, by the op of the chain after which
            they can; the first group is of the last layer.
    """

    def __init__(self, graph: Graph) -> None:
        roles = roles_of(graph)
        self.graph, ops = graph, graph.ops
        self.beside = [roles[op.name] in ("weight", "update") for op in ops]
        self.makers = [sorted(row) for row in graph.predecessors()]
        self.chain = [roles[op.name] in ("chain", "loss") for op in ops]
        self.weight = [roles[op.name] == "weight" for op in ops]
        # What is made of parameters alone, or for gradients of the forward pass alone (the patches
        # of a convolution's input), runs when somebody reads it: before, it would only take room.
        self.free = [False] * len(ops)
        for k, row in enumerate(self.makers):
            early = (m for m in row if not (self.weight[k] and not self.beside[m]) or self.chain[m])
            self.free[k] = self.beside[k] and all(self.free[m] for m in early)
        self.readers: list[list[int]] = [[] for _ in ops]
        for k, row in enumerate(self.makers):
            for maker in row:
                if self.beside[k] and not self.free[maker]:
                    self.readers[maker].append(k)
        self.groups: list[tuple[int, ...]] = []
        self.order([])

    def order(self, late: list[tuple[int, ...]]) -> list[int]:
        """All ops, those of some groups after everything else, group by group."""
        held = {k for group in late for k in group}
        self.listed, self.done = list[int](), [False] * len(self.graph.ops)
        self.left = [sum(not self.free[m] for m in row) for row in self.makers]
        first = not self.groups
        for k in range(len(self.graph.ops)):
            if not self.beside[k]:
                ready = self._run(k)
                begins = tuple(r for r in ready if self.weight[r])
                if first and begins and self.chain[k]:
                    self.groups.append(begins)
                self._follow([r for r in ready if r not in held])
        for group in late:
            self._follow(list(group))
        for k in range(len(self.graph.ops)):  # what leads nowhere
            self._run(k)
        return self.listed

    def _follow(self, ready: list[int]) -> None:
        """Gradients, and after each at once what is made of it."""
        waiting = ready[::-1]
        while waiting:
            waiting += self._run(waiting.pop())[::-1]

    def _run(self, op: int) -> list[int]:
        """An op after everything it reads; the ops beside the chain that can run now."""
        ready, waiting = list[int](), [op]
        while waiting:
            k = waiting[-1]
            missing = [m for m in self.makers[k] if not self.done[m]]
            if missing:
                waiting += missing[::-1]
                continue
            waiting.pop()
            if self.done[k]:
                continue
            self.done[k] = True
            self.listed.append(k)
            for reader in self.readers[k]:
                self.left[reader] -= 1
                if not self.left[reader] and not self.done[reader]:
                    ready.append(reader)
        return [k for k in ready if not self.done[k]]
