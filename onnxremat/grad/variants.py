"""Which variant of a rule, where there are several: the one that keeps least.

What a rule reads of the forward pass has to be kept until then, unless something else keeps it
anyway. So an op takes, instead of its default variant, the one whose reads add fewer bytes to what
all other ops keep. Reads are those of the ops that a variant really emits (found by a walk on a
scratch tape), a view counts as what it shows, and what the caller holds counts nothing. The choice
is made op by op until none changes; each change lowers the sum of bytes kept, so it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from onnxremat.grad import registry
from onnxremat.grad.assembly import needed
from onnxremat.grad.engine import Walk
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import is_alias

# A variant has to save at least this part of an output's bytes: it may take longer.
WORTH = 0.25

Walking = Callable[[Mapping[str, str]], tuple[Walk, Tape, Collection[str]]]
Reads = Mapping[str, frozenset[str]]  # forward tensors that the rule of an op keeps, by op name


@dataclass(frozen=True)
class Trial:
    """A walk in which every op took its variant of one number.

    Attributes:
        reads: what each op keeps.
        sizes: bytes of all forward tensors.
    """

    reads: Reads
    sizes: Mapping[str, int]


def least_kept(
    ops: Sequence[Op], opsets: Mapping[str, int], fixed: Collection[str], walk: Walking
) -> dict[str, str]:
    """Variant by op name, for ops that do better with another than the default.

    Args:
        ops: the forward ops.
        opsets: operator set version per domain.
        fixed: operators whose variant is chosen already.
        walk: walks on a scratch tape with the variants it is told; returns the walk, the tape
            and the gradients.
    """
    choices = {
        op.name: names
        for op in ops
        if op.op_type not in fixed and len(names := registry.variants(op, opsets)) > 1
    }
    trials = []
    for number in range(max(map(len, choices.values()), default=0)):
        picked = {name: names[min(number, len(names) - 1)] for name, names in choices.items()}
        trials.append(_trial(ops, *walk(picked)))
    return _Choice(ops, choices, trials).run() if trials else {}


def _trial(ops: Sequence[Op], walk: Walk, tape: Tape, gradients: Collection[str]) -> Trial:
    """What the rules of a walk read."""
    made = {name for op in walk.extended() for name in op.writes}
    shown: dict[str, str] = {}
    for op in ops:
        if is_alias(op):
            shown[op.outputs[0]] = shown.get(op.inputs[0], op.inputs[0])
    alive = {op.name for op in needed(tape.ops, list(gradients))}
    reads = {}
    for name, span in walk.spans.items():
        emitted = [op for op in tape.ops[span.start : span.stop] if op.name in alive]
        tensors = {shown.get(tensor, tensor) for op in emitted for tensor in op.reads}
        reads[name] = frozenset(tensors & made)
    return Trial(reads, {name: tape.tensors[name].bytes for name in made if name in tape.tensors})


class _Choice:
    """Number of the variant that every op has, from the default on."""

    def __init__(
        self, ops: Sequence[Op], choices: Mapping[str, Sequence[str]], trials: Sequence[Trial]
    ) -> None:
        first = trials[0].reads
        self.names = [op.name for op in reversed(ops) if op.name in choices and op.name in first]
        self.choices, self.trials = choices, trials
        self.sizes = {name: size for trial in trials for name, size in trial.sizes.items()}
        self.outputs = {op.name: self.sizes.get(op.outputs[0], 0) for op in ops}
        self.chosen = dict.fromkeys(self.names, 0)
        self.readers = Counter(name for kept in first.values() for name in kept)

    def run(self) -> dict[str, str]:
        """Op by op until none changes."""
        while sum(self._improved(name) for name in self.names):
            pass
        return {name: self.choices[name][k] for name, k in self.chosen.items() if k}

    def _improved(self, name: str) -> bool:
        """Give an op the variant that adds least to what the others keep, if that pays."""
        reads = [trial.reads[name] for trial in self.trials[: len(self.choices[name])]]
        current = self.chosen[name]
        self.readers.subtract(reads[current])
        added = [sum(self.sizes[n] for n in kept if self.readers[n] <= 0) for kept in reads]
        best = min(range(len(added)), key=added.__getitem__)
        gain = added[current] - added[best]
        if gain <= 0 or gain < WORTH * self.outputs[name]:
            best = current
        self.chosen[name] = best
        self.readers.update(reads[best])
        return best != current
