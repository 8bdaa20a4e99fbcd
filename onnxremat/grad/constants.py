"""Values known before the run: initializers, Constant nodes, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.graph.ir import Graph, Op

LIMIT = 1 << 16  # elements up to which a value is computed
# Cheap and exact everywhere: shape arithmetic as exporters write it, and masks made from it.
FOLDABLE = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Cast",
        "CastLike",
        "Ceil",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "CumSum",
        "Div",
        "Equal",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "NonZero",
        "Not",
        "Or",
        "Pow",
        "Range",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "Reshape",
        "Round",
        "Sign",
        "ScatterElements",
        "ScatterND",
        "Slice",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
    ]
)


class Constants:
    """Looks up, and where needed computes, values that no input and no parameter enters.

    Args:
        graph: forward graph.
        variable: initializers that are trained, so not constant.
    """

    def __init__(self, graph: Graph, variable: Collection[str] = ()) -> None:
        self._graph = graph
        self._opsets = graph.opsets
        self._known: dict[str, np.ndarray | None] = dict.fromkeys(variable)
        self._stored = {
            tensor.name: tensor
            for tensor in graph.model.graph.initializer
            if tensor.data_location != onnx.TensorProto.EXTERNAL
        }
        signature = {value.name for value in graph.model.graph.input}
        for name in signature - set(self._stored):
            self._known[name] = None

    def __call__(self, name: str) -> np.ndarray | None:
        """The value of a tensor, None when it depends on the run or is too big."""
        stack = [name]
        while stack:
            current = stack[-1]
            if current in self._known:
                stack.pop()
                continue
            waiting = self._requirements(current)
            if waiting:
                stack.extend(waiting)
            else:
                self._known.setdefault(current, None)
                stack.pop()
        return self._known[name]

    def _requirements(self, name: str) -> list[str]:
        """Compute a value, or list the values to compute before it."""
        if name in self._stored:
            stored = self._stored[name]
            small = math.prod(stored.dims) <= LIMIT
            self._known[name] = numpy_helper.to_array(stored) if small else None
            return []
        index = self._graph.producer.get(name)
        if index is None:
            return []
        op = self._graph.ops[index]
        if op.op_type in ("Shape", "Size") and op.standard:
            self._known[name] = self._shape(op)
            return []
        if not op.standard or op.op_type not in FOLDABLE or self._big(op):
            return []
        needed = op.inputs[:1] if op.op_type == "CastLike" else op.reads
        waiting = [read for read in needed if read not in self._known]
        if not waiting:
            self._evaluate(op)
        return waiting

    def _big(self, op: Op) -> bool:
        shapes = [self._graph.tensors[name].shape for name in op.writes]
        return any(shape is not None and math.prod(shape) > LIMIT for shape in shapes)

    def _shape(self, op: Op) -> np.ndarray | None:
        shape = self._graph.tensors[op.inputs[0]].shape
        if shape is None:
            return None
        if op.op_type == "Size":
            return np.array(math.prod(shape), np.int64)
        bounds = {a.name: a.i for a in op.node.attribute}
        return np.array(shape[bounds.get("start", 0) : bounds.get("end")], np.int64)

    def _evaluate(self, op: Op) -> None:
        values = {name: self._known[name] for name in op.reads if name in self._known}
        if op.op_type == "CastLike":  # the other input says which type, whatever its value
            kind = self._graph.tensors[op.inputs[1]].dtype
            values[op.inputs[1]] = (
                np.zeros(1, helper.tensor_dtype_to_np_dtype(kind)) if kind else None
            )
        if any(value is None for value in values.values()):
            return
        from onnx.reference import ReferenceEvaluator  # long to import, seldom needed

        node = onnx.NodeProto()
        node.CopyFrom(op.node)
        node.input[:], node.output[:] = op.inputs, op.outputs
        opsets = [helper.make_opsetid(domain, v) for domain, v in self._opsets.items()]
        graph = helper.make_graph(
            [node],
            "fold",
            [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
             for n, v in values.items() if v is not None],
            [onnx.ValueInfoProto(name=name) for name in op.writes],
        )  # fmt: skip
        try:
            model = helper.make_model(graph, opset_imports=opsets)
            results = ReferenceEvaluator(model).run(None, values)
        except Exception:  # the evaluator raises whatever numpy does: then it is not known
            return
        for name, result in zip(op.writes, results, strict=True):
            self._known[name] = np.asarray(result)
