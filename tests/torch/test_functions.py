"""Functions of PyTorch, exported by its own exporters, against its autograd.

A function agrees when no element of a gradient is further from PyTorch's than ``TOLERANCE`` of the
largest element of that gradient. Its inputs are inputs of the model, so that nothing is folded.

The older exporter takes a tenth of a second per function, the newer one seconds: that one is asked
for a sample only, of functions that the older one lacks or writes in another way.
``python -m tests.torch.test_functions EXPORTER`` prints what becomes of every function.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from onnxremat.errors import OnnxrematError
from onnxremat.grad import differentiate
from tests.grad.checking import _session
from tests.torch import layers  # which adds to the functions
from tests.torch.functions import FUNCTIONS, Function

assert layers
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's own
TOLERANCE = 1e-5
# What the older exporter (PyTorch 2.13) refuses.
NOT_EXPORTED = (
    "sinh cosh asinh erfc expm1 exp2 positive sinc deg2rad rad2deg lgamma digamma i0 atanh "
    "erfinv acosh sgn trunc frac threshold hypot addcdiv xlogy logaddexp copysign cumprod "
    "logcumsumexp cummax trace diff dist roll_flat rot90 diag diag_embed channel_shuffle "
    "block_diag_like take_along_dim bincount_like kron bilinear pdist inverse triplet_like "
    "adaptive_avg_pool1d_odd adaptive_max_pool1d_odd adaptive_avg_pool2d_odd "
    "adaptive_max_pool2d_odd adaptive_avg_pool3d_odd adaptive_max_pool3d_odd max_unpool2d "
    "interpolate_area_factor interpolate_area_size interpolate_nearest-exact_factor "
    "interpolate_nearest-exact_size interpolate_antialias rfft fft_abs irfft rfft_irfft "
    "fft2_real fft_ortho fftn_mixer spectrogram istft_like rms_norm lstm_projected "
    "lstm_cell cross_entropy_smooth cross_entropy_smooth_weight bce l1_loss smooth_l1_loss "
    "smooth_l1_loss_beta huber_loss soft_margin_loss margin_ranking_loss "
    "hinge_embedding_loss cosine_embedding_loss multi_margin_loss poisson_nll_loss ctc_loss"
)
# What it writes as something else: the model does not run, or computes another function.
MISWRITTEN = (
    "softplus_beta scatter_reduce_sum scatter_reduce_amax scatter_reduce_prod "
    "avg_pool2d_divisor cross_entropy_soft cdist_1"
)
# A sample for the newer exporter, without optimisation (which would write fewer kinds of ops).
SAMPLE = ("split_sizes", "fft_abs", "rfft_irfft", "sdpa_causal", "huber_loss", "diff")


class Total(torch.nn.Module):
    """A function of one number: its results, each element weighted with a fixed number."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.call = function.call
        self.layer = getattr(function.call, "module", None)  # its parameters are exported by name
        with torch.no_grad():
            results = self._results(function.inputs)
        draw = torch.Generator().manual_seed(1)
        for k, result in enumerate(results):
            weights = torch.rand(result.shape, generator=draw) + 0.5
            signs = torch.randint(2, result.shape, generator=draw) * 2.0 - 1.0
            self.register_buffer(f"weights{k}", weights * signs)

    def _results(self, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        made = self.call(*inputs)
        results = [made] if torch.is_tensor(made) else list(made)
        return [result for result in results if result.is_floating_point()]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        results = self._results(inputs)
        return sum((y * getattr(self, f"weights{k}")).sum() for k, y in enumerate(results))


def exported(function: Function, exporter: str) -> onnx.ModelProto:
    """The model that an exporter writes: ``legacy``, ``dynamo``, or ``plain`` (dynamo without
    optimisation). Its inputs are x0, x1, ..., its output is total."""
    file = io.BytesIO()
    names = {
        "input_names": [f"x{k}" for k in range(len(function.inputs))],
        "output_names": ["total"],
        "opset_version": function.opset,
    }
    module = Total(function).eval()
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            if exporter == "legacy":
                torch.onnx.export(module, function.inputs, file, dynamo=False, **names)
                return onnx.load_from_string(file.getvalue())
            program = torch.onnx.export(
                module, function.inputs, dynamo=True, optimize=exporter == "dynamo", **names
            )
            return program.model_proto
        finally:
            logging.disable(logging.NOTSET)


def autograd(function: Function) -> dict[str, np.ndarray]:
    """PyTorch's gradients by input."""
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in function.inputs]
    Total(function).eval()(*inputs).backward()
    return {
        f"x{k}": (torch.zeros_like(x) if x.grad is None else x.grad).numpy()
        for k, x in enumerate(inputs)
        if x.is_floating_point()
    }


def errors(model: onnx.ModelProto, function: Function) -> Mapping[str, float]:
    """The largest error of each gradient that is not 0, in parts of its largest element."""
    wanted = {name: want for name, want in autograd(function).items() if want.any()}
    graph = differentiate(
        model, loss_output="total", optimizer=None, trainable=list(wanted), dropout=False,
        batch_norm="frozen",
    )  # fmt: skip
    feeds = {f"x{k}": x.numpy() for k, x in enumerate(function.inputs)}
    read = {value.name for value in graph.graph.input}
    results = _session(graph)({n: v for n, v in feeds.items() if n in read})
    found = dict(zip([o.name for o in graph.graph.output], results, strict=True))
    worst = {}
    for name, want in wanted.items():
        have = found.get(f"{name}.grad", np.zeros(want.shape, np.float32))
        assert have.shape == want.shape, (name, have.shape, want.shape)
        difference = np.abs(have.astype(np.float64) - want).max(initial=0.0)
        worst[name] = float(difference / max(np.abs(want).max(initial=0.0), 1e-3))
    return worst


LEGACY = FUNCTIONS.keys() - {*NOT_EXPORTED.split(), *MISWRITTEN.split()}


@pytest.mark.parametrize("name", sorted(LEGACY))
def test_exported_function_equals_autograd(name: str) -> None:
    found = errors(exported(FUNCTIONS[name], "legacy"), FUNCTIONS[name])
    assert max(found.values()) <= TOLERANCE, found


@pytest.mark.parametrize("name", SAMPLE)
def test_function_of_the_newer_exporter_equals_autograd(name: str) -> None:
    pytest.importorskip("onnxscript")
    opset = 23 if name.startswith("sdpa") else FUNCTIONS[name].opset  # the first with Attention
    function = replace(FUNCTIONS[name], opset=opset)
    found = errors(exported(function, "plain"), function)
    assert max(found.values()) <= TOLERANCE, found


def _outcome(function: Function, exporter: str) -> str:
    try:
        model = exported(function, exporter)
    except Exception as error:  # whatever an exporter raises
        return f"not exported: {type(error).__name__}"
    try:
        session = _session(model)
        feeds = {f"x{k}": x.numpy() for k, x in enumerate(function.inputs)}
        read = {value.name for value in model.graph.input}
        value = session({n: v for n, v in feeds.items() if n in read})[0]
    except Exception:
        return "written as a model that does not run"
    with torch.no_grad():
        wanted = Total(function).eval()(*function.inputs).numpy()
    if not np.allclose(value, wanted, rtol=1e-3, atol=1e-4):
        return "written as another function"
    try:
        worst = max(errors(model, function).values())
    except OnnxrematError as error:
        return f"refused: {error.what} ({error.where})"
    return f"{'ok' if worst <= TOLERANCE else 'WRONG'} {worst:.0e}"


if __name__ == "__main__":
    for label, each in FUNCTIONS.items():
        print(f"{label:36s} {_outcome(each, sys.argv[1])}", flush=True)
