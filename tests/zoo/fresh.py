"""Nets as they are when made, against autograd; see tests/grad/fresh.py."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch

from onnxremat.grad.exported.marks import folded_norms, module_of
from onnxremat.grad.exported.twins import with_twins
from tests.grad.fresh import Found, Wanted, look
from tests.zoo.altered import NAMELESS
from tests.zoo.autograd import norms_of
from tests.zoo.export import exported
from tests.zoo.registry import Architecture


def fresh(net: Architecture, exporter: str, folder: Path) -> Found:
    """What became of the parameters of a net of the zoo as it is made.

    Args:
        folder: the cache of exported files.

    Raises:
        NotExportedError: there is no file.
    """
    module = net.module(fresh=True)
    return compare_fresh(exported(net, module, exporter, folder), module, net.data())


def line(net: str, exporter: str, found: Found) -> str:
    """One line of the table."""
    return (
        f"{net:20} {exporter:13} {len(found.right):5} {len(found.told):4} {len(found.silent):6} "
        f"{found.loss:7.0e}" + "".join(f"\n    OFF silently wrong: {n}" for n in found.silent)
    )


def compare_fresh(
    model: onnx.ModelProto, module: torch.nn.Module, data: Sequence[torch.Tensor]
) -> Found:
    """What became of the parameters of a module in a file with inputs ``input0``, ..."""
    found = look(model, want := wanted(model, module, data))
    if found.silent:
        exact = wanted(model, module, data, torch.float64).gradients
        apart = {n: float(np.linalg.norm(g - exact[n])) for n, g in want.gradients.items()}
        found = look(model, replace(want, rounding=apart))
    told = _told_at_once(model, module, found)
    found.told += told
    found.silent = [name for name in found.silent if name not in told]
    return found


def _told_at_once(model: onnx.ModelProto, module: torch.nn.Module, found: Found) -> list[str]:
    """Of what is off, parameters that warnings tell together, since there are many, or the file
    has no names for them: those of folded normalizations, with the convolutions they went into,
    and those that the older exporter made tensors of."""
    folds, stores = (any(text in said for said in found.warnings) for text in NAMELESS)
    weights = {end for name in folded_norms(model) for end in (name, f"{name}.weight")}
    norms = tuple(f"{name}." for name in norms_of(module))
    held = {tensor.name for tensor in model.graph.initializer}
    return [
        name
        for name in found.silent
        if (folds and (name in weights or name.startswith(norms))) or (stores and name not in held)
    ]


def wanted(
    model: onnx.ModelProto,
    module: torch.nn.Module,
    data: Sequence[torch.Tensor],
    real: torch.dtype = torch.float32,
) -> Wanted:
    """By autograd, of a module in eval mode; batch normalizations that the file has as ops use the
    batch."""
    nodes = with_twins(model).graph.node
    ops = [node for node in nodes if node.op_type == "BatchNormalization"]
    trainer = copy.deepcopy(module).to(real)
    norms = norms_of(trainer)
    named = {module_of(node) for node in ops}.intersection(norms)
    for name, norm in norms.items():
        norm.train(name in named if named else len(ops) >= len(norms))
    prediction = trainer(*(x.to(real) if x.is_floating_point() else x for x in data))
    target = np.random.default_rng(5).standard_normal(tuple(prediction.shape)).astype(np.float32)
    loss = torch.nn.functional.mse_loss(prediction, torch.from_numpy(target).to(real))
    loss.backward()
    every = trainer.named_parameters()
    gradients = {name: p.grad.numpy() for name, p in every if p.grad is not None}
    inputs = {f"input{k}": x.numpy() for k, x in enumerate(data)}
    return Wanted(inputs, target, float(loss.detach()), gradients)
