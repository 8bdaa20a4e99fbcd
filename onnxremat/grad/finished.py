"""The last passes over a step's operators: what onnxruntime runs, exactly and without waste."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from onnxremat.grad.assembly import needed
from onnxremat.grad.constants import Constants
from onnxremat.grad.exported.scales import with_single_scales
from onnxremat.grad.host.blocked import in_blocks
from onnxremat.grad.host.tiles import in_tiles
from onnxremat.grad.lowering.attention_sums import with_short_sums
from onnxremat.grad.lowering.one_by_one import with_single_reductions
from onnxremat.grad.portable import without_training_kernels
from onnxremat.grad.roles import with_phase
from onnxremat.grad.settings import Settings
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op


def finished(
    t: Tape,
    ops: Sequence[Op],
    outputs: Sequence[str],
    settings: Settings,
    known: Constants,
    inputs: Collection[str],
) -> list[Op]:
    """The step's operators as they are written, in their order.

    Args:
        t: the tape, which new constants go to.
        ops: every operator of the step, forward and backward.
        outputs: what the step gives.
        settings: ``portable`` leaves out training kernels, ``blocked`` asks for the host's layout.
        known: tensors whose values are known, parameters excepted.
        inputs: what callers feed.
    """
    if settings.portable:
        ops = without_training_kernels(t, ops)
    ops = with_single_reductions(t, ops, known)
    ops = with_short_sums(t, needed(ops, outputs), outputs, known)
    if settings.blocked:
        ops = in_blocks(t, ops, outputs)
    ops = needed(with_single_scales(t, ops, known, inputs), outputs)
    if settings.blocked:
        ops = in_tiles(t, ops, outputs)
    return [with_phase(op) for op in ops]
