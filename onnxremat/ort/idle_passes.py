"""Passes of onnxruntime's optimiser that find nothing in a large graph, and so are left out.

At load onnxruntime walks the graph some sixty times, each time looking for a pattern of its own:
of a training step of 15,000 ops every walk takes 0.1 s, whatever it finds (it sorts the nodes, and
searches a list of those that are ready for each). A pass whose ops the
graph does not have changes nothing: what is run and saved without it is the same, byte for byte
(numbers in the names of reordered blocks aside, which onnxruntime draws anew at every load).

Source: ``onnxruntime/core/optimizer`` (``graph_transformer_utils.cc`` lists the passes).
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from onnxremat.graph.ir import all_nodes

MANY = 2000  # nodes from which a walk is worth sparing

# Parts of the names of ops without any of which the passes change nothing; what an earlier pass
# makes of others (a LayerNormalization of a ReduceMean) counts as these.
_QUANTIZED = ("uantize", "Quant", "QLinear", "Integer", "NBits")
_NORMS = ("Norm", "ReduceMean")
_CONVS = ("Conv", "Pool")
_PASSES: dict[tuple[str, ...], tuple[str, ...]] = {
    _QUANTIZED: (
        "EnsureUniqueDQForNodeUnit", "DoubleQDQPairsRemover", "QDQPropagationTransformer",
        "WeightBiasQuantization", "WhereDummyDq", "QDQS8ToU8Transformer",
        "QDQSelectorActionTransformer", "QDQFinalCleanupTransformer", "MatMulIntegerToFloatFusion",
        "DynamicQuantizeMatMulFusion", "MatMulNBitsFusion",
    ),
    _NORMS: (
        "LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion",
        "SkipLayerNormFusion", "BiasSkipLayerNormFusion", "EmbedLayerNormFusion",
    ),
    (*_NORMS, "/Softmax", "Attention"): (
        "AttentionFusion", "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion",
    ),
    (*_CONVS, *_QUANTIZED): (
        "ConvActivationFusion", "ConvAddActivationFusion", "NchwcTransformer", "NhwcTransformer",
    ),
    ("/Slice",): ("SliceConcatToSpaceToDepthFusion",),
    ("/Slice", "/Gather"): ("GatherSliceToSplitFusion", "GatherToSliceFusion"),
    ("Erf", "Gelu"): ("GeluFusionL1", "GeluFusionL2"),
    ("Erf", "Gelu", "Tanh"): ("BiasGeluFusion", "FastGeluFusion"),
    ("Sigmoid", "Gelu"): ("QuickGeluFusion",),
    ("/Softmax",): ("BiasSoftmaxFusion",),
    ("Dropout",): ("BiasDropoutFusion",),
    ("MatMul", "Gemm"): (
        "MatMulAddFusion", "MatMulScaleFusion", "MatMulActivationFusion", "GemmActivationFusion",
    ),
    ("/Transpose",): ("MatmulTransposeFusion",),
    ("/Transpose", *_CONVS, *_QUANTIZED): (
        "TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider",
    ),
    ("/Reshape",): ("ReshapeFusion",),
}  # fmt: skip
# Ops that onnxruntime may write out in others as it loads them.
_WRITTEN_OUT = (
    "AffineGrid", "Attention", "CausalConvWithState", "CenterCropPad", "GroupNormalization",
    "LinearAttention", "MeanVarianceNormalization", "NegativeLogLikelihoodLoss",
    "RMSNormalization", "RotaryEmbedding", "SequenceMap", "SoftmaxCrossEntropyLoss", "SwiGLU",
    "Swish",
)  # fmt: skip


def idle_passes(model: onnx.ModelProto) -> list[str]:
    """Names of passes that are known to change nothing in a model of many nodes, for
    ``disabled_optimizers`` of a session; none for a small one."""
    if len(model.graph.node) < MANY:
        return []
    there = {node.op_type for node in _nodes(model)}
    if not there.isdisjoint(_WRITTEN_OUT):
        return []
    return [name for ops, names in _PASSES.items() if not _any_of(ops, there) for name in names]


def _nodes(model: onnx.ModelProto) -> Iterable[onnx.NodeProto]:
    yield from all_nodes(model.graph)
    for function in model.functions:
        yield from all_nodes(function)


def _any_of(parts: tuple[str, ...], there: set[str]) -> bool:
    """Whether one of the ops has one of these in its name; ``/`` stands for where a name begins,
    and such a one for the whole name."""
    whole = {part[1:] for part in parts if part.startswith("/")}
    words = [part for part in parts if not part.startswith("/")]
    return not whole.isdisjoint(there) or any(word in op for op in there for word in words)
