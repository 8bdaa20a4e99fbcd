"""Nodes at sizes that onnxruntime's kernels divide among threads: one per family of rules, and
every one whose gradient puts or adds something at indices.

    python -m tests.grad.large [OPERATOR ...]

prints for each, with 1, 2 and 4 threads, how many different results 20 runs give and how far they
are from the result in float64 (``float32``: from that of one thread in float32, where onnxruntime
has no float64 kernels).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidGraph,
    NotImplemented,
    RuntimeException,
)

from tests.grad.checking import Case, Fixed, build, gradients

THREADS = (1, 2, 4)
RUNS = 20
_RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(_RNG.standard_normal(shape))


def positive(*shape: int) -> np.ndarray:
    return np.asarray(_RNG.uniform(0.5, 2.0, shape))


def places(length: int, *shape: int) -> Fixed:
    """Indices, many of them the same, half of them counted from the end."""
    drawn = np.minimum(_RNG.integers(0, length, shape), _RNG.integers(0, length, shape))
    return Fixed(np.where(_RNG.random(shape) < 0.5, drawn, drawn - length))


def apart(*lengths: int) -> Fixed:
    """[n, 1] numbers below ``lengths[0]``, none twice."""
    return Fixed(_RNG.permutation(lengths[0])[: lengths[1]].reshape(-1, 1))


LARGE: list[Case] = []


def case(op: str, *inputs: Any, **settings: Any) -> Case:
    """Make a case; what is no field of Case is an attribute of the node."""
    known = {k: settings.pop(k) for k in list(settings) if k in Case.__dataclass_fields__}
    made = Case(op, inputs, settings, exact=False, **known)  # by onnxruntime, not the reference
    LARGE.append(made)
    return made


_TUPLES = Fixed(np.stack([_RNG.integers(-9, 9, 3000), _RNG.integers(-5, 5, 3000)], 1))
_REPEATED = Fixed(_RNG.integers(0, 30, (3000, 1)))
_LABELS = Fixed(_RNG.integers(0, 500, 500))

# Their gradients put or add something at indices.
SCATTERS = [
    case("Gather", normal(100, 512), places(100, 32, 128)),  # in blocks
    case("Gather", normal(2000, 256), places(2000, 2048)),  # in segments
    case("Gather", normal(3000, 64), places(3000, 9000)),  # in segments of segments
    case("Gather", normal(2, 768), places(2, 8, 128)),  # by one product
    case("Gather", normal(30000, 1), places(30000, 60000)),  # element by element
    case("Gather", normal(12, 300, 64), places(300, 700), axis=1),
    case("Gather", normal(3000, 128), apart(3000, 2500), axis=0),  # no index twice
    case("GatherND", normal(9, 5, 300), _TUPLES),
    case("GatherND", normal(16, 50, 128), places(50, 16, 100, 1), batch_dims=1),
    case("GatherElements", normal(300, 512), places(300, 500, 512), axis=0),
    case("GatherElements", normal(300, 512), places(512, 300, 900), axis=1),
    case("ScatterElements", normal(300, 512), places(300, 500, 512), normal(500, 512), axis=0,
         reduction="add"),
    case("ScatterND", normal(2000, 256), apart(2000, 1500), normal(1500, 256)),
    case("MaxPool", normal(4, 16, 64, 64), kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", normal(4, 16, 64, 64), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4,),
    case("MaxPool", normal(4, 16, 48, 48), kernel_shape=[5, 5], pads=[2] * 4),
    case("MaxUnpool", normal(4, 16, 32, 32), Fixed(np.arange(4 * 16 * 32 * 32).reshape(
         4, 16, 32, 32) * 4), kernel_shape=[2, 2], strides=[2, 2]),
    case("TopK", normal(400, 400), Fixed(np.array([100])), outputs=2),
    case("OneHot", Fixed(_RNG.integers(0, 200, 5000)), Fixed(np.array(200)), normal(2)),
    *[case(_op, normal(500, 500), _LABELS)
      for _op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")],
    case("EmbedLayerNormalization", Fixed(_RNG.integers(0, 500, (16, 128)).astype(np.int32)),
         Fixed(_RNG.integers(0, 2, (16, 128)).astype(np.int32)), normal(500, 128),
         normal(128, 128), normal(2, 128), positive(128), normal(128), outputs=2,
         domain="com.microsoft"),
]  # fmt: skip

# Whose kernel adds, multiplies and compares at one place from several threads: a step has another.
RACING = [
    case("ScatterND", positive(30, 256), _REPEATED, positive(3000, 256) ** 0.01, reduction=_mode)
    for _mode in ("add", "max", "min", "mul")
]

# The rest: kernels that divide sums or products among threads.
for _op in ("Add", "Mul", "Div", "Max", "Pow"):
    case(_op, positive(2000, 500), positive(500))
    case(_op, positive(16, 64, 1000), positive(64, 1))
case("PRelu", normal(16, 32, 40, 40), positive(32, 1, 1))
case("Where", Fixed(_RNG.random((2000, 500)) < 0.5), normal(2000, 1), normal(500))
for _op in ("Relu", "Tanh", "Sigmoid", "Gelu", "Erf", "Elu", "Softplus", "HardSwish"):
    case(_op, normal(1000, 500), opsets=(20,))
case("Clip", normal(1000, 500), np.array(-0.5), np.array(0.5))
for _op in ("Sum", "Mean", "Max", "Prod", "L2", "LogSumExp"):
    case(
        f"Reduce{_op}",
        positive(300, 20, 100) ** 1e-3,
        Fixed(np.array([0, 2])),
        opsets=(18,),
        keepdims=0,
    )
for _op in ("Softmax", "LogSoftmax"):
    case(_op, normal(2000, 500))
    case(_op, normal(64, 100, 100), axis=1)
case("CumSum", normal(500, 1000), Fixed(np.array(0)))
case("MatMul", normal(8, 256, 300), normal(300, 200))
case("MatMul", normal(24, 128, 64), normal(24, 64, 128))
case("Gemm", normal(1000, 300), normal(200, 300), normal(200), transB=1)
case("Einsum", normal(16, 128, 64), normal(16, 100, 64), equation="bhd,bkd->bhk")
for _x, _w, _settings in (
    ((8, 32, 32, 32), (32, 32, 3, 3), {"pads": [1] * 4}),
    ((8, 32, 32, 32), (64, 32, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    ((8, 64, 32, 32), (64, 64, 1, 1), {}),
    ((8, 3, 64, 64), (32, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    ((8, 64, 32, 32), (64, 1, 3, 3), {"pads": [1] * 4, "group": 64}),
    ((8, 64, 32, 32), (64, 1, 3, 3), {"pads": [1] * 4, "group": 64, "strides": [2, 2]}),
    ((8, 64, 32, 32), (64, 16, 3, 3), {"pads": [1] * 4, "group": 4}),
    ((16, 256, 7, 7), (256, 256, 3, 3), {"pads": [1] * 4}),
    ((8, 32, 32, 32), (32, 32, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    ((8, 32, 1000), (32, 32, 5), {"pads": [2, 2]}),
    ((2, 16, 16, 16, 16), (16, 16, 3, 3, 3), {"pads": [1] * 6}),
    ((4, 96, 8, 8), (192, 96, 2, 2), {"strides": [2, 2]}),
):
    case("Conv", normal(*_x), normal(*_w), normal(_w[0]), **_settings)
case("ConvTranspose", normal(8, 32, 16, 16), normal(32, 32, 2, 2), normal(32), strides=[2, 2])
case("ConvTranspose", normal(8, 32, 16, 16), normal(32, 32, 3, 3), pads=[1] * 4, strides=[2, 2])
case("BatchNormalization", normal(16, 64, 32, 32), positive(64), normal(64), Fixed(np.zeros(64)),
     Fixed(np.ones(64)), training_mode=1, outputs=3)  # fmt: skip
case("InstanceNormalization", normal(16, 64, 32, 32), positive(64), normal(64))
case("GroupNormalization", normal(16, 64, 32, 32), positive(64), normal(64), num_groups=8,
     opsets=(21,))  # fmt: skip
case("LayerNormalization", normal(16, 128, 256), positive(256), normal(256))
case("RMSNormalization", normal(16, 128, 256), positive(256), opsets=(23,))
case("LRN", normal(8, 64, 24, 24), size=5)
for _settings in (
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
    {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4},
):
    case("AveragePool", normal(8, 32, 48, 48), **_settings)
    case("LpPool", positive(8, 32, 48, 48), **_settings)
case("GlobalAveragePool", normal(16, 64, 32, 32))
case("GlobalMaxPool", normal(16, 64, 32, 32))
for _mode in ("nearest", "linear", "cubic"):
    case("Resize", normal(4, 32, 32, 32), None, Fixed(np.array([1, 1, 2, 1.5], np.float32)),
         mode=_mode)  # fmt: skip
case("Pad", normal(64, 100, 100), Fixed(np.array([0, 3, 3, 0, 3, 3])), mode="reflect")
case("Slice", normal(500, 1000), Fixed(np.array([1])), Fixed(np.array([900])),
     Fixed(np.array([1])), Fixed(np.array([2])))  # fmt: skip
case("Transpose", normal(64, 100, 100), perm=[2, 0, 1])
case("Tile", normal(200, 300), Fixed(np.array([3, 4])))
case("Expand", normal(1, 500), Fixed(np.array([1000, 500])))
case("DepthToSpace", normal(8, 64, 32, 32), blocksize=2)
for _op, _gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    case(_op, normal(20, 32, 64), normal(1, _gates * 64, 64) / 8, normal(1, _gates * 64, 64) / 8,
         normal(1, 2 * _gates * 64), hidden_size=64)  # fmt: skip
case("Attention", *[normal(8, 4, 128, 32) for _ in range(3)], opsets=(23,))
case("MultiHeadAttention", *[normal(8, 128, 128) for _ in range(3)], num_heads=4,
     domain="com.microsoft")  # fmt: skip
case("SkipLayerNormalization", normal(16, 128, 256), normal(16, 128, 256), positive(256),
     normal(256), normal(256), domain="com.microsoft")  # fmt: skip


Results = dict[str, np.ndarray]


def backward(made: Case, dtype: type[np.floating]) -> tuple[onnx.ModelProto, Results]:
    """The gradient model of a case, and its inputs. Indices and weights of the loss are among
    them: from constants onnxruntime would compute whole gradients once, when it loads them."""
    model, values = build(made, made.opsets[0], np.dtype(dtype))
    found = gradients(model, list(values), None, made.op)
    large = [t for t in found.graph.initializer if _is_given(t)]
    for tensor in large:
        found.graph.initializer.remove(tensor)
        values[tensor.name] = numpy_helper.to_array(tensor)
        found.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    return found, values


def _is_given(tensor: onnx.TensorProto) -> bool:
    """An input of the node or a weight of the loss, and no setting such as a list of axes."""
    return tensor.name[0] in "xr" and tensor.name[1:].isdigit() and np.prod(tensor.dims) > 64


def results(model: onnx.ModelProto, values: Results, threads: int, runs: int) -> list[Results]:
    """What each of several runs gives."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, values), strict=True)) for _ in range(runs)]


def different(found: list[Results]) -> int:
    """How many of the results have bits of their own."""
    return len({b"".join(one[name].tobytes() for name in sorted(one)) for one in found})


def error(found: Results, expected: Results) -> float:
    """Of the worst gradient, in the Euclidean norm, relative."""
    return max(
        float(
            np.linalg.norm((found[name] - want.astype(np.float64)).ravel())
            / (np.linalg.norm(want.astype(np.float64).ravel()) + 1e-30)
        )
        for name, want in expected.items()
        if name.endswith(".grad")
    )


def _expected(made: Case) -> tuple[str, Results]:
    try:
        return "float64", results(*backward(made, np.float64), 1, 1)[0]
    except (NotImplemented, Fail, InvalidGraph, RuntimeException):
        pass  # onnxruntime has no kernel of this type
    return "float32", results(*backward(made, np.float32), 1, 1)[0]


def main() -> None:
    """Print the table."""
    for made in LARGE:
        if len(sys.argv) > 1 and made.op not in sys.argv[1:]:
            continue
        kind, want = _expected(made)
        model, values = backward(made, np.float32)
        cells = []
        for threads in THREADS:
            found = results(model, values, threads, RUNS)
            worst = max(error(one, want) for one in found)
            cells.append(f"{different(found)} different, off by {worst:.0e}")
        print(f"{made.label()[:90]} ({kind}): {' | '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
