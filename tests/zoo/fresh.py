"""Nets as they are when made, against autograd; see tests/grad/fresh.py."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import onnx
import torch

from tests.grad.fresh import Found, Wanted, look
from tests.zoo.autograd import norms_of


def compare_fresh(
    model: onnx.ModelProto, module: torch.nn.Module, data: Sequence[torch.Tensor]
) -> Found:
    """What became of the parameters of a module in a file with inputs ``input0``, ..."""
    return look(model, wanted(model, module, data))


def wanted(model: onnx.ModelProto, module: torch.nn.Module, data: Sequence[torch.Tensor]) -> Wanted:
    """By autograd, of a module in eval mode; batch normalizations that the file has as ops use the
    batch."""
    held = sum(node.op_type == "BatchNormalization" for node in model.graph.node)
    trainer = copy.deepcopy(module)
    norms = norms_of(trainer)
    for norm in norms.values():
        norm.train(0 < len(norms) <= held)
    prediction = trainer(*data)
    target = np.random.default_rng(5).standard_normal(tuple(prediction.shape)).astype(np.float32)
    loss = torch.nn.functional.mse_loss(prediction, torch.from_numpy(target))
    loss.backward()
    named = trainer.named_parameters()
    gradients = {name: p.grad.numpy() for name, p in named if p.grad is not None}
    inputs = {f"input{k}": x.numpy() for k, x in enumerate(data)}
    return Wanted(inputs, target, float(loss.detach()), gradients)
