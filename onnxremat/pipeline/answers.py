"""What onnxruntime answered about graphs of one model: plans that become one graph ask it once."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

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
    """A hash of all that a model computes, its nodes in their order or in any. Weights are hashed
    one by one: no copy is made of all of them."""
    graph = model.graph
    nodes = [node.SerializeToString(deterministic=True) for node in graph.node]
    found = hashlib.sha256()
    for rows in (
        model.opset_import, model.functions, graph.initializer, graph.sparse_initializer,
        graph.input, graph.output, graph.value_info, model.metadata_props,
    ):  # fmt: skip
        found.update(len(rows).to_bytes(8, "little"))
        for row in rows:
            _add(found, row.SerializeToString(deterministic=True))
    for node in nodes if ordered else sorted(nodes):
        _add(found, node)
    return found.digest()


def _add(found: Any, text: bytes) -> None:
    found.update(len(text).to_bytes(8, "little") + text)
