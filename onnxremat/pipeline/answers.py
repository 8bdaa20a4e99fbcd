"""What onnxruntime answered about graphs of one model: plans that become one graph ask it once."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import onnx

from onnxremat.ort.profile import Profile


@dataclass
class Answers:
    """Answers, by the content of what was asked about.

    Attributes:
        lasting: tensors that are left of a graph when onnxruntime has fused it.
        runs: ops of a run under default options in executed order, and the run: it holds outputs,
            and is known as long as somebody else keeps it.
    """

    lasting: dict[bytes, Set[str]] = field(default_factory=dict)
    runs: dict[bytes, tuple[list[str], weakref.ref[Profile]]] = field(default_factory=dict)

    def left_of(self, model: onnx.ModelProto, ask: Callable[[], Set[str]]) -> Set[str]:
        """Tensors that are left of it; its order does not matter to them."""
        key = content(model, ordered=False)
        if key not in self.lasting:
            self.lasting[key] = ask()
        return self.lasting[key]

    def run_of(
        self, model: onnx.ModelProto, ask: Callable[[], Profile]
    ) -> tuple[Sequence[str], Profile | None]:
        """Executed order, and the run; None where it is not kept any more."""
        key = content(model)
        if key in self.runs:
            order, kept = self.runs[key]
            return order, kept()
        ran = ask()
        order = [kernel.name for kernel in ran.kernels]
        self.runs[key] = order, weakref.ref(ran)
        return order, ran


def content(model: onnx.ModelProto, *, ordered: bool = True) -> bytes:
    """A hash of all that a model says, its nodes in their order or in any."""
    nodes = [node.SerializeToString(deterministic=True) for node in model.graph.node]
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    del rest.graph.node[:]
    found = hashlib.sha256(rest.SerializeToString(deterministic=True))
    for node in nodes if ordered else sorted(nodes):
        found.update(len(node).to_bytes(8, "little") + node)
    return found.digest()
