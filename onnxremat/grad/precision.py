"""Mixed precision: products in 16 bits, sums over many elements in 32, parameters in 32.

The usual practice (Micikevicius et al. 2018, "Mixed Precision Training", sections 3.1 and 3.3; the
lists follow PyTorch's autocast): Casts are put into the forward graph, and the backward pass
follows from differentiating them. Parameters stay float32; their gradients arrive as float32.

``NARROW`` operators always compute in 16 bits. ``FOLLOWING`` ones do where all data they read are
in 16 bits already. ``INSIDE`` ones compute in 32 bits and give back what they got, so that what is
kept between the passes stays small. All others compute in 32 bits.

"Data" are what depends on an input of the model, and on a parameter or a float32 input. All else
(parameters, constants, masks made from integers) is cast to what the data have. Where that would
make another number of a constant (a divisor of 1e5, an epsilon of 1e-12) the op computes in 32.

A name of the model always stands for the float32 tensor; its 16-bit form is ``<name>/half``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper

from onnxremat.errors import UsageError
from onnxremat.grad.constants import Constants
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role, Tensor

HALVES = {"fp16": T.FLOAT16, "bf16": T.BFLOAT16}
OPSETS = {"fp32": 18, "fp16": 18, "bf16": 22}  # convolutions and pools take bfloat16 from 22

PRODUCTS = "Conv ConvTranspose Einsum FusedMatMul Gemm MatMul TransposeMatMul"
SIMPLE = (
    "Abs Add BiasGelu Clip Concat DepthToSpace Div Dropout Elu Expand FastGelu Flatten Gather "
    "GatherElements GatherND Gelu GlobalMaxPool HardSigmoid HardSwish Identity LeakyRelu Max "
    "MaxPool Mean Min Mish Mul Neg PRelu Pad QuickGelu Relu Reshape Resize ReverseSequence "
    "Selu Sigmoid Slice Softsign SpaceToDepth Split Squeeze Sub Sum "
    "Swish Tanh ThresholdedRelu Tile Transpose Trilu Unsqueeze Where"
)
SUMS = (
    "AveragePool BatchNormalization GlobalAveragePool GroupNormalization InstanceNormalization "
    "LRN LayerNormalization LogSoftmax LpNormalization RMSNormalization "
    "SimplifiedLayerNormalization Softmax"
)
DELICATE = (
    "BiasGelu FastGelu Gather GatherElements GatherND Gelu HardSwish MaxPool Mish QuickGelu "
    "Sigmoid Swish Tanh"
)
NARROW, FOLLOWING = frozenset(PRODUCTS.split()), frozenset(SIMPLE.split())
INSIDE = frozenset(SUMS.split())
# Operators whose rules compute in float32 also where the op does not: slopes that are sums of
# products, and cotangents that are added up at indices.
SINGLE = frozenset(DELICATE.split())
# In 16-bit models as well: an epsilon of 1e-12 is 0 in float16, and kernels compute in float32.
NORMS = frozenset({
    "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization",
    "SimplifiedLayerNormalization",
})  # fmt: skip
NO_BFLOAT16 = frozenset({"Einsum", "ReverseSequence"})  # which ONNX does not define for it
BOUND = 6e4  # what is added to hide a score at most: float16 ends at 65504
SMALLEST = 2.0**-14  # below it float16 loses digits, and below 2**-25 all of them
SCALING = NARROW | {"Div", "Mul", "PRelu"}  # of which a factor beyond BOUND hides nothing
ADDING = frozenset({"Add", "BiasGelu", "Mean", "Sub", "Sum"})  # nor do these, if all are beyond
# Inputs with settings, which keep their type.
SETTINGS: Mapping[str, tuple[int, ...]] = {"Dropout": (1, 2), "Resize": (1, 2, 3)}


@dataclass(frozen=True)
class Autocast:
    """A forward graph with Casts.

    Attributes:
        graph: the graph.
        sources: 16-bit tensor by the name of the float32 tensor that can be made from it.
        half: the 16-bit type, ``UNDEFINED`` where nothing was cast.
    """

    graph: Graph
    sources: Mapping[str, str] = field(default_factory=dict)
    half: int = T.UNDEFINED


def check_precision(precision: str) -> None:
    """Raises:
    UsageError: no precision of that name.
    """
    if precision not in OPSETS:
        raise UsageError(
            f"unknown precision '{precision}'", hint="precisions are " + ", ".join(OPSETS)
        )


def autocast(
    graph: Graph, precision: str, weights: Collection[str], parameters: Collection[str],
    read: Collection[str] = (),
) -> Autocast:  # fmt: skip
    """A forward graph in mixed precision.

    Args:
        graph: float32.
        precision: ``fp16`` or ``bf16``; ``fp32`` changes nothing.
        weights: initializers of the model.
        parameters: those that are, or were, learned.
        read: tensors that the loss reads in float32.

    Raises:
        UsageError: the model has no float32 weights.
    """
    if precision == "fp32":
        return Autocast(graph)
    if not any(graph.tensors[name].dtype == T.FLOAT for name in weights):
        raise UsageError(
            f"precision {precision} needs a model with float32 weights",
            why="mixed precision keeps parameters in float32 and casts them itself",
            hint="convert the model to float32 first, or leave --precision out",
        )
    return _Caster(graph, HALVES[precision], weights, parameters).run((*graph.outputs, *read))


class _Caster:
    """Goes through the ops in order and writes Casts before their first use."""

    def __init__(
        self, graph: Graph, half: int, weights: Collection[str], parameters: Collection[str]
    ) -> None:
        self.graph, self.half, self.parameters = graph, half, set(parameters)
        self.constant_of = Constants(graph, parameters)
        self.tensors = dict(graph.tensors)
        self.ops: list[Op] = []
        self.extra: list[onnx.TensorProto] = []
        self.small: dict[str, str] = {}  # 16-bit form by name
        self.sources: dict[str, str] = {}
        self.wide = set(graph.inputs) | set(weights)
        self.wide |= {tensor.name for tensor in graph.model.graph.initializer}
        self.moving = set(graph.inputs) - set(weights)
        real = {name for name in self.moving if self.tensors[name].dtype == T.FLOAT}
        self.grounded = real | set(parameters)

    def run(self, kept: Collection[str]) -> Autocast:
        """The whole graph; some tensors are there in their own type."""
        for op in self.graph.ops:
            for reached in (self.moving, self.grounded):
                if not reached.isdisjoint(op.reads):
                    reached.update(op.writes)
            self.ops += self._cast(op)
        self.ops += [cast for name in kept for cast in self._widened(name)]
        graph = self.graph.with_ops(self.ops, self.tensors)
        if self.extra:
            model = onnx.ModelProto()
            model.CopyFrom(graph.model)
            model.graph.initializer.extend(self.extra)
            graph = replace(graph, model=model)
        return Autocast(graph, self.sources, self.half)

    def _cast(self, op: Op) -> list[Op]:
        """The op with the Casts it needs."""
        data = self._data(op)
        inside = op.op_type in INSIDE and op.inputs[0] in self.sources
        small = op.op_type in NARROW or (op.op_type in FOLLOWING and self._is_small(op))
        if small and self._can_be_small(op, data):
            return self._narrowed(op, data)
        made = [cast for name in op.reads for cast in self._widened(name)]
        self.wide.update(op.writes)
        made.append(op)
        if inside:
            made.append(_cast_op(op.outputs[0], self._declare(op.outputs[0]), self.half))
            self.sources[op.outputs[0]] = self.small[op.outputs[0]]
        return made

    def _data(self, op: Op) -> list[str]:
        """The float32 tensors it computes with."""
        settings = SETTINGS.get(op.op_type, ())
        names = [name for k, name in enumerate(op.inputs) if name and k not in settings]
        return [name for name in names if self.tensors[name].dtype == T.FLOAT]

    def _is_small(self, op: Op) -> bool:
        """Whether all data among its inputs were made in 16 bits."""
        data = [n for n in self._data(op) if n in self.moving and n in self.grounded]
        return bool(data) and all(name in self.sources for name in data)

    def _can_be_small(self, op: Op, data: list[str]) -> bool:
        """Whether ONNX has the op in 16 bits, and constants it reads are still the same there."""
        if self.half == T.BFLOAT16:
            return op.op_type not in NO_BFLOAT16
        for name in data:
            value = None if self._is_data(name) else self.constant_of(name)
            if value is None or not value.size:
                continue
            least, most = np.abs(value).min(), np.abs(value).max()
            beyond = least if op.op_type in ADDING else most if op.op_type in SCALING else 0.0
            if 0.0 < most < SMALLEST or beyond > BOUND:
                return False
        return True

    def _is_data(self, name: str) -> bool:
        """Whether a tensor is a parameter, or made of one or of an input of float32."""
        return name in self.parameters or (name in self.moving and name in self.grounded)

    def _narrowed(self, op: Op, data: list[str]) -> list[Op]:
        new = [name for name in dict.fromkeys(data) if name not in self.small]
        made = [cast for name in new for cast in self._halved(name)]
        settings = [name for name in op.reads if name not in data]
        made += [cast for name in settings for cast in self._widened(name)]
        renames = {name: self.small[name] for name in data}
        for name in op.writes:
            if self.tensors[name].dtype == T.FLOAT:
                renames[name] = self.sources[name] = self._declare(name)
            else:
                self.wide.add(name)
        places = SETTINGS.get(op.op_type, ())
        inputs = [n if k in places else renames.get(n, n) for k, n in enumerate(op.inputs)]
        outputs = [renames.get(name, name) for name in op.outputs]
        made.append(replace(op, inputs=tuple(inputs), outputs=tuple(outputs)))
        return made

    def _declare(self, name: str) -> str:
        """The 16-bit form of a tensor."""
        shape, half = self.tensors[name].shape, f"{name}/half"
        size = tensor_bytes(self.half, shape or ())
        self.tensors[half] = Tensor(half, self.half, shape, size, Role.ACTIVATION)
        self.small[name] = half
        return half

    def _halved(self, name: str) -> list[Op]:
        """Ops that make the 16-bit form of a tensor. What hides a score may be the lowest float32
        number, which would become an infinity, and a row of them no number."""
        half = self._declare(name)
        data = self._is_data(name)
        known = None if data else self.constant_of(name)
        small = known is not None and np.abs(known).max(initial=0.0) <= BOUND
        if data or small or self.half == T.BFLOAT16:
            return [_cast_op(name, half, self.half)]
        made, tensor = f"{name}/clipped", self.tensors[name]
        self.tensors[made] = replace(tensor, name=made, role=Role.ACTIVATION)
        node = helper.make_node("Clip", [name, *self._bounds()], [made], name=f"{made}/Clip")
        clip = Op(node.name, "Clip", "", tuple(node.input), (made,), (), node)
        return [clip, _cast_op(made, half, self.half)]

    def _bounds(self) -> list[str]:
        """Initializers with the bounds of a mask."""
        if not self.extra:
            for name, value in (("mask/lowest", -BOUND), ("mask/highest", BOUND)):
                self.extra.append(helper.make_tensor(f"onnxremat/{name}", T.FLOAT, [], [value]))
        for tensor in self.extra:
            self.tensors[tensor.name] = Tensor(tensor.name, T.FLOAT, (), 4, Role.WEIGHT)
        return [tensor.name for tensor in self.extra]

    def _widened(self, name: str) -> list[Op]:
        """The Cast that makes the float32 form of a tensor, where it is not there yet."""
        if name in self.wide or name not in self.small:
            return []
        self.wide.add(name)
        return [_cast_op(self.small[name], name, T.FLOAT)]


def _cast_op(source: str, target: str, dtype: int) -> Op:
    name = f"{target}/Cast"
    node = helper.make_node("Cast", [source], [target], name=name, to=dtype)
    return Op(name, "Cast", "", (source,), (target,), (), node)
