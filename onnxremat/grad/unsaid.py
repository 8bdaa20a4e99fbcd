"""What files of PyTorch's older exporter do not say: whether a tensor whose name it made up holds
the numbers of a parameter, moved, or what it computed of them."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from onnxremat.grad.marks import Marks, is_nameless

# Operators for which that exporter moves weights, in every file; of convolutions, whose weights it
# joins with a normalization, something is said elsewhere.
_MOVED_FOR = frozenset({"MatMul", "LSTM", "GRU", "RNN", "Conv", "ConvTranspose"})
_SHOWN = 3


def unsaid(model: onnx.ModelProto, marks: Marks, trained: Collection[str]) -> list[str]:
    """A warning about tensors that may have been computed, if there are any.

    Args:
        model: with its parameters restored (:mod:`onnxremat.grad.unfold`).
        trained: names of initializers.
    """
    if not marks.named or marks.trained is not None:
        return []
    found: dict[str, None] = {}
    for node in model.graph.node:
        if node.op_type not in _MOVED_FOR:
            found.update((name, None) for name in node.input if name in trained)
    names = [name for name in found if is_nameless(name) and "." not in name]
    if not names:
        return []
    shown = ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
    return [
        f"PyTorch's older exporter made up the names of {len(names)} trained tensors ({shown}): it "
        "moved the elements of parameters, or computed with them (1 + w, w / 2), and the file does "
        "not say which; what was computed is trained in place of the parameter "
        "(do_constant_folding=False keeps parameters, onnxremat.check_export compares)"
    ]
