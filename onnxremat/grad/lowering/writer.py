"""Emits the nodes that stand for one fused op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad.registry import missing_rule
from onnxremat.graph.ir import Graph, Op

INT = onnx.TensorProto.INT64


class Writer:
    """Emits the nodes that stand for one fused op.

    Args:
        graph: knows the shapes.
        op: the fused op; names derive from it.
        known: values known before the run.
    """

    def __init__(self, graph: Graph, op: Op, known: Mapping[str, np.ndarray]) -> None:
        self.graph, self.op, self.known = graph, op, known
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.attributes = {a.name: helper.get_attribute_value(a) for a in op.node.attribute}

    # ---- the fused op --------------------------------------------------------------------

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute of the fused op; strings come decoded."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def input(self, position: int) -> str:
        """An input, "" when absent."""
        inputs = self.op.inputs
        return inputs[position] if position < len(inputs) else ""

    def output(self, position: int) -> str:
        """An output, "" when not asked for."""
        outputs = self.op.outputs
        return outputs[position] if position < len(outputs) else ""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an input of the fused op."""
        return self.graph.tensors[name].shape or ()

    def unsupported(self, why: str) -> UnsupportedError:
        """The error for a feature that is not written out."""
        domain = "" if self.op.standard else self.op.domain
        return missing_rule(self.op, self.graph.opsets.get(domain, 1), why)

    def refuse_inputs(self, **positions: int) -> None:
        """Raises:
        UnsupportedError: an input of these names is present (one without elements is not).
        """
        for name, position in positions.items():
            if self.input(position) and 0 not in (self.shape(self.input(position)) or (1,)):
                raise self.unsupported(f"its input '{name}' is not differentiated here")

    def refuse_attributes(self, *names: str) -> None:
        """Raises:
        UnsupportedError: an attribute is set to something else than 0 or ``NONE``.
        """
        for name in names:
            value = self.attribute(name, 0)
            if value and value != "NONE":
                raise self.unsupported(f"its attribute '{name}' = {value} is not differentiated")

    # ---- nodes ---------------------------------------------------------------------------

    def __call__(self, op_type: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """A node with one output, named ``to`` where that is given."""
        return self.several(op_type, inputs, [to], **attributes)[0]

    def several(
        self, op_type: str, inputs: Sequence[str], to: Sequence[str], **attributes: Any
    ) -> list[str]:
        """A node with an output per entry of ``to``, "" for a fresh name."""
        label = f"{self.op.name}/{op_type}{len(self.nodes)}"
        made = [name or f"{label}_out{k or ''}" for k, name in enumerate(to)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name=label, **attributes))
        return made

    def constant(self, value: Any, dtype: int = INT) -> str:
        """An initializer."""
        name = f"{self.op.name}/constant{len(self.initializers)}"
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(dtype))
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def like(self, value: Any) -> str:
        """A constant of the element type of the first input that has a floating-point one."""
        return self.constant(value, self.real)

    @property
    def real(self) -> int:
        """The floating-point type the fused op computes in."""
        floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16,
                  onnx.TensorProto.DOUBLE)  # fmt: skip
        kinds = [self.graph.tensors[name].dtype for name in self.op.inputs if name]
        return next(kind for kind in kinds if kind in floats)

    def cast(self, name: str, dtype: int) -> str:
        """To another type."""
        made = f"{self.op.name}/Cast{len(self.nodes)}_out"
        self.nodes.append(helper.make_node("Cast", [name], [made], to=dtype))
        return made

    def split(self, name: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Parts of these sizes."""
        if len(sizes) == 1:
            return [name]
        return self.several("Split", [name, self.constant(sizes)], [""] * len(sizes), axis=axis)


def replaced(
    graph: Graph,
    makers: Sequence[Callable[[Writer], None] | None],
    value_of: Callable[[str], np.ndarray | None],
) -> onnx.ModelProto | None:
    """The model with the ops replaced that have a maker; None where none has.

    Args:
        makers: one per op: writes what stands for it.
        value_of: value of a tensor known before the run, else None.
    """
    if not any(makers):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    for op, make in zip(graph.ops, makers, strict=True):
        if make is None:
            node = model.graph.node.add()
            node.CopyFrom(op.node)
            node.name = op.name
            continue
        values = {name: value_of(name) for name in op.reads}
        writer = Writer(graph, op, {n: v for n, v in values.items() if v is not None})
        make(writer)
        model.graph.node.extend(writer.nodes)
        model.graph.initializer.extend(writer.initializers)
    return model
