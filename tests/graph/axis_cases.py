"""One operator each, with the axes of its output along which it can be computed in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.graph.axes import ML, MS
from onnxremat.graph.ir import Graph
from onnxremat.ort.profile import Feeds
from tests.toolbox import parse

F, I64 = np.float32, np.int64
SHAPE = (4, 6, 8)
IMAGE = (2, 3, 12, 10)


@dataclass(frozen=True)
class Case:
    """A node with inputs.

    Attributes:
        inputs: shapes of float inputs from 0.1 to 0.9; arrays of another type are inputs of that
            shape and type; a tuple ("constant", array) is a constant; "" is absent.
        axes: of output 0, those that split.
    """

    kind: str
    inputs: Sequence[Any]
    axes: frozenset[int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    outputs: int = 1
    opset: int = 21

    def model(self) -> onnx.ModelProto:
        """The node alone."""
        names, given, constants = [], [], []
        for index, each in enumerate(self.inputs):
            name = f"i{index}"
            if isinstance(each, str):
                name = ""
            elif isinstance(each[0], str):
                constants.append(numpy_helper.from_array(np.asarray(each[1]), name))
            else:
                array = np.empty(each, F) if isinstance(each, tuple) else each
                dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
                given.append(helper.make_tensor_value_info(name, dtype, array.shape))
            names.append(name)
        outputs = [f"y{index}" for index in range(self.outputs)]
        node = helper.make_node(
            self.kind, names, outputs, "op", domain=self.domain, **self.attributes
        )
        made = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([node], "case", given, made, constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MS, 1)]
        opsets.append(helper.make_opsetid(ML, 3))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds_of(graph: Graph) -> Feeds:
    """Numbers for the inputs of a case."""
    draw = np.random.default_rng(0)
    found = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        dtype = np.dtype({1: "f4", 2: "u1", 6: "i4", 7: "i8", 9: "?", 11: "f8"}[tensor.dtype])
        values = draw.uniform(0.1, 0.9, tensor.shape)
        found[name] = (values if dtype.kind == "f" else values * 5).astype(dtype)
    return found


def ints(*values: int) -> tuple[str, np.ndarray]:
    """A constant."""
    return "constant", np.array(values, I64)


def weights(*shape: int) -> tuple[str, np.ndarray]:
    """A constant of drawn numbers."""
    draw = np.random.default_rng(len(shape))
    return "constant", draw.normal(size=shape).astype(F)


def number(value: float) -> tuple[str, np.ndarray]:
    """A constant."""
    return "constant", np.array(value, F)


def byte(value: int) -> tuple[str, np.ndarray]:
    """A constant."""
    return "constant", np.array(value, np.uint8)


SCALES = "constant", np.linspace(0.01, 0.02, 6, dtype=F)
POINTS = "constant", np.arange(6, dtype=np.uint8)
QUANTISED = [
    np.empty(IMAGE, np.uint8), number(0.1), byte(2),
    ("constant", np.arange(-36, 36, dtype=np.int8).reshape(4, 3, 3, 2)),
    ("constant", np.linspace(0.01, 0.02, 4, dtype=F)), ("constant", np.zeros(4, np.int8)),
    number(0.2), byte(100), ("constant", np.arange(4, dtype=np.int32)),
]  # fmt: skip
QUANTISED_LAST = [np.empty((2, 12, 10, 3), np.uint8), *QUANTISED[1:]]
FACTOR = "constant", np.arange(-24, 24, dtype=np.int8).reshape(6, 8)
OF_COLUMNS = "constant", np.linspace(0.01, 0.02, 8, dtype=F)
ZEROS = "constant", np.arange(-4, 4, dtype=np.int8)
PACKED = "constant", np.arange(8 * 2 * 8, dtype=np.uint8).reshape(8, 2, 8)
BYTE_IMAGE, PIXELS = np.empty(IMAGE, np.uint8), np.empty((2, 12, 10, 3), np.uint8)
RESCALED = number(0.1), byte(1), number(0.2), byte(9)

TREE = {  # a node with two leaves
    "nodes_falsenodeids": [2, 0, 0], "nodes_truenodeids": [1, 0, 0], "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_nodeids": [0, 1, 2],
    "nodes_treeids": [0, 0, 0], "nodes_values": [0.5, 0.0, 0.0],
}  # fmt: skip


def _(kind: str, inputs: Sequence[Any], splits: set[int], domain: str = "", /, **more: Any) -> Case:
    own = {key: more.pop(key) for key in ("outputs", "opset") if key in more}
    more |= more.pop("given", {})  # attributes that are called as one of a case's own
    return Case(kind, inputs, frozenset(splits), more, domain, **own)


UNARY = (
    "Abs Acos Asin Asinh Atan Atanh Ceil Celu Cos Cosh Dropout Elu Erf Exp Floor Gelu HardSigmoid "
    "HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Shrink "
    "Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu"
)
BINARY = "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Pow Sub Sum"
REDUCE = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
BYTES, TRUTHS = np.zeros(SHAPE, np.uint8), np.zeros(SHAPE, bool)
CONV = (IMAGE, weights(4, 3, 3, 3))

CASES = (
    *(_(kind, [SHAPE], {0, 1, 2}) for kind in UNARY.split()),
    _("Acosh", [SHAPE], {0, 1, 2}),
    _("Swish", [SHAPE], {0, 1, 2}, opset=24),
    _("Cast", [SHAPE], {0, 1, 2}, to=onnx.TensorProto.INT64),
    _("Clip", [SHAPE, ("constant", F(0.3)), ("constant", F(0.6))], {0, 1, 2}),
    _("PRelu", [SHAPE, weights(6, 1)], {0, 1, 2}),
    _("QuantizeLinear", [SHAPE, number(0.01), byte(3)], {0, 1, 2}),
    _("QuantizeLinear", [SHAPE, SCALES, POINTS], {0, 1, 2}, axis=1),
    _("QuantizeLinear", [SHAPE, ("constant", np.full((4, 3, 8), 0.01, F))], set(), axis=1,
      block_size=2),
    _("DequantizeLinear", [np.empty(SHAPE, np.uint8), number(0.1)], {0, 1, 2}),
    _("DequantizeLinear", [np.empty(SHAPE, np.uint8), SCALES, POINTS], {0, 1, 2}, axis=-2),
    _("QLinearAdd", [np.empty(SHAPE, np.uint8), number(0.1), byte(1), np.empty((6, 1), np.uint8),
                     number(0.2), byte(2), number(0.3), byte(9)], {0, 1, 2}, MS),
    _("QLinearMul", [np.empty(SHAPE, np.uint8), number(0.1), byte(1), np.empty((8,), np.uint8),
                     number(0.2), byte(2), number(0.01), byte(9)], {0, 1, 2}, MS),
    _("QLinearWhere", [TRUTHS, BYTES, number(0.1), byte(1), np.empty((6, 1), np.uint8),
                       *RESCALED[:2], *RESCALED[2:]], {0, 1, 2}, MS),
    *(_(kind, [BYTES, *RESCALED], {0, 1, 2}, MS)
      for kind in ("QLinearLeakyRelu", "QLinearSigmoid")),
    _("QLinearSoftmax", [BYTES, number(0.1), byte(1), number(1 / 256), byte(0)], {0, 2}, MS,
      axis=1, given={"opset": 13}),
    _("QLinearSoftmax", [BYTES, number(0.1), byte(1), number(1 / 256), byte(0)], {0}, MS,
      axis=1, given={"opset": 12}),
    _("QLinearGlobalAveragePool", [BYTE_IMAGE, *RESCALED], {0, 1}, MS),
    _("QLinearGlobalAveragePool", [PIXELS, *RESCALED], {0, 3}, MS, channels_last=1),
    _("QLinearMatMul", [np.empty((2, 4, 6), np.uint8), number(0.1), byte(2), FACTOR, OF_COLUMNS,
                        ZEROS, number(0.05), byte(99)], {0, 1, 2}),
    _("QLinearMatMul", [np.empty((2, 4, 6), np.uint8), number(0.1), byte(2),
                        np.empty((3, 1, 6, 8), np.uint8), number(0.1), byte(3), number(0.05),
                        byte(99)], {0, 1, 2, 3}),
    _("MatMulInteger", [np.empty((2, 4, 6), np.uint8), FACTOR, byte(2), ZEROS], {0, 1, 2}),
    _("MatMulIntegerToFloat", [np.empty((2, 4, 6), np.uint8), FACTOR, number(0.1), OF_COLUMNS,
                               byte(2), ZEROS, weights(8)], {0, 1, 2}, MS),
    _("DynamicQuantizeMatMul", [(2, 4, 6), FACTOR, OF_COLUMNS, ZEROS, weights(8)], {2}, MS),
    _("DynamicQuantizeMatMul", [(2, 4, 6), FACTOR, number(0.1), "", ""], {2}, MS),
    _("QGemm", [np.empty((4, 6), np.uint8), number(0.1), byte(2), FACTOR, OF_COLUMNS, ZEROS,
                ("constant", np.arange(8, dtype=np.int32)), number(0.05), byte(99)], {0, 1}, MS),
    _("QGemm", [np.empty((6, 4), np.uint8), number(0.1), byte(2),
                ("constant", FACTOR[1].T.copy()), number(0.1), ("constant", np.int8(3)),
                ("constant", np.arange(32, dtype=np.int32).reshape(4, 8))], {0, 1}, MS, transA=1,
      transB=1),
    _("MatMulNBits", [(2, 4, 32), PACKED, weights(16)], {0, 1}, MS, K=32, N=8, bits=4,
      block_size=16),
    _("Not", [TRUTHS], {0, 1, 2}),
    _("BitwiseNot", [BYTES], {0, 1, 2}),
    *(_(kind, [SHAPE, (6, 1)], {0, 1, 2}) for kind in BINARY.split()),
    _("Add", [(1, 8), SHAPE], {0, 1, 2}),
    _("Mod", [SHAPE, (8,)], {0, 1, 2}, fmod=1),
    *(_(kind, [TRUTHS, TRUTHS], {0, 1, 2}) for kind in ("And", "Or", "Xor")),
    *(_(f"Bitwise{kind}", [BYTES, BYTES], {0, 1, 2}) for kind in ("And", "Or", "Xor")),
    _("BitShift", [BYTES, BYTES], {0, 1, 2}, direction="LEFT"),
    _("Where", [TRUTHS, SHAPE, (1,)], {0, 1, 2}),
    _("Gelu", [SHAPE], {0, 1, 2}, MS),
    _("QuickGelu", [SHAPE], {0, 1, 2}, MS),
    _("FastGelu", [SHAPE, weights(8)], {0, 1, 2}, MS),
    _("BiasGelu", [SHAPE, weights(8)], {0, 1, 2}, MS),
    *(_(kind, [SHAPE], {0, 2}, axis=1) for kind in ("Hardmax", "LogSoftmax", "Softmax")),
    _("Softmax", [SHAPE], {0}, opset=12),
    _("LpNormalization", [SHAPE], {0, 2}, axis=1),
    _("TopK", [SHAPE, ints(3)], {0, 2}, axis=1, outputs=2),
    _("CumSum", [SHAPE, ints(1)], {0, 2}),
    _("LayerNormalization", [SHAPE, weights(8), weights(8)], {0, 1}),
    _("SimplifiedLayerNormalization", [SHAPE, weights(8)], {0, 1}),
    _("RMSNormalization", [SHAPE, weights(8)], {0, 1}, opset=23),
    _("SkipLayerNormalization", [SHAPE, SHAPE, weights(8), weights(8)], {0, 1}, MS),
    _("SkipSimplifiedLayerNormalization", [SHAPE, SHAPE, weights(8)], {0, 1}, MS),
    _("BatchNormalization", [IMAGE, *(("constant", np.ones(3, F)) for _ in range(4))], {0, 2, 3}),
    _("BatchNormalization", [IMAGE, *(("constant", np.ones(IMAGE[1:], F)) for _ in range(4))], {0},
      opset=8, spatial=0),
    _("LRN", [IMAGE], {0, 2, 3}, size=3),
    _("GroupNormalization", [(2, 4, 6, 5), weights(4), weights(4)], {0}, num_groups=2),
    _("Col2Im", [(2, 18, 12), ints(5, 6), ints(3, 3)], {0}),
    _("InstanceNormalization", [IMAGE, weights(3), weights(3)], {0}),
    _("GlobalAveragePool", [IMAGE], {0, 1}),
    _("GlobalMaxPool", [IMAGE], {0, 1}),
    _("MatMul", [(2, 4, 6), (2, 6, 8)], {0, 1, 2}),
    _("MatMul", [(5, 2, 4, 6), weights(6, 8)], {0, 1, 2, 3}),
    _("MatMul", [(6,), (2, 6, 8)], {0, 1}),
    _("MatMul", [(2, 4, 6), (6,)], {0, 1}),
    _("FusedMatMul", [(2, 6, 4), (2, 8, 6)], {0, 1, 2}, MS, transA=1, transB=1, alpha=0.5),
    _("FusedMatMul", [(4, 2, 3, 6), (5, 2, 3, 6)], {0, 1, 2, 3}, MS, transBatchA=1, transBatchB=1,
      transB=1),
    _("FusedMatMul", [(6, 2, 3, 4), (2, 3, 6, 8)], {0, 1, 2, 3}, MS, transBatchA=1, transA=1),
    _("FusedMatMul", [(2, 3, 4, 6), (6, 2, 3, 8)], {0, 1, 2, 3}, MS, transBatchB=1),
    _("Gemm", [(4, 6), weights(6, 8), weights(8)], {0, 1}),
    _("Gemm", [(6, 4), weights(8, 6), (4, 1)], {0, 1}, transA=1, transB=1),
    _("FusedGemm", [(4, 6), weights(6, 8), weights(8)], {0, 1}, MS, activation="Relu"),
    _("Einsum", [(2, 4, 6), (2, 3, 6)], {0, 1, 2}, equation="bid,bjd->ijb"),
    _("Einsum", [(2, 4, 1), (4, 6)], {0, 1, 2}, equation="b i d , i d -> d b i"),
    _("Einsum", [(4, 4, 6), (6, 3)], {1}, equation="iid,dj->ij"),
    _("Einsum", [(4, 6), (6, 3)], set(), equation="...d,dj->...j"),
    _("Attention", [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), (5, 7)], {0, 1, 2}, opset=23),
    _("Attention", [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), (1, 4, 5, 7)], {0, 1, 2}, opset=23),
    _("Attention", [(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)], {0, 1}, opset=23, is_causal=1),
    _("Attention", [(2, 5, 32), (2, 7, 16), (2, 7, 16), (2, 1, 5, 7)], {0, 1}, opset=23,
      q_num_heads=4, kv_num_heads=2),
    _("MultiHeadAttention", [(2, 5, 32), (2, 7, 32), (2, 7, 32), weights(96), "", (1, 4, 5, 7)],
      {0, 1}, MS, num_heads=4),
    _("MultiHeadAttention", [(2, 5, 32), (2, 7, 32), (2, 7, 32), "",
                             ("constant", np.ones((2, 7), np.int32))], {0, 1}, MS, num_heads=4),
    _("MultiHeadAttention", [(2, 5, 32), (2, 5, 32), (2, 5, 32)], {0}, MS, num_heads=4,
      unidirectional=1),
    _("Attention", [(2, 5, 8), weights(8, 24), weights(24),
                    ("constant", np.ones((2, 5), np.int32))], {0}, MS, num_heads=2),
    _("Attention", [(2, 5, 8), weights(8, 24), weights(24),
                    ("constant", np.ones(2, np.int32))], set(), MS, num_heads=2),
    _("GroupQueryAttention", [(2, 5, 64), (2, 5, 32), (2, 5, 32), "", "",
                              ("constant", np.full(2, 4, np.int32)),
                              ("constant", np.int32(5))], {0}, MS, num_heads=4, kv_num_heads=2,
      outputs=3),
    _("EmbedLayerNormalization", [np.zeros((2, 5), np.int32), np.zeros((2, 5), np.int32),
                                  weights(9, 8), weights(6, 8), weights(7, 8), weights(8),
                                  weights(8), np.zeros((2, 5), np.int32)], {0}, MS, outputs=2),
    _("RotaryEmbedding", [(2, 3, 5, 8), weights(9, 4), weights(9, 4), np.zeros((2, 5), I64)], {0},
      opset=23),
    _("RotaryEmbedding", [(2, 5, 24), (2, 5, 4), (2, 5, 4)], {0}, num_heads=3, opset=23),
    _("RotaryEmbedding", [(2, 3, 5, 8), np.zeros((2, 5), I64), weights(9, 4), weights(9, 4)], {0},
      MS),
    _("RotaryEmbedding", [(2, 3, 5, 8), ints(2), weights(9, 4), weights(9, 4)], {0}, MS),
    _("Det", [(4, 6, 3, 3)], {0, 1}),
    _("Trilu", [SHAPE], {0}, upper=0),
    _("Trilu", [(2, *SHAPE), ("constant", I64(1))], {0, 1}, MS),
    _("DFT", [(4, 6, 8, 1), "", ("constant", I64(-3))], {0, 2}),
    _("DFT", [(4, 6, 8, 2)], {0, 2}, opset=17, axis=1),
    *(_(kind, [IMAGE], {0, 1}, **more) for kind, more in (("GlobalLpPool", {}),
      ("LpPool", {"kernel_shape": [3, 3]}))),
    _("LabelEncoder", [np.zeros((4, 6), I64)], {0, 1}, ML, keys_int64s=[0, 1, 2, 3],
      values_int64s=[7, 5, 3, 1]),
    _("Binarizer", [(4, 6)], {0}, ML, threshold=0.5),
    # Of these onnxruntime infers no sizes: rewrite/test_own_rows_drawn.py asks them for rows.
    _("Imputer", [(4, 2)], set(), ML, imputed_value_floats=[0.5, 0.7], replaced_value_float=0.3),
    _("Scaler", [(4, 2)], set(), ML, offset=[0.5, 0.7], scale=[2.0, 3.0]),
    _("Normalizer", [(4, 6)], set(), ML, norm="L2"),
    _("LinearRegressor", [(4, 3)], set(), ML, coefficients=[0.5, -1.0, 2.0], intercepts=[0.25]),
    _("LinearClassifier", [(4, 3)], {0}, ML, coefficients=[0.5, -1.0, 2.0, 1.0, 0.5, -2.0],
      intercepts=[0.25, 0.1], classlabels_ints=[3, 5], outputs=2),
    _("SVMRegressor", [(4, 2)], set(), ML, coefficients=[1.0, -0.5], kernel_type="RBF",
      kernel_params=[0.5, 0.0, 3.0], n_supports=2, rho=[0.1],
      support_vectors=[0.1, 0.9, 0.5, 0.3]),
    _("TreeEnsembleRegressor", [(4, 2)], {0}, ML, **TREE, n_targets=1, target_ids=[0, 0],
      target_nodeids=[1, 2], target_treeids=[0, 0], target_weights=[2.0, 5.0]),
    _("TreeEnsembleClassifier", [(4, 2)], {0}, ML, **TREE, class_ids=[0, 1],
      class_nodeids=[1, 2], class_treeids=[0, 0], class_weights=[2.0, 5.0],
      classlabels_int64s=[4, 9], outputs=2),
    *(_(f"Reduce{kind}", [SHAPE, ints(1)], {0, 2}) for kind in REDUCE.split()),
    _("ReduceSum", [SHAPE, ints(-2)], {0, 1}, keepdims=0),
    _("ReduceMean", [SHAPE], {0, 1}, axes=[1], keepdims=0, opset=13),
    _("ArgMax", [SHAPE], {0, 2}, axis=1),
    _("ArgMin", [SHAPE], {0, 1}, axis=1, keepdims=0),
    _("Conv", [*CONV, weights(4)], {0, 2, 3}, pads=[1, 2, 1, 0]),
    _("Conv", CONV, {0, 2, 3}, strides=[2, 3], auto_pad="SAME_UPPER"),
    _("Conv", CONV, {0, 2, 3}, auto_pad="VALID"),
    _("Conv", [IMAGE, weights(4, 3, 1, 1)], {0}, strides=[5, 4], auto_pad="SAME_UPPER"),
    _("Conv", [(1, 2, 9), weights(3, 2, 4)], {2}, pads=[2, 1]),
    _("QLinearConv", QUANTISED, {0, 2, 3}, pads=[1, 2, 1, 0]),
    _("QLinearConv", QUANTISED_LAST, {0, 1, 2}, MS, pads=[1, 2, 1, 0], strides=[2, 1],
      channels_last=1),
    _("ConvInteger", [BYTE_IMAGE, ("constant", np.arange(108, dtype=np.uint8).reshape(4, 3, 3, 3)),
                      byte(2)], {0, 2, 3}, pads=[1, 2, 1, 0]),
    _("QLinearAveragePool", [BYTE_IMAGE, *RESCALED], {0, 1, 2, 3}, MS, kernel_shape=[3, 2],
      strides=[2, 1], pads=[1] * 4),
    _("QLinearAveragePool", [PIXELS, *RESCALED], {0, 1, 2, 3}, MS, kernel_shape=[3, 3],
      pads=[1] * 4, count_include_pad=1, channels_last=1),
    _("QLinearAveragePool", [PIXELS, *RESCALED], set(), MS, kernel_shape=[3, 3], strides=[2, 2],
      auto_pad="SAME_UPPER", channels_last=1),
    _("NhwcMaxPool", [PIXELS], {0, 1, 2, 3}, MS, kernel_shape=[3, 3], strides=[2, 2],
      pads=[1] * 4),
    _("NhwcMaxPool", [PIXELS], set(), MS, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    _("QLinearConv", QUANTISED, {0, 2, 3}, strides=[2, 3], auto_pad="SAME_UPPER"),
    _("FusedConv", [*CONV, weights(4)], {0, 2, 3}, MS, pads=[1] * 4, activation="Relu"),
    _("MaxPool", [IMAGE], {0, 1, 2, 3}, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    _("MaxPool", [IMAGE], {0, 1, 2, 3}, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    # Padding as wide as the window; dilations that padding goes without.
    _("MaxPool", [(2, 2, 8, 7)], set(), kernel_shape=[1, 2], strides=[3, 3], dilations=[2, 2],
      ceil_mode=1),
    _("MaxPool", [(2, 2, 7, 7)], {0, 1, 2, 3}, kernel_shape=[1, 3], strides=[1, 2],
      pads=[0, 1, 0, 1], ceil_mode=1),
    _("MaxPool", [IMAGE], set(), kernel_shape=[3, 3], dilations=[2, 1], auto_pad="SAME_UPPER"),
    _("AveragePool", [IMAGE], {0, 1, 2, 3}, kernel_shape=[3, 2], strides=[2, 1], pads=[1] * 4),
    _("AveragePool", [IMAGE], {0, 1, 2, 3}, kernel_shape=[3, 3], pads=[1] * 4,
      count_include_pad=1),
    _("AveragePool", [IMAGE], {0, 1}, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4,
      ceil_mode=1, count_include_pad=1),
    _("ConvTranspose", [IMAGE, weights(3, 4, 2, 2)], {0, 2, 3}, strides=[2, 2]),
    _("ConvTranspose", [IMAGE, weights(3, 4, 3, 4), weights(4)], {0, 2, 3}, strides=[2, 3],
      pads=[1, 0, 1, 2], output_padding=[1, 0]),
    _("ConvTranspose", [IMAGE, weights(3, 4, 3, 3)], {0, 2, 3}, dilations=[2, 1]),
    _("Resize", [IMAGE, "", ("constant", np.array([1, 1, 2, 2], F))], {0, 1, 2, 3},
      mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    _("Resize", [IMAGE, "", ("constant", np.array([1, 1, 2, 3], F))], {0, 1, 2, 3}, mode="linear"),
    _("Resize", [IMAGE, "", "", ints(2, 3, 24, 10)], {0, 1, 2, 3}, mode="cubic"),
    _("Resize", [IMAGE, "", "", ints(2, 3, 24, 15)], {0, 1, 2},
      coordinate_transformation_mode="pytorch_half_pixel"),
    _("Resize", [IMAGE, "", ("constant", np.array([1, 1, 2, 1], F))], {0, 1, 3}, mode="linear",
      coordinate_transformation_mode="align_corners"),
    # Rows lie by the scale, which is not by how much the sizes grow.
    _("Resize", [IMAGE, "", ("constant", np.array([1, 1, 2.05, 1.05], F))], {0, 1}),
    _("Upsample", [IMAGE, ("constant", np.array([1, 1, 2, 2], F))], {0, 1, 2, 3}, opset=9),
    _("DepthToSpace", [(2, 8, 3, 4)], {0, 2, 3}, blocksize=2, mode="CRD"),
    _("SpaceToDepth", [(2, 3, 6, 4)], {0, 2, 3}, blocksize=2),
    _("Gather", [SHAPE, ints(3, 1, 1)], {0, 1, 2}, axis=1),
    _("Gather", [SHAPE, ("constant", I64(2))], {0, 1}, axis=1),
    _("Gather", [(9, 4), np.zeros((2, 5), I64)], {0, 1, 2}),
    _("GatherBlockQuantized", [("constant", np.arange(9 * 16, dtype=np.uint8).reshape(9, 16)),
                               np.zeros((2, 5), I64), weights(9, 2)], {0, 1}, MS, bits=4,
      block_size=16, quantize_axis=1),
    _("GatherElements", [(5, 7, 8), np.ones((4, 2, 8), I64)], {0, 2}, axis=1),
    _("ScatterElements", [(5, 7, 8), np.ones((5, 2, 8), I64), (5, 2, 8)], {0, 2}, axis=1,
      reduction="add"),
    _("GatherND", [(4, 6, 8), ("constant", np.zeros((4, 3, 1), I64))], {0, 1, 2}, batch_dims=1),
    _("GatherND", [(5, 5, 6, 8), np.zeros((5, 2), I64)], {0, 1, 2}, MS),
    _("ScatterND", [SHAPE, ("constant", np.array([[2], [0]])), (2, 6, 8)], {1, 2}),
    _("ScatterND", [SHAPE, ("constant", np.array([[[2, 1], [0, 3]]])), (1, 2, 8)], {2}),
    _("OneHot", [np.zeros((4, 6), I64), ints(5), ("constant", np.array([0, 1], F))], {0, 2},
      axis=1),
    _("ReverseSequence", [SHAPE, ("constant", np.array([3, 1, 2, 4]))], {0, 2}, time_axis=1,
      batch_axis=0),
    _("GridSample", [IMAGE, (2, 6, 4, 2)], {0, 1, 2, 3}),
    _("RoiAlign", [IMAGE, (4, 4), ("constant", np.array([0, 1, 0, 1]))], {0, 1}, output_height=2,
      output_width=2),
    _("Reshape", [SHAPE, ints(4, 2, 3, 8)], {0, 1, 3}),
    _("Reshape", [SHAPE, ints(0, -1)], {0, 1}),
    _("Reshape", [(1, 6, 8), ints(6, 2, 4)], {0, 1}),
    _("Reshape", [(4, 6, 0), ints(4, 2, 3, 0)], set(), allowzero=1),
    _("Flatten", [SHAPE], {0, 1}),
    _("Squeeze", [(1, 4, 1, 6), ints(0, 2)], {0, 1}),
    _("Squeeze", [(1, 4, 1, 6)], set()),
    _("Unsqueeze", [(4, 6), ints(0)], {1, 2}),
    _("Transpose", [SHAPE], {0, 1, 2}, perm=[2, 0, 1]),
    _("Transpose", [SHAPE], {0, 1, 2}),
    _("Concat", [SHAPE, (4, 3, 8), (4, 1, 8)], {0, 1, 2}, axis=1),
    _("Concat", [(2, 3), (7, 3)], {0, 1}, axis=-2),
    _("QLinearConcat", [number(0.2), byte(9), BYTES, number(0.1), byte(1),
                        np.empty((4, 3, 8), np.uint8), number(0.3), byte(2),
                        np.empty((4, 1, 8), np.uint8), number(0.2), byte(9)], {0, 1, 2}, MS,
      axis=1),
    _("Split", [SHAPE], {0, 2}, axis=1, num_outputs=2, outputs=2),
    _("Slice", [SHAPE, ints(1), ints(5), ints(1)], {0, 1, 2}),
    _("Slice", [(9, 7), ints(-8, 1), ints(100, -1), ints(0, -1), ints(3, 2)], {0, 1}),
    _("Slice", [SHAPE, ints(-100), ints(5), ints(1)], {0, 1, 2}),
    _("Slice", [(9, 7), ints(-12, -20), ints(6, 100), ints(0, 1)], {0, 1}),
    _("Slice", [SHAPE, ints(5, 1), ints(0, 4), ints(1, 2), ints(-1, 1)], {0, 2}),
    _("Slice", [SHAPE, ("constant", np.int32([2])), ("constant", np.int32([9]))], {0, 1, 2}),
    _("Slice", [SHAPE], {0, 1, 2}, starts=[1, -4], ends=[3, 9], axes=[0, 2], opset=9),
    _("Pad", [SHAPE, ints(0, 1, 0, 0, 2, 0)], {0, 1, 2}),
    _("Pad", [SHAPE, ints(3, 9), ("constant", F(0.5)), ints(1)], {0, 1, 2}),
    _("Pad", [SHAPE, ints(3, 0, 2, 1, 5, 7)], {0, 1, 2}, mode="reflect"),
    _("Pad", [(4, 3), ints(9, 0, 5, 2)], {0, 1}, mode="edge"),
    _("Pad", [SHAPE, ints(0, 1, 0, 0, -1, 2)], {0, 2}),
    _("Pad", [SHAPE, ints(0, 1, 0, 0, 1, 0)], {0, 2}, mode="wrap"),
    _("Pad", [SHAPE], {0, 1, 2}, pads=[0, 3, 0, 0, 1, 2], opset=9),
    _("Expand", [(6, 1), ints(4, 6, 8)], {0, 1, 2}),
    _("Tile", [SHAPE, ints(1, 2, 1)], {0, 2}),
)  # fmt: skip


def blocked_net() -> onnx.ModelProto:
    """Convolutions, pooling and resizing that onnxruntime lays out in blocks of channels."""
    text = """g (float[2, 16, 12, 10] x) => (float[2, 16, 1, 1] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, w)
        d = AveragePool <kernel_shape = [3, 2], pads = [1, 0, 1, 1]> (c)
        e = Conv <pads = [1, 1, 1, 1]> (d, w)
        f = Resize <coordinate_transformation_mode = "asymmetric", mode = "nearest",
                    nearest_mode = "floor"> (e, , s)
        h = Conv <pads = [2, 2, 2, 2], dilations = [2, 2]> (f, w)
        i = Add (h, f)
        k = MaxPool <kernel_shape = [2, 2]> (i)
        l = GlobalAveragePool (k)
        m = GlobalMaxPool (k)
        n = Add (l, m)
        y = Conv <pads = [1, 1, 1, 1]> (n, w)
    }"""
    model = parse(text)
    scales = np.array([1, 1, 2, 2], F)
    model.graph.initializer.append(numpy_helper.from_array(weights(16, 16, 3, 3)[1], "w"))
    model.graph.initializer.append(numpy_helper.from_array(scales, "s"))
    return model
