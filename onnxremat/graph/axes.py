"""How operators split along axes: one row per operator, nothing else knows.

A row says how rows of an output are made of rows of the inputs. What is not listed computes all of
its output at once. ``tests/graph/test_axes.py`` has a case for every row: it splits the operator,
runs the parts on onnxruntime and compares what they make with the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxremat.graph import axis_attention as attending
from onnxremat.graph import axis_layouts as layouts
from onnxremat.graph import axis_places as places
from onnxremat.graph import axis_products as products
from onnxremat.graph import axis_quantised as quantised
from onnxremat.graph import axis_windows as windows
from onnxremat.graph.axis_sums import TOTALS, Total, require_join
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.spans import CannotSplitError, Facts, Piece, Rule, Span
from onnxremat.graph.traits import ONNX, has_bodies, is_random

ML, MS, BLOCKED = "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"


@dataclass(frozen=True)
class Row:
    """What is known of an operator.

    Attributes:
        kind: how its axes relate, for people: ``free``, ``window``, ``reduction``, ``index``,
            ``layout``.
        axes: which of its output's axes can be split, for people.
        rule: what a stretch of its output takes.
    """

    kind: str
    axes: str
    rule: Rule


def _rows(kind: str, axes: str, rule: Rule, names: str, domain: str = "") -> Table:
    return {(domain, name): Row(kind, axes, rule) for name in names.split()}


Table = dict[tuple[str, str], Row]

_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Dropout Elu Erf "
    "Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not PRelu "
    "Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh "
    "ThresholdedRelu"
)
_BINARY = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
    "LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where Xor"
)
_REDUCE = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)
TABLE: Table = {
    **_rows("free", "every axis", products.pointwise, _UNARY),
    **_rows("free", "every axis; broadcast inputs whole", products.pointwise, _BINARY),
    **_rows("free", "every axis; a bias whole", products.pointwise,
            "BiasGelu FastGelu Gelu QuickGelu", MS),
    **_rows("free", "every axis; scales of an axis along it", quantised.scaled,
            "DequantizeLinear QuantizeLinear"),
    **_rows("free", "every axis; broadcast inputs whole", products.pointwise,
            "QLinearAdd QLinearMul QLinearWhere", MS),
    **_rows("free", "every axis", products.leading, "QLinearLeakyRelu QLinearSigmoid", MS),
    **_rows("free", "all but the axis it sums along", quantised.softmax, "QLinearSoftmax", MS),
    **_rows("free", "batch and channels", quantised.images, "QLinearGlobalAveragePool", MS),
    **_rows("free", "rows of A, columns of B, and batch axes", quantised.product, "QLinearMatMul"),
    **_rows("free", "rows of A, columns of B, and batch axes", quantised.integer_product,
            "MatMulInteger"),
    **_rows("free", "rows of A, columns of B, and batch axes", quantised.product_to_float,
            "MatMulIntegerToFloat", MS),
    **_rows("free", "columns of B", quantised.rescaled_product, "DynamicQuantizeMatMul", MS),
    **_rows("free", "rows of A, columns of B", quantised.general_product, "QGemm", MS),
    **_rows("free", "rows of A, and batch axes", quantised.few_bits_product, "MatMulNBits", MS),
    **_rows("free", "all but the axis it sums along", products.softmax,
            "Hardmax LogSoftmax Softmax"),
    **_rows("free", "all but its axis", products.one_axis, "LpNormalization TopK"),
    **_rows("free", "all but its axis", products.cumulated, "CumSum"),
    **_rows("free", "axes before those it normalises", products.normalised,
            "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    **_rows("free", "all but the last axis", products.skip_normalised,
            "SkipLayerNormalization SkipSimplifiedLayerNormalization", MS),
    **_rows("free", "all but the channels", products.but_channels, "BatchNormalization LRN"),
    **_rows("free", "the batch", products.batch_alone,
            "Col2Im GroupNormalization InstanceNormalization"),
    **_rows("free", "batch and channels", products.images,
            "GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool"),
    **_rows("free", "the batch", products.batch_alone, "GlobalAveragePool GlobalMaxPool", BLOCKED),
    **_rows("free", "rows of A, columns of B, and batch axes", products.product, "MatMul"),
    **_rows("free", "rows of A, columns of B, and batch axes", products.product, "FusedMatMul", MS),
    **_rows("free", "rows of A, columns of B", products.general_product, "Gemm"),
    **_rows("free", "rows of A, columns of B", products.general_product, "FusedGemm", MS),
    **_rows("free", "every axis that is named", products.contracted, "Einsum"),
    **_rows("free", "batch, heads, queries", attending.attention, "Attention"),
    **_rows("free", "batch, queries", attending.many_heads, "MultiHeadAttention", MS),
    **_rows("free", "the batch", attending.packed, "Attention", MS),
    **_rows("free", "the batch", attending.grouped, "GroupQueryAttention", MS),
    **_rows("free", "the batch", attending.embedded, "EmbedLayerNormalization", MS),
    **_rows("free", "the batch", attending.turned, "RotaryEmbedding"),
    **_rows("free", "the batch", attending.turned_at, "RotaryEmbedding", MS),
    **_rows("free", "every axis", products.pointwise, "LabelEncoder", ML),
    **_rows("free", "samples", places.samples,
            "Binarizer Imputer LinearClassifier LinearRegressor Normalizer SVMRegressor Scaler "
            "TreeEnsembleClassifier TreeEnsembleRegressor", ML),
    **_rows("free", "axes of the matrices", places.determinants, "Det"),
    **_rows("free", "axes before those of a matrix", places.triangle, "Trilu"),
    **_rows("free", "axes before those of a matrix", places.triangle, "Trilu", MS),
    **_rows("free", "all but its axis and the last", places.transformed, "DFT"),
    **_rows("reduction", "axes that are left", products.reduction, _REDUCE),
    **_rows("reduction", "axes that are left", products.best_index, "ArgMax ArgMin"),
    **_rows("window", "batch and spatial axes", windows.convolution, "Conv"),
    **_rows("window", "batch and spatial axes", windows.convolution, "FusedConv", MS),
    **_rows("window", "batch and spatial axes", windows.convolution, "Conv", BLOCKED),
    **_rows("window", "batch and spatial axes", quantised.convolution,
            "ConvInteger QLinearConv"),
    **_rows("window", "batch and spatial axes", quantised.convolution, "QLinearConv", MS),
    **_rows("window", "batch, channels and spatial axes", quantised.pooled, "QLinearAveragePool",
            MS),
    **_rows("window", "batch, channels and spatial axes", quantised.pooled_pixels, "NhwcMaxPool",
            MS),
    **_rows("window", "batch, channels and spatial axes", windows.pooling, "AveragePool MaxPool"),
    **_rows("window", "batch and spatial axes", windows.pooled_blocks, "AveragePool MaxPool",
            BLOCKED),
    **_rows("window", "batch and spatial axes", windows.transposed, "ConvTranspose"),
    **_rows("window", "axes that grow by a whole factor", windows.resized, "Resize Upsample"),
    **_rows("window", "batch and spatial axes", windows.resized_blocks, "Upsample", BLOCKED),
    **_rows("window", "batch and spatial axes", windows.depth_to_space, "DepthToSpace"),
    **_rows("window", "batch and spatial axes", windows.space_to_depth, "SpaceToDepth"),
    **_rows("index", "axes of the indices, and of the data beside its axis", layouts.gathered,
            "Gather"),
    **_rows("index", "axes of the indices", quantised.looked_up, "GatherBlockQuantized", MS),
    **_rows("index", "all but its axis", layouts.gathered_elements, "GatherElements"),
    **_rows("index", "all but its axis", layouts.scattered_elements, "ScatterElements"),
    **_rows("index", "axes of the indices, and of the data beside those looked up in",
            places.gathered_at, "GatherND"),
    **_rows("index", "axes of the indices, and of the data beside those looked up in",
            places.gathered_at, "GatherND", MS),
    **_rows("index", "axes that are not looked up in", places.scattered_at, "ScatterND"),
    **_rows("index", "axes of the indices", places.one_hot, "OneHot"),
    **_rows("index", "all but the one it reverses", places.reversed_rows, "ReverseSequence"),
    **_rows("index", "every axis", places.sampled, "GridSample"),
    **_rows("index", "regions, channels", places.regions, "RoiAlign"),
    **_rows("layout", "axes that lead a group of equal size", layouts.reshaped,
            "Flatten Reshape Squeeze Unsqueeze"),
    **_rows("layout", "every axis", layouts.transposed_axes, "Transpose"),
    **_rows("layout", "every axis", layouts.joined, "Concat"),
    **_rows("layout", "every axis", quantised.joined, "QLinearConcat", MS),
    **_rows("layout", "all but its axis", layouts.parted, "Split"),
    **_rows("layout", "axes that it does not read backwards", layouts.sliced, "Slice"),
    **_rows("layout", "axes that it does not wrap around or shorten", layouts.padded, "Pad"),
    **_rows("layout", "every axis", layouts.expanded, "Expand"),
    **_rows("layout", "axes that are there once", layouts.repeated, "Tile"),
    **_rows("layout", "batch and spatial axes", layouts.into_blocks, "ReorderInput", BLOCKED),
    **_rows("layout", "batch and spatial axes", layouts.out_of_blocks, "ReorderOutput", BLOCKED),
}  # fmt: skip


def row_of(op: Op) -> Row | None:
    """What is known of an op, None for one that computes its output at once."""
    return TABLE.get(("" if op.domain in ONNX else op.domain, op.op_type))


def piece_of(op: Op, facts: Facts, span: Span) -> Piece:
    """How an op computes a stretch of its outputs.

    Raises:
        CannotSplitError: it does not, along this axis.
    """
    key = op.name, span
    if key not in facts.pieces:
        row = row_of(op)
        if row is None or has_bodies(op) or is_random(op):
            raise CannotSplitError(f"no rule splits {op.op_type}")
        facts.remember(key, row.rule(facts.call(op), span))
    return facts.pieces[key]


def total_of(op: Op) -> Total | None:
    """How an op sums over an axis in parts, None for one that does not."""
    return TOTALS.get(("" if op.domain in ONNX else op.domain, op.op_type))


def partial_of(op: Op, facts: Facts, span: Span) -> Piece:
    """How an op computes its output from a stretch of its first input, one part of a sum.

    Raises:
        CannotSplitError: it does not, along this axis.
    """
    total = total_of(op)
    if total is None:
        raise CannotSplitError(f"{op.op_type} is no sum")
    require_join(total, facts.opset, facts.graph.tensors[op.outputs[0]].dtype)
    return total.rule(facts.call(op), span)


def blocked_values(graph: Graph) -> frozenset[str]:
    """Values whose channels lie in blocks of the processor's convolutions, whatever their shape
    says: a block's channels are innermost."""
    found: set[str] = set()
    for op in graph.ops:
        inputs = [n for n in op.inputs if n and n in graph.producer]
        if op.domain == BLOCKED:
            inside = op.op_type != "ReorderOutput"
        else:
            inside = bool(inputs) and all(n in found for n in inputs)
        if inside:
            found.update(op.writes)
    return frozenset(found)
