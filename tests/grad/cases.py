"""Nodes whose rules are checked: at least one per rule in the registry."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.grad.checking import Case, Fixed
from tests.grad.control_cases import CONTROL
from tests.grad.draws import Draw, apart, generator, inside, normal, positive


def ints(*values: int) -> Fixed:
    return Fixed(np.array(values, np.int64))


def fixed(value: Any) -> Fixed:
    return Fixed(value if isinstance(value, Draw) else np.asarray(value))


def packed(*shape: int) -> Draw:
    """Bytes."""
    return Draw(f"packed{shape}", lambda rng: rng.integers(0, 256, shape).astype(np.uint8))


CASES: list[Case] = []


def case(op: str, *inputs: Any, **settings: Any) -> None:
    """Register a case; what is no field of Case is an attribute of the node."""
    known = {k: settings.pop(k) for k in list(settings) if k in Case.__dataclass_fields__}
    rng = generator(known.get("domain", ""), op, inputs, settings)
    CASES.append(Case(op, tuple(_drawn(entry, rng) for entry in inputs), settings, **known))


def _drawn(entry: Any, rng: np.random.Generator) -> Any:
    if isinstance(entry, Fixed):
        return Fixed(_drawn(entry.value, rng))
    return entry.draw(rng) if isinstance(entry, Draw) else entry


# ---- arithmetic --------------------------------------------------------------------------------
for op in ("Add", "Sub", "Mul"):
    case(op, normal(2, 3), normal(2, 3), opsets=(13, 18, 22))
    case(op, normal(2, 3, 4), normal(3, 1))
    case(op, normal(4), normal(2, 3, 4))
    case(op, normal(1, 3), normal(2, 1))
    case(op, normal(), normal(2, 2))
    case(op, normal(2, 3), normal(1, 1))
case("Div", normal(2, 3), positive(2, 3), opsets=(13, 18))
case("Div", normal(3), positive(2, 3))
case("Div", normal(2, 3), positive())
case("Div", normal(2, 3), fixed(np.array(2.5)))
for exponent in (0.0, 1.0, 2.0, 3.0, 0.5, -1.5):
    case("Pow", positive(2, 3), fixed(np.array(exponent)))
case("Pow", positive(2, 3), normal(3), opsets=(13, 18))
case("Pow", positive(2, 3), normal(2, 3))
case("Pow", normal(2, 3), fixed(np.array(2.0)))
case("Pow", np.array([0.0, 2.0, -1.0]), fixed(np.array([0.0, 0.0, 0.0])))
for op in ("Min", "Max"):
    case(op, apart(2, 3), apart(2, 3) + 0.11, opsets=(13, 18))
    case(op, apart(2, 3), apart(1, 3) + 0.11, apart(2, 1) + 0.05)
    case(op, apart(5), fixed(np.array(0.1)))
    case(op, apart(5))
for op in ("Sum", "Mean"):
    case(op, normal(2, 3), normal(3), normal(2, 1), opsets=(13, 18))
    case(op, normal(2, 3))
_mask = np.array([[True, False, True], [False, True, True]])
case("Where", fixed(_mask), normal(2, 3), normal(2, 3), opsets=(13, 18))
case("Where", fixed(_mask), normal(1, 3), normal())
for op in ("Neg", "Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Atan", "Sinh", "Cosh", "Asinh"):
    case(op, normal(2, 3), opsets=(13, 18, 22))
    case(op, normal())
for op in ("Abs", "Reciprocal"):
    case(op, apart(2, 3), opsets=(13, 18))
for op in ("Sqrt", "Log"):
    case(op, positive(2, 3), opsets=(13, 18))
for op in ("Asin", "Acos", "Atanh", "Tan"):
    case(op, inside(2, 3), opsets=(18, 22))
case("Acosh", positive(2, 3) + 1.0)
case("Erf", normal(2, 3), opsets=(13, 18), tolerance=1e-4, exact=False)
case("Clip", apart(3, 4), fixed(np.array(-0.5)), fixed(np.array(0.9)), opsets=(13, 18))
case("Clip", apart(3, 4), None, fixed(np.array(0.9)))
case("Clip", apart(3, 4), fixed(np.array(-0.5)))
case("Clip", apart(3, 4))
case("Clip", apart(3, 4), np.array(-0.5), np.array(0.9))
case("Clip", apart(3, 4), np.array(0.9), np.array(-0.5))  # the upper bound everywhere
for flags in ({}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}):
    case("CumSum", normal(2, 4), fixed(np.array(1, np.int64)), opsets=(14, 18), **flags)
case("CumSum", normal(3, 2, 2), fixed(np.array(-3, np.int64)))

# ---- activations -------------------------------------------------------------------------------
for op in ("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Softplus", "Softsign", "HardSwish", "Mish"):
    versions = {"Mish": (18, 22), "Celu": (18,), "HardSwish": (18, 22)}.get(op, (14, 18, 22))
    case(op, apart(3, 4), opsets=versions)
case("LeakyRelu", apart(2, 3), alpha=-0.3)
case("LeakyRelu", apart(2, 3), alpha=0.2)
case("Elu", apart(2, 3), alpha=1.7)
case("Elu", apart(2, 3), alpha=-0.5)
case("Celu", apart(2, 3), alpha=2.0)
case("Selu", apart(2, 3), alpha=1.2, gamma=0.9)
case("Selu", apart(2, 3), alpha=-0.5, gamma=2.0)
case("PRelu", apart(2, 3, 2, 2), normal(3, 1, 1), opsets=(13, 18))
case("PRelu", apart(2, 3), normal(1))
case("ThresholdedRelu", apart(3, 4), alpha=0.4, opsets=(18, 22))
case("Shrink", apart(3, 4), lambd=0.5, bias=0.2)
case("HardSigmoid", apart(3, 4), alpha=0.3, beta=0.45, opsets=(18, 22))
case("Gelu", normal(2, 3), opsets=(20, 22), exact=False)
case("Gelu", normal(2, 3), approximate="tanh", opsets=(20, 22))
case("Swish", normal(2, 3), opsets=(24,), exact=False)
case("Swish", normal(2, 3), alpha=1.3, opsets=(24,), exact=False)
for op in ("Gelu", "QuickGelu"):
    case(op, normal(2, 3), domain="com.microsoft", exact=False)
case("BiasGelu", normal(2, 3), normal(3), domain="com.microsoft", exact=False)
case("FastGelu", normal(2, 3), normal(3), domain="com.microsoft", exact=False)
case("FastGelu", normal(2, 3), domain="com.microsoft", exact=False)

# ---- products ----------------------------------------------------------------------------------
case("MatMul", normal(2, 3), normal(3, 4), opsets=(13, 18))
case("MatMul", normal(2, 5, 3), normal(3, 4))
case("MatMul", normal(2, 2, 5, 3), normal(2, 2, 3, 4))
case("MatMul", normal(2, 1, 5, 3), normal(3, 3, 4))
case("MatMul", normal(5, 3), normal(2, 3, 4))
case("MatMul", normal(3), normal(3, 4))
case("MatMul", normal(2, 5, 3), normal(3))
case("MatMul", normal(3), normal(2, 3, 4))
case("MatMul", normal(3), normal(3))
for ta in (0, 1):
    for tb in (0, 1):
        a, b = (3, 2) if ta else (2, 3), (4, 3) if tb else (3, 4)
        case("Gemm", normal(*a), normal(*b), normal(4), transA=ta, transB=tb, alpha=0.7, beta=1.3)
case("Gemm", normal(2, 3), normal(3, 4), opsets=(13, 18))
case("Gemm", normal(2, 3), normal(3, 4), normal(2, 1))
case("Gemm", normal(2, 3), normal(3, 4), normal(), beta=0.5)
case("Einsum", normal(2, 3), normal(3, 4), equation="ij,jk->ik", opsets=(13, 18))
case("Einsum", normal(2, 3, 4), normal(2, 4, 5), equation="bij,bjk->bik")
case("Einsum", normal(2, 3, 4), normal(2, 5, 4), equation="bhd,bkd->bhk")
case("Det", normal(3, 3), opsets=(11, 18, 22))
case("Det", normal(2, 2, 4, 4))
case("Det", normal(2, 1, 1))
case("Det", normal(2, 2))
case("Det", np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.5, 1.0, -1.0]]))  # of rank 2
for _shape in ((4, 4), (2, 3, 2, 2)):
    _x = normal(*_shape) + 2 * np.eye(_shape[-1])
    case("Inverse", _x, domain="com.microsoft", exact=False)
case("Einsum", normal(2, 3), equation="ij->j")
case("Einsum", normal(2, 3), equation="ij->ji")
case("Einsum", normal(2, 3), normal(2, 4), equation="ab,ac->c")
case("Einsum", normal(2, 3, 4), normal(2, 4, 5), equation="...ij,...jk->...ik")
case("Einsum", normal(2, 3), normal(3, 4), equation="ij,jk")
case("Einsum", normal(3), normal(4), equation="i,j->ij")
case("Einsum", normal(2, 3), normal(1, 3), equation="ij,ij->j", exact=False)
case("Einsum", normal(1, 3, 1), normal(2, 2, 4), equation="bik,bkj->bij", exact=False)
for flags in ({}, {"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1, "alpha": 0.5}):
    a = (2, 4, 3) if flags.get("transA") else (2, 3, 4)
    b = (2, 5, 4) if flags.get("transB") else (2, 4, 5)
    case("FusedMatMul", normal(*a), normal(*b), domain="com.microsoft", exact=False, **flags)

# ---- convolutions ------------------------------------------------------------------------------
_CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5), (4, 3, 3), {"pads": [1, 1]}),
    ((2, 3, 7), (4, 3, 2), {"strides": [2]}),
    ((2, 3, 6, 5), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 6, 5), (4, 3, 3, 2), {"strides": [2, 1], "pads": [1, 0, 0, 1]}),
    ((2, 12, 6, 6), (4, 12, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 12, 17, 16), (3, 12, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 3, 7, 7), (2, 3, 3, 3), {"dilations": [2, 2]}),
    ((2, 9, 4, 4), (5, 9, 1, 1), {}),
    ((2, 9, 5, 4), (5, 9, 1, 1), {"strides": [2, 2]}),
    ((2, 4, 6, 6), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((2, 4, 6, 6), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((2, 4, 7, 7), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 3, 9, 9), (3, 1, 5, 5), {"group": 3, "pads": [2, 2, 2, 2], "strides": [2, 2]}),
    ((2, 3, 8, 9), (3, 1, 3, 3), {"group": 3, "pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    ((2, 4, 6, 6), (8, 1, 3, 3), {"group": 4}),
    ((2, 3, 8, 8), (12, 3, 4, 4), {"strides": [4, 4]}),
    ((2, 12, 8, 8), (4, 12, 2, 2), {"strides": [2, 2]}),
    ((2, 3, 6, 6), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 3, 6, 6), (4, 3, 2, 2), {"auto_pad": "SAME_LOWER"}),
    ((2, 3, 6, 6), (4, 3, 3, 3), {"auto_pad": "VALID"}),
    ((1, 2, 4, 5, 4), (3, 2, 3, 3, 2), {"pads": [1, 1, 0, 1, 1, 0]}),
    ((1, 2, 5, 4, 4), (2, 1, 3, 3, 3), {"pads": [1] * 6, "group": 2}),
    ((1, 9, 4, 4, 4), (2, 9, 2, 2, 2), {"strides": [2, 2, 2]}),
    ((1, 9, 1, 1), (4, 9, 3, 3), {"pads": [1, 1, 1, 1]}),
]
for _x, _w, _attributes in _CONVS:
    case("Conv", normal(*_x), normal(*_w), normal(_w[0]), opsets=(13, 18, 22), **_attributes)
case("Conv", normal(1, 2, 4, 4), normal(2, 2, 3, 3))
# the reference evaluator cannot run grouped ConvTranspose
case("Conv", normal(2, 4, 6, 6), normal(4, 2, 3, 3), group=2, strides=[2, 2], exact=False)
_TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 3, 3), (4, 3, 2, 2), {"strides": [2, 2]}),
    ((2, 4, 3, 3), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
    ((2, 4, 4, 5), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 2, 4, 4), (2, 3, 3, 3), {"dilations": [2, 2]}),
    ((1, 2, 4), (2, 3, 3), {"strides": [2]}),
    ((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), {"strides": [2, 2, 2]}),
    ((1, 3, 3, 3), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 3, 3), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 3, 3), (3, 2, 3, 3), {"strides": [2, 2], "output_shape": [6, 6]}),
]
for _x, _w, _attributes in _TRANSPOSED:
    channels = _w[1] * _attributes.get("group", 1)
    case("ConvTranspose", normal(*_x), normal(*_w), normal(channels), opsets=(13, 18), exact=False,
         **_attributes)  # fmt: skip
case("ConvTranspose", normal(1, 4, 3, 3), normal(4, 2, 3, 3), group=2, strides=[2, 2], exact=False)
case("ConvTranspose", normal(1, 1, 3, 3), normal(1, 2, 3, 3), normal(2), strides=[3, 2],
     output_shape=[10, 8], exact=False)  # fmt: skip
case("ConvTranspose", normal(1, 2, 4, 5), normal(2, 1, 3, 3), auto_pad="VALID",
     output_shape=[5, 6], exact=False)  # fmt: skip

# ---- normalizations ----------------------------------------------------------------------------
for _shape in ((4, 3), (2, 3, 5), (2, 3, 4, 4)):
    _channels = [positive(3), normal(3), normal(3), positive(3)]
    case("BatchNormalization", normal(*_shape), *_channels[:2], *map(fixed, _channels[2:]),
         opsets=(14, 18), epsilon=1e-3)  # fmt: skip
    case("BatchNormalization", normal(*_shape), *_channels[:2], *map(fixed, _channels[2:]),
         opsets=(14, 18), epsilon=1e-3, training_mode=1, momentum=0.0, outputs=3)  # fmt: skip
    case("LayerNormalization", normal(*_shape), positive(_shape[-1]), normal(_shape[-1]),
         opsets=(17, 18), exact=True)  # fmt: skip
    case("LayerNormalization", normal(*_shape), positive(*_shape[1:]), normal(*_shape[1:]),
         axis=1, epsilon=1e-3)  # fmt: skip
    case("LayerNormalization", normal(*_shape), positive(_shape[-1]))
    if len(_shape) > 2:
        case("InstanceNormalization", normal(*_shape), positive(3), normal(3), opsets=(13, 18))
    case("RMSNormalization", normal(*_shape), positive(_shape[-1]), opsets=(23,))
    case("LpNormalization", apart(*_shape), p=2, axis=1, opsets=(18, 22))
    case("LpNormalization", apart(*_shape), p=1, axis=-1, exact=False)
case("BatchNormalization", normal(5), positive(1), normal(1), fixed(normal(1)), fixed(positive(1)),
     exact=False)  # fmt: skip
case("BatchNormalization", normal(5), positive(1), normal(1), fixed(normal(1)), fixed(positive(1)),
     training_mode=1, momentum=0.0, outputs=3, exact=False)  # fmt: skip
case("LayerNormalization", normal(2, 3, 4), positive(2, 1, 4), normal(2, 1, 4), exact=False)
case("LayerNormalization", normal(2, 3, 4), positive(1, 1, 4), normal(1, 3, 1), exact=False)
case("RMSNormalization", normal(2, 3, 4), positive(3, 4), axis=1, epsilon=1e-3, opsets=(23,))
case("SimplifiedLayerNormalization", normal(2, 3, 4), positive(4), exact=False, axis=-1,
     epsilon=1e-5, valid=False)  # fmt: skip
case("GroupNormalization", normal(2, 4, 3, 3), positive(2), normal(2), num_groups=2, opsets=(18,),
     exact=False, valid=False)  # fmt: skip
case("GroupNormalization", normal(2, 4, 3, 3), positive(4), normal(4), num_groups=2, opsets=(21,),
     exact=False)  # fmt: skip
# an operator without a rule of its own: expanded into the function ONNX defines it as
case("MeanVarianceNormalization", normal(2, 3, 4, 4), opsets=(13, 18), exact=False)
case("MeanVarianceNormalization", normal(2, 3, 4), axes=[1, 2], exact=False)
case("LRN", normal(2, 6, 3, 3), size=3, alpha=0.5, beta=0.7, bias=1.2, opsets=(13, 18),
     exact=False)  # fmt: skip
case("LRN", normal(2, 6, 3, 3), size=5, alpha=0.9, exact=False)

# ---- pooling -----------------------------------------------------------------------------------
_POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 6, 6), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 3, 7, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 5, 6), {"kernel_shape": [3, 2], "strides": [1, 1]}),
    ((2, 3, 7), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    ((1, 2, 4, 4, 4), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    ((1, 2, 7, 7), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((1, 2, 6, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 6, 5), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
]
for _x, _attributes in _POOLS:
    case("MaxPool", apart(*_x), opsets=(13, 18, 22), exact=False, **_attributes)
    case("AveragePool", normal(*_x), opsets=(13, 19), exact=False, **_attributes)
    if "ceil_mode" not in _attributes and "auto_pad" not in _attributes:
        case("LpPool", apart(*_x), opsets=(18,), exact=False, **_attributes)
case("MaxPool", apart(1, 2, 7, 7), kernel_shape=[2, 2], dilations=[2, 2], exact=False)
case("AveragePool", normal(1, 2, 5, 5), kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2],
     count_include_pad=1, exact=False)  # fmt: skip
for _ceil, _kernel in ((0, 2), (1, 3)):
    case("AveragePool", normal(1, 2, 7, 7), kernel_shape=[_kernel] * 2, dilations=[2, 2],
         strides=[1 + 2 * _ceil] * 2, ceil_mode=_ceil, opsets=(19,), exact=False)  # fmt: skip
case("LpPool", apart(1, 2, 6, 6), kernel_shape=[2, 2], p=3, exact=False)
for _shape in ((2, 3, 4, 4), (2, 3, 5), (1, 2, 2, 3, 2)):
    case("GlobalAveragePool", normal(*_shape), opsets=(13, 18, 22))
    case("GlobalMaxPool", apart(*_shape), opsets=(13, 18, 22), exact=len(_shape) == 4)
_places = np.array([[[[5, 7], [13, 15]]]], np.int64)
case("MaxUnpool", normal(1, 1, 2, 2), fixed(_places), kernel_shape=[2, 2], strides=[2, 2],
     exact=False)  # fmt: skip

# ---- reductions --------------------------------------------------------------------------------
for op in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"):
    _values = positive if op in ("LogSum", "Prod") else apart
    case(f"Reduce{op}", _values(2, 3, 4) / 3, ints(1), opsets=(18, 20), keepdims=0)
    case(f"Reduce{op}", _values(2, 3, 4) / 3, ints(-1, 0))
    case(f"Reduce{op}", _values(3, 2) / 3)
    if op != "Sum":
        case(f"Reduce{op}", _values(2, 3, 2) / 3, opsets=(13,), axes=[1], keepdims=0)
case("ReduceSum", normal(2, 3), ints(1), opsets=(13,))
case("ReduceSum", normal(2, 3), noop_with_empty_axes=1)
case("ReduceProd", np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.5], [1.0, 2.0, -1.0]]), ints(1))
case("TopK", apart(2, 6), ints(3), outputs=2, opsets=(13, 18))
case("TopK", apart(4, 3), ints(2), outputs=2, axis=0, largest=0)
for op in ("Softmax", "LogSoftmax"):
    case(op, normal(2, 3, 4), opsets=(13, 18))
    case(op, normal(2, 3, 4), axis=1)
    case(op, normal(2, 3, 4), axis=0)
    case(op, normal(2, 3), axis=1, opsets=(11,), exact=False)

# ---- layout ------------------------------------------------------------------------------------
case("Reshape", normal(2, 3, 4), ints(4, 6), opsets=(13, 18, 21))
case("Reshape", normal(2, 3, 4), ints(0, -1))
case("Flatten", normal(2, 3, 4), axis=2, opsets=(13, 18))
case("Squeeze", normal(2, 1, 3, 1), ints(1), opsets=(13, 18))
case("Squeeze", normal(2, 1, 3, 1))
case("Unsqueeze", normal(2, 3), ints(0, -1), opsets=(13, 18))
case("Identity", normal(2, 3), opsets=(13, 18))
case("Cast", normal(2, 3), to=1, opsets=(13, 18), exact=False)
case("CastLike", normal(2, 3), fixed(np.array(1.0)), opsets=(18,))
case("Transpose", normal(2, 3, 4), opsets=(13, 18))
case("Transpose", normal(2, 3, 4), perm=[1, 2, 0])
case("Transpose", normal(2, 1, 4), perm=[1, 0, 2])
case("Expand", normal(3, 1), ints(2, 3, 4), opsets=(13, 18))
case("Concat", normal(2, 3), normal(2, 1), normal(2, 2), axis=1, opsets=(13, 18))
case("Concat", normal(2, 3), normal(1, 3), axis=-2)
case("Split", normal(2, 6), ints(2, 4), axis=1, outputs=2, used=(0, 1), opsets=(13, 18))
case("Split", normal(6, 2), num_outputs=3, outputs=3, used=(1,), exact=False)
case("Slice", normal(4, 5), ints(1), ints(3), opsets=(13, 18))
case("Slice", normal(4, 5), ints(1, 0), ints(4, 5), ints(0, 1), ints(2, 2))
case("Slice", normal(4, 5), ints(-1), ints(-(2**40)), ints(1), ints(-2))
case("Slice", normal(4, 5), ints(-3), ints(2**40), ints(-1))
case("Slice", normal(4, 5), ints(-9), ints(-(2**40)), ints(1), ints(-1), exact=False)
case("Slice", normal(4, 5), ints(3, 4), ints(0, 0), ints(0, 1), ints(-1, -1))
case("Pad", normal(2, 3), ints(1, 0, 0, 2), opsets=(13, 18))
case("Pad", normal(4, 5), ints(-1, 1, 0, -2), exact=False)
case("Pad", normal(2, 3), ints(1, 2), fixed(np.array(0.5)), ints(1))
case("Pad", normal(2, 3), ints(1, 1, 1, 1), normal())
case("Pad", normal(2, 3), ints(1, 1, 1, 1), normal(1), exact=False)  # a list of one number
for _mode in ("reflect", "edge", "wrap"):
    case(
        "Pad",
        normal(4, 5),
        ints(2, 1, 1, 3),
        mode=_mode,
        opsets=(19,) if _mode == "wrap" else (18,),
    )
case("Tile", normal(2, 3), ints(2, 3), opsets=(13, 18))
case("Tile", normal(2, 3), ints(1, 1))
for _mode in ("DCR", "CRD"):
    case("DepthToSpace", normal(2, 8, 2, 3), blocksize=2, mode=_mode, opsets=(13, 18))
case("SpaceToDepth", normal(2, 2, 4, 6), blocksize=2, opsets=(13, 18))
case("Trilu", normal(4, 4), opsets=(14, 18))
case("Trilu", normal(2, 4, 3), fixed(np.array(1, np.int64)), upper=0)
case("ReverseSequence", normal(4, 3), ints(1, 4, 2), batch_axis=1, time_axis=0)

# ---- indexing ----------------------------------------------------------------------------------
case("Gather", normal(5, 3), fixed(np.array([[0, 2], [2, -1]])), opsets=(13, 18))
case("Gather", normal(3, 5, 2), fixed(np.array([4, 0, 4, 2, 2, 1])), axis=1)
case("Gather", normal(3, 5), fixed(np.array(2)), axis=1)
case("Gather", normal(3, 5), fixed(np.array([1, 2, 3])), axis=-1)
case("Gather", normal(6, 2), fixed(np.array([5, 3, 1, 3, 0, 2, 4, 0, 5, 1])), axis=0)
_index = np.array([[0, 2, 0], [1, -1, 1]])
case("GatherElements", normal(3, 3), fixed(_index), axis=0, opsets=(13, 18))
case("GatherElements", normal(2, 4), fixed(_index), axis=1)
case("GatherND", normal(3, 4, 2), fixed(np.array([[0, 1], [2, 3], [0, 1]])), opsets=(13, 18))
case("GatherND", normal(2, 3, 4), fixed(np.array([[1], [0]])), batch_dims=1)
case(
    "GatherND", normal(2, 3, 4), fixed(np.array([[[1, 2], [0, 0]], [[2, 3], [2, 3]]])), batch_dims=1
)
_put = np.array([[1, 0, 2]])
for _mode in ("none", "add"):
    case("ScatterElements", normal(3, 3), fixed(_put), normal(1, 3), axis=0, reduction=_mode,
         opsets=(16, 18))  # fmt: skip
    case("ScatterND", normal(4, 3), fixed(np.array([[2], [0]])), normal(2, 3), reduction=_mode,
         opsets=(16, 18))  # fmt: skip
case("OneHot", fixed(np.array([0, 2, 1])), fixed(np.array(3, np.int64)), normal(2), opsets=(13, 18))
case("OneHot", fixed(np.array([[0, 2]])), fixed(np.array(3, np.int64)), normal(2), axis=1)

# ---- resize ------------------------------------------------------------------------------------
_NONE = Fixed(np.zeros(0, np.float32))
for _settings in (
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "nearest"},
    {"mode": "linear"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "cubic", "cubic_coeff_a": -0.75},
):
    case("Resize", normal(1, 2, 3, 4), None, Fixed(np.array([1, 1, 2, 2], np.float32)),
         opsets=(13, 18), exact=False, **_settings)  # fmt: skip
    case("Resize", normal(1, 2, 4, 6), None, None, ints(1, 2, 7, 3), exact=False, **_settings)
case("Resize", normal(1, 2, 5, 5), None, Fixed(np.array([1, 1, 1.7, 0.6], np.float32)),
     mode="linear", exact=False)  # fmt: skip
case("Resize", normal(1, 2, 6, 6), None, None, ints(1, 2, 3, 3), mode="linear", antialias=1,
     exact=False)  # fmt: skip
case("Resize", normal(4), None, Fixed(np.array([1.6], np.float32)), mode="nearest", exact=False)
case("Resize", normal(1, 1, 3, 3, 3), None, Fixed(np.array([1, 1, 2, 2, 2], np.float32)),
     mode="linear", exact=False)  # fmt: skip
case("Upsample", normal(1, 2, 3, 3), Fixed(np.array([1, 1, 2, 2], np.float32)), opsets=(9,),
     mode="nearest", exact=False)  # fmt: skip

# ---- dropout and losses ------------------------------------------------------------------------
case("Dropout", normal(3, 4), opsets=(13, 18))
case("Dropout", normal(3, 4), fixed(np.array(0.4, np.float32)), fixed(np.array(False)))
_labels = np.array([0, 2, 1, 2])
for _reduction in ("mean", "sum", "none"):
    for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        case(op, normal(4, 3), fixed(_labels), reduction=_reduction, opsets=(13, 18))
        case(op, normal(4, 3), fixed(_labels), fixed(positive(3)), reduction=_reduction)
        case(op, normal(4, 3), fixed(_labels), reduction=_reduction, ignore_index=2)
        case(op, normal(2, 3, 2), fixed(_labels.reshape(2, 2)), fixed(positive(3)),
             reduction=_reduction, ignore_index=0)  # fmt: skip

# ---- functions without rules of their own -------------------------------------------------------
_heads = (normal(2, 3, 4, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 8))
case("Attention", *_heads, opsets=(23, 24), exact=False)
case("Attention", *_heads, normal(4, 5), opsets=(23,), exact=False)
# No mask before the keys and values of the past.
_past = (normal(2, 3, 2, 8), normal(2, 3, 2, 8))
case("Attention", *_heads, None, *_past, opsets=(23, 24), outputs=3, exact=False)
case("Attention", normal(2, 4, 8), normal(2, 4, 8), normal(2, 4, 8), opsets=(23,), exact=False,
     q_num_heads=2, kv_num_heads=2, is_causal=1)  # fmt: skip
_table = [fixed(normal(10, 4)), fixed(normal(10, 4)), fixed(np.tile(np.arange(4), (2, 1)))]
case("RotaryEmbedding", normal(2, 3, 4, 8), *_table, opsets=(23,), exact=False)
case("RotaryEmbedding", normal(2, 4, 24), *_table, opsets=(23,), exact=False, num_heads=3,
     interleaved=1)  # fmt: skip

# ---- fused operators of onnxruntime's tools, written out ----------------------------------------
_fused = {"domain": "com.microsoft", "exact": False}
_x = normal(2, 4, 8)
case("SkipLayerNormalization", _x, normal(2, 4, 8), positive(8), normal(8), normal(8), **_fused)
for _bits, _zeros in ((4, 2), (8, 0), (2, 2)):
    case("MatMulNBits", normal(2, 3, 30), fixed(packed(2, 2, 2 * _bits)), fixed(positive(4)),
         fixed(packed(_zeros)) if _zeros else None, None, normal(2), K=30, N=2, block_size=16,
         bits=_bits, valid=False, **_fused)  # fmt: skip
case("SkipLayerNormalization", _x, normal(2, 4, 8), positive(8), epsilon=1e-5, **_fused)
case("SkipLayerNormalization", _x, normal(2, 4, 8), positive(8), normal(8), outputs=4,
     used=(0, 3), **_fused)  # fmt: skip
case("SkipSimplifiedLayerNormalization", _x, normal(2, 4, 8), positive(8), valid=False, **_fused)
case("MultiHeadAttention", _x, normal(2, 5, 8), normal(2, 5, 8), num_heads=2, **_fused)
case("MultiHeadAttention", _x, normal(2, 4, 8), normal(2, 4, 8), normal(24), None,
     normal(1, 2, 4, 4), num_heads=2, scale=0.4, **_fused)  # fmt: skip
_look = Fixed(np.array([[1, 1, 0, 1], [1, 1, 1, 0]], np.int32))
case("Attention", _x, normal(8, 24) / 3, normal(24), _look, num_heads=2, **_fused)
case("Attention", _x, normal(8, 24) / 3, normal(24), num_heads=4, unidirectional=1, **_fused)

# ---- recurrent layers --------------------------------------------------------------------------
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(
    op: str, directions: int, *, bias: bool = True, lengths: list[int] | None = None,
    states: bool = True, peepholes: bool = False, used: tuple[int, ...] | None = None,
    steps: int = 4, opsets: tuple[int, ...] = (18,), **settings: Any,
) -> None:  # fmt: skip
    """A case of a recurrent layer of 3 sequences, 3 data and 2 hidden elements."""
    batch, width, hidden, gates = 3, 3, 2, _GATES[op]
    first = normal(directions, batch, hidden) if states else None
    inputs: list[Any] = [
        normal(steps, batch, width), normal(directions, gates * hidden, width) / 2,
        normal(directions, gates * hidden, hidden) / 2,
        normal(directions, 2 * gates * hidden) / 2 if bias else None,
        None if lengths is None else Fixed(np.array(lengths, np.int32)), first,
    ]  # fmt: skip
    if op == "LSTM":
        inputs.append(normal(directions, batch, hidden) if states else None)
        inputs.append(normal(directions, 3 * hidden) / 2 if peepholes else None)
    while inputs[-1] is None:
        inputs.pop()
    outputs = 3 if op == "LSTM" else 2
    case(op, *inputs, hidden_size=hidden, exact=False, outputs=outputs, opsets=opsets,
         used=used or tuple(range(outputs)), **settings)  # fmt: skip


for op in _GATES:
    recurrent(op, 1, opsets=(7, 14, 18, 22))
    recurrent(op, 1, direction="reverse", bias=False)
    recurrent(op, 2, direction="bidirectional", used=(0,))
    recurrent(op, 2, direction="bidirectional", states=False, used=(1,))
    recurrent(op, 2, direction="bidirectional", lengths=[4, 0, 3])
    recurrent(op, 1, lengths=[4, 4, 4], steps=4, used=(1,))
    recurrent(op, 1, steps=1, used=(0,))
recurrent("LSTM", 1, states=False, used=(2,))
recurrent("LSTM", 2, direction="bidirectional", peepholes=True)
recurrent("LSTM", 1, direction="reverse", peepholes=True, lengths=[2, 4, 1])
recurrent("LSTM", 1, activations=["HardSigmoid", "Tanh", "Sigmoid"], activation_alpha=[0.1])
recurrent("GRU", 2, direction="bidirectional", linear_before_reset=1)
recurrent("GRU", 1, direction="reverse", linear_before_reset=1, lengths=[2, 4, 1], bias=False)
recurrent("GRU", 1, activations=["HardSigmoid", "Sigmoid"], linear_before_reset=1)
recurrent("RNN", 2, direction="bidirectional", activations=["Relu", "Sigmoid"])

# ---- more fused operators ----------------------------------------------------------------------
_turns = [Fixed(normal(6, 4)), Fixed(normal(6, 4))]  # tables of cosines and sines
_places = Fixed(np.array([[0, 1, 2, 3], [2, 3, 4, 5]]))
case("RotaryEmbedding", normal(2, 4, 24), _places, *_turns, num_heads=3, **_fused)
case("RotaryEmbedding", normal(2, 3, 4, 8), ints(1), *_turns, interleaved=1, **_fused)
case("RotaryEmbedding", normal(2, 3, 4, 16), _places, *_turns, num_heads=3,
     rotary_embedding_dim=8, **_fused)  # fmt: skip
case("EmbedLayerNormalization", Fixed(np.array([[1, 4, 1], [0, 2, 3]], np.int32)),
     Fixed(np.array([[0, 0, 1], [0, 1, 1]], np.int32)), normal(5, 8), normal(4, 8), normal(2, 8),
     positive(8), normal(8), epsilon=1e-5, outputs=2, **_fused)  # fmt: skip
case("EmbedLayerNormalization", Fixed(np.array([[1, 4, 1], [0, 2, 3]], np.int32)), None,
     normal(5, 8), normal(4, 8), None, positive(8), normal(8),
     Fixed(np.array([[1, 1, 0], [1, 1, 1]], np.int32)),
     Fixed(np.array([[1, 2, 3], [0, 1, 2]], np.int32)), outputs=3, used=(0, 2),
     **_fused)  # fmt: skip
_image, _filters = normal(2, 3, 4, 5), normal(4, 3, 3, 3) / 3
for _kind, *_values in (("Relu",), ("Sigmoid",), ("Tanh",), ("LeakyRelu", 0.2),
                        ("Clip", -4.0, 4.5), ("HardSigmoid", 0.1, 0.4)):  # fmt: skip
    _parameters = {"activation_params": _values} if _values else {}
    case("FusedConv", _image, _filters, normal(4), activation=_kind, pads=[1, 1, 1, 1],
         **_parameters, **_fused)  # fmt: skip
case("FusedConv", _image, _filters, normal(4), normal(2, 4, 2, 3), activation="Relu", **_fused)
case("FusedGemm", normal(2, 3), normal(4, 3), normal(4), transB=1, activation="LeakyRelu",
     activation_alpha=0.1, **_fused)  # fmt: skip
for _flags in (
    {"transBatchA": 1},
    {"transBatchB": 1, "transB": 1},
    {"transBatchA": 1, "transA": 1},
):
    _left = {(): (2, 3, 4), ("transBatchA",): (3, 2, 4), ("transA", "transBatchA"): (4, 2, 3)}
    _key = tuple(sorted(k for k in _flags if k.endswith("A")))
    _right = (5, 2, 4) if "transBatchB" in _flags else (2, 4, 5)
    case("FusedMatMul", normal(*_left[_key]), normal(*_right), **_flags, **_fused)
case("TransposeMatMul", normal(2, 4, 3), normal(2, 4, 5), transA=1, valid=False, **_fused)
case("Trilu", normal(2, 3, 4), **_fused)
_end = Fixed(np.array([3, 2], np.int32))
_ends = Fixed(np.array([4, 3, 1, 0], np.int32))
_square = Fixed(np.array(np.tril(np.ones((2, 4, 4))), np.int32))
for _mask in (_end, _ends, _square):
    case("Attention", _x, normal(8, 24) / 3, normal(24), _mask, num_heads=2, **_fused)
case("Attention", _x, normal(8, 20) / 3, normal(20), num_heads=2, qkv_hidden_sizes=[8, 8, 4],
     **_fused)  # fmt: skip
case("Attention", _x, normal(8, 24) / 3, normal(24), _look, None, normal(1, 2, 4, 4), num_heads=2,
     unidirectional=1, mask_filter_value=-50.0, outputs=2, used=(0, 1), **_fused)  # fmt: skip
case("MultiHeadAttention", _x, normal(2, 2, 5, 4), normal(2, 2, 5, 4), num_heads=2, **_fused)
case("MultiHeadAttention", _x, normal(2, 4, 8), normal(2, 4, 8), None, _look, num_heads=2,
     unidirectional=1, outputs=3, used=(0, 1, 2), **_fused)  # fmt: skip
case("MultiHeadAttention", _x, normal(2, 4, 8), normal(2, 4, 6), normal(22), _square, num_heads=2,
     **_fused)  # fmt: skip
_grouped = (normal(2, 4, 32), normal(2, 4, 16), normal(2, 4, 16), None, None)
_whole = (Fixed(np.array([3, 3], np.int32)), Fixed(np.array(4, np.int32)))
_group = {"num_heads": 4, "kv_num_heads": 2, **_fused}
case("GroupQueryAttention", *_grouped, *_whole, **_group)
case("GroupQueryAttention", *_grouped, *_whole, local_window_size=2, softcap=1.5, **_group)
case("GroupQueryAttention", *_grouped, *_whole, smooth_softmax=1, scale=0.7, **_group)
case("GroupQueryAttention", normal(2, 4, 128), *[None] * 4, *_whole, Fixed(normal(6, 8)),
     Fixed(normal(6, 8)), do_rotary=1, rotary_interleaved=1, outputs=3, used=(0, 1, 2),
     **_group)  # fmt: skip
case("GroupQueryAttention", *_grouped, *_whole, None, None, None, normal(1, 4, 4, 4), normal(4),
     **_group)  # fmt: skip

# ---- rarer settings ----------------------------------------------------------------------------
case("Einsum", normal(3, 3), equation="ii->i")
case("Einsum", normal(3, 3), equation="ii->")
case("Einsum", normal(2, 3, 3), normal(3, 4), equation="bii,ij->bj")
case("Einsum", normal(3, 2, 3), normal(2, 3, 2), equation="iji,jij->ij")
_twice = Fixed(np.array([[1, 0, 2], [1, 0, 0]]))
_factors = positive(3, 3) * np.where(np.eye(3) > 0, 0.0, 1.0)
for _mode in ("mul", "max", "min"):
    case("ScatterElements", apart(3, 3), _twice, apart(2, 3) + 0.1, axis=0, reduction=_mode,
         opsets=(18,))  # fmt: skip
    case("ScatterND", apart(4, 3), Fixed(np.array([[2], [0], [2]])), apart(3, 3) + 0.1,
         reduction=_mode)  # fmt: skip
case("ScatterElements", _factors, _twice, positive(2, 3) - np.array([[0.0], [0.0]]), axis=0,
     reduction="mul")  # fmt: skip
case("ScatterElements", positive(3, 3), _twice, _factors[:2], axis=0, reduction="mul")
_region = Fixed(np.array([0, 0, 0.2, -0.3, 1, 1, 0.9, 0.8], np.float32))
for _kind in ("nearest", "linear", "cubic"):
    case("Resize", normal(1, 2, 6, 5), _region, None, ints(1, 2, 4, 7), mode=_kind,
         coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=2.5,
         exact=False)  # fmt: skip
case("Resize", normal(1, 2, 6, 5), Fixed(np.array([0, 0, 0.5, 0.1, 1, 1, 1, 0.9], np.float32)),
     Fixed(np.array([1, 1, 0.5, 0.8], np.float32)), mode="linear",
     coordinate_transformation_mode="tf_crop_and_resize", exact=False)  # fmt: skip

# ---- geometries whose cotangents have formulations of their own ----------------------------------
_MORE_CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 12, 11, 12), (3, 12, 3, 3), {"pads": [1, 0, 1, 2]}),
    ((1, 9, 15, 17), (2, 9, 3, 2), {"dilations": [2, 3], "pads": [2, 0, 1, 1]}),
    ((2, 9, 70), (2, 9, 3), {"pads": [2, 0]}),
    ((1, 9, 5, 5, 6), (2, 9, 3, 2, 3), {"pads": [1, 1, 0, 1, 1, 2]}),
    ((2, 9, 5, 7), (16, 9, 3, 2), {"pads": [2, 1, 1, 0], "dilations": [1, 2]}),
]
for _x, _w, _attributes in _MORE_CONVS:
    case("Conv", normal(*_x), normal(*_w), normal(_w[0]), **_attributes)

# ---- sampling, transforms and columns ------------------------------------------------------------
_grid = Fixed(inside(2, 3, 4, 2) * 1.7)
for _opset, _modes in ((16, ("bilinear", "nearest", "bicubic")), (20, ("linear", "cubic"))):
    for _mode in _modes:
        for _padding in ("zeros", "border", "reflection"):
            for _aligned in (0, 1):
                _settings = {"mode": _mode, "padding_mode": _padding, "align_corners": _aligned}
                case("GridSample", normal(2, 3, 5, 4), _grid, opsets=(_opset,), exact=False,
                     **_settings)  # fmt: skip
for _padding in ("zeros", "border", "reflection"):
    for _aligned in (0, 1):
        # between elements, where the result is smooth: both are differentiated
        _at = (2 * np.array([-1.3, -0.7, 0.4, 1.7, 2.6, 4.5]) + 1) / 4 - 1
        _at = np.stack(np.meshgrid(_at, _at[::-1]), -1)[None] * (4 / 3 if _aligned else 1)
        case("GridSample", normal(1, 2, 4, 4), _at, opsets=(20,), exact=False,
             padding_mode=_padding, align_corners=_aligned)  # fmt: skip
        for _mode in ("cubic", "nearest"):
            case("GridSample", normal(1, 2, 4, 4), _at[:, :2] + 0.01, opsets=(22,), exact=False,
                 mode=_mode, padding_mode=_padding, align_corners=_aligned)  # fmt: skip
        for _mode in ("linear", "nearest"):
            case("GridSample", normal(1, 2, 3, 4, 3), Fixed(inside(1, 2, 3, 2, 3) * 1.8),
                 opsets=(20,), exact=False, mode=_mode, padding_mode=_padding,
                 align_corners=_aligned)  # fmt: skip
# In pixels, between elements, then as the operator counts them along W, H and D.
_between = np.resize([0.3, 1.6, 0.6, 1.3, 0.4, 1.7, 0.7], (1, 2, 2, 2, 3))
case("GridSample", normal(1, 2, 3, 4, 3), (2 * _between + 1) / np.array([3, 4, 3]) - 1,
     opsets=(20,), exact=False)  # fmt: skip
for _aligned in (0, 1):
    case("AffineGrid", normal(2, 2, 3), ints(2, 1, 4, 5), align_corners=_aligned, opsets=(20,),
         exact=False)  # fmt: skip
    case("AffineGrid", normal(2, 3, 4), ints(2, 1, 4, 1 + _aligned, 3), align_corners=_aligned,
         opsets=(20,), exact=False)  # fmt: skip
for _length in (None, fixed(np.array(8)), fixed(np.array(4))):
    for _parts, _flags in ((1, {}), (2, {}), (1, {"onesided": 1}), (2, {"inverse": 1})):
        _signal = normal(2, 6, 3, _parts)
        case("DFT", _signal, _length, fixed(np.array(1)), opsets=(20,), **_flags)
        case("DFT", _signal, _length, opsets=(17,), axis=-2, **_flags)
for _length in (None, fixed(np.array(11))):  # 6 elements of 10 or 11
    case("DFT", normal(2, 6, 3, 2), _length, fixed(np.array(1)), opsets=(20,), inverse=1,
         onesided=1)  # fmt: skip
case("DFT", normal(2, 3, 5, 1), onesided=1, opsets=(20,))
_step, _frame = fixed(np.array(3)), fixed(np.array(8))
case("STFT", normal(2, 21, 1), _step, positive(8), _frame, opsets=(17, 20))
case("STFT", normal(2, 20, 1), fixed(np.array(4)), positive(8))
case("STFT", normal(1, 20, 2), _step, None, _frame, onesided=0)
case("STFT", normal(1, 20, 1), fixed(np.array(9)), None, _frame, onesided=0)
case("Col2Im", normal(2, 12, 9), ints(4, 5), ints(2, 3), exact=False)
case("Col2Im", normal(2, 12, 8), ints(4, 5), ints(2, 3), pads=[1, 0, 0, 1], strides=[2, 1],
     exact=False)  # fmt: skip
case("Col2Im", normal(2, 12, 8), ints(4, 5), ints(2, 3), dilations=[1, 2], pads=[0, 1, 1, 0],
     exact=False)  # fmt: skip
# x from, y from, x to, y to: within the image, beyond its edges, next to no size, upside down
_boxes = [[0.3, 1.1, 4.4, 3.8], [-2.5, -0.7, 7.2, 6.1], [2.2, 2.3, 2.4, 2.6], [3.1, 3.3, 1.2, 0.4]]
_boxes, _images = fixed(np.array(_boxes)), fixed(np.array([1, 0, 1, 1]))
_regions = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
for _bundles, _more in ((1, ()), (2, (normal(4), positive(2, 12, 2, 5)))):
    case("DeformConv", normal(2, 4, 5, 6), normal(4, 2, 3, 2), normal(2, 12 * _bundles, 2, 5),
         *_more, group=2, offset_group=_bundles, strides=[2, 1], dilations=[1, 2],
         pads=[0, 1, 1, 0], opsets=(19, 22), exact=False)  # fmt: skip
case("RoiAlign", normal(2, 3, 5, 6), _boxes, _images, opsets=(16, 18), **_regions)
# onnx's reference evaluator shifts by half a pixel here too; onnxruntime does not
case("RoiAlign", normal(2, 3, 5, 6), _boxes, _images, opsets=(13,), exact=False, **_regions)
case("RoiAlign", normal(2, 3, 5, 6), _boxes, _images, **_regions,
     coordinate_transformation_mode="output_half_pixel")  # fmt: skip
case("RoiAlign", normal(1, 2, 9, 8), _boxes, fixed(np.zeros(4, np.int64)), output_height=3,
     output_width=1, sampling_ratio=1, spatial_scale=1.5)  # fmt: skip
case("Mod", apart(3, 4), positive(3, 4), fmod=1, opsets=(13, 18))
case("Mod", apart(3, 4), positive(4), fmod=1)
for _order in (1, 2, 3):
    case("GlobalLpPool", apart(2, 3, 4, 4), p=_order, opsets=(13, 18), exact=False)

for _shape in ((4, 3), (2, 3, 4, 4)):
    # statistics that are computed from what is trained, as nets that standardise weights do
    case("BatchNormalization", normal(*_shape), normal(3), normal(3), normal(3), positive(3),
         opsets=(18,), epsilon=1e-3)  # fmt: skip

# ---- bodies ------------------------------------------------------------------------------------
for _op, _inputs, _options in CONTROL:
    case(_op, *_inputs, **_options)
