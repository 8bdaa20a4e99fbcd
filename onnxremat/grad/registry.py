"""Which rule differentiates which operator.

A rule is a function of a :class:`~onnxremat.grad.call.Call` that emits the backward ops of one
node and returns one cotangent per input (None where there is none). Rules are found by operator,
domain and opset version; an operator may have several *variants* that keep different forward
tensors alive, so that a planner can choose between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxremat.errors import OnnxrematError, UnsupportedError, UsageError
from onnxremat.grad.exported.detached import is_stop

if TYPE_CHECKING:
    from onnxremat.grad.call import Call
    from onnxremat.graph.ir import Op

Cotangents = Sequence[str | None]
RuleFunction = Callable[["Call"], Cotangents]
NEWEST = 1_000
# What decides what is run of an op, and may be known before the run.
CHOSEN = {"If": "its condition", "Loop": "how often it runs"}


@dataclass(frozen=True)
class Rule:
    """How to differentiate one operator.

    Attributes:
        op_type, domain: the operator.
        since, until: opset versions of the domain for which it holds, both included.
        variant: name among the rules of the operator; the first one registered is the default.
        reads: forward tensors it may read, as ``x0`` (input 0) and ``y1`` (output 1); ``x*`` and
            ``y*`` are all inputs and all outputs.
        exact: whether it is as exact as the others for all values; one that is not is never taken
            unasked.
        flat: inputs that the outputs do not depend on smoothly, as ``x1``: gradients stop there.
        function: emits the backward ops.
    """

    op_type: str
    domain: str
    since: int
    until: int
    variant: str
    reads: frozenset[str]
    function: RuleFunction
    exact: bool = True
    flat: frozenset[str] = frozenset()

    def holds(self, version: int) -> bool:
        """Whether the rule is meant for an opset version."""
        return self.since <= version <= self.until

    def may_read(self, kind: str, position: int) -> bool:
        """Whether forward input (``x``) or output (``y``) ``position`` is declared as read."""
        return f"{kind}{position}" in self.reads or f"{kind}*" in self.reads

    def cotangents(self, call: Call) -> Cotangents:
        """What the function returns: one cotangent per input of the node, then one per tensor
        that its bodies read. Those that are the same tensor may share one.

        Raises:
            OnnxrematError: not one per input, or None for one that is wanted: a gradient would
                vanish in silence.
        """
        found = self.function(call)
        inputs = call.op.operands
        if len(found) != len(inputs):
            raise self._wrong(call, f"{len(found)} cotangents for {len(inputs)} inputs")
        given = {name for name, cotangent in zip(inputs, found, strict=True) if cotangent}
        for position, name in enumerate(inputs):
            if call.need(position) and name not in given:
                raise self._wrong(call, f"no cotangent for input {position}, {name}")
        return found

    def _wrong(self, call: Call, why: str) -> OnnxrematError:
        name = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return OnnxrematError(
            f"the gradient rule '{self.variant}' of {name} is wrong: "
            f"{self.function.__module__}.{self.function.__qualname__}",
            where=f"node {call.op.name}",
            why=f"it returned {why}",
            hint="a rule returns one cotangent per input; where the gradient is 0 by nature, "
            'register it with flat="x1"',
        )


_RULES: dict[tuple[str, str], list[Rule]] = {}
_STOPS: set[tuple[str, str]] = set()


def vjp(
    *op_types: str,
    domain: str = "",
    since: int = 1,
    until: int = NEWEST,
    variant: str = "default",
    reads: str = "",
    exact: bool = True,
    flat: str = "",
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the vector-Jacobian product of operators.

    Args:
        op_types: operators it differentiates.
        domain: their domain, "" for ONNX.
        since, until: opset versions it holds for.
        variant: its name, where an operator has several.
        reads: forward tensors it reads, such as ``"x0 y0"``.
        exact: False for a variant that loses digits for some values.
        flat: inputs without a gradient by nature, such as ``"x1"``.

    Raises:
        UsageError: ``reads`` or ``flat`` is not such a list, or versions are the wrong way round.
    """
    read, still = _tensors("reads", reads, "xy", op_types), _tensors("flat", flat, "x", op_types)
    if since > until:
        raise UsageError(f"a rule of {', '.join(op_types)} holds from opset {since} to {until}")

    def register(function: RuleFunction) -> RuleFunction:
        for op_type in op_types:
            rule = Rule(op_type, domain, since, until, variant, read, function, exact, still)
            _RULES.setdefault((domain, op_type), []).append(rule)
        return function

    return register


def _tensors(setting: str, text: str, kinds: str, op_types: Sequence[str]) -> frozenset[str]:
    """Words like ``x0``, ``y1`` and ``x*``."""
    for word in text.split():
        if not re.fullmatch(rf"[{kinds}](\d+|\*)", word):
            raise UsageError(
                f"{setting}={text!r} of the rule of {', '.join(op_types)} is not understood",
                why=f"{word!r} is no tensor of a node",
                hint="x0 is the first input, y0 the first output; x* and y* are all of them; "
                "separate them by spaces",
            )
    return frozenset(text.split())


def non_differentiable(*op_types: str, domain: str = "") -> None:
    """Register operators whose outputs do not depend smoothly on any input: gradients stop."""
    _STOPS.update((domain, op_type) for op_type in op_types)


def stops(op: Op) -> bool:
    """Whether gradients end at an op."""
    return (_domain(op.domain), op.op_type) in _STOPS or is_stop(op.node)


def has_rule(op_type: str, domain: str = "") -> bool:
    """Whether the operator has a rule, or is known to stop gradients."""
    key = (_domain(domain), op_type)
    return key in _RULES or key in _STOPS


def _holding(op: Op, version: int) -> list[Rule]:
    key = (_domain(op.domain), op.op_type)
    return [rule for rule in _RULES.get(key, ()) if rule.holds(version)]


def variants(op: Op, opsets: Mapping[str, int]) -> list[str]:
    """Exact variants of the rule for an op that differ in what they keep, the default first."""
    found: dict[frozenset[str], str] = {}
    for rule in _holding(op, opsets.get(_domain(op.domain), 1)):
        if rule.exact:
            found.setdefault(rule.reads, rule.variant)
    return list(found.values())


def find(op: Op, opsets: Mapping[str, int], wanted: str | None = None) -> Rule:
    """The rule for an op.

    Args:
        op: the forward op.
        opsets: operator set version per domain.
        wanted: variant of the rule, None for the default.

    Raises:
        UnsupportedError: no rule for the operator at this version.
        UsageError: the operator has no variant of the wanted name.
    """
    version = opsets.get(_domain(op.domain), 1)
    rules = _holding(op, version)
    if not rules:
        raise missing_rule(op, version)
    if wanted is None:
        return rules[0]
    for rule in rules:
        if rule.variant == wanted:
            return rule
    raise UsageError(
        f"{op.op_type} has no rule variant '{wanted}'",
        hint="variants are " + ", ".join(rule.variant for rule in rules),
    )


def missing_rule(op: Op, version: int, why: str = "") -> UnsupportedError:
    """The error for an op that cannot be differentiated."""
    label = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
    choice = CHOSEN.get(op.op_type, "") if op.standard else ""
    choice = choice and (
        f"where {choice} follows from an input, give that one value: onnxremat set-input IN OUT "
        "NAME=VALUE; else "
    )
    return UnsupportedError(
        f"no gradient rule for {label} (opset {version})",
        where=f"node {op.name}",
        why=why or "a trainable parameter lies behind this node, so it must be differentiated",
        hint=f"{choice}freeze what lies before it (--freeze), or register a function with "
        f'@onnxremat.grad.vjp("{op.op_type}", domain="{op.domain}", since={version}); '
        f"see docs/gradients.md",
    )


def rules() -> Iterator[Rule]:
    """All registered rules."""
    for group in _RULES.values():
        yield from group


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
