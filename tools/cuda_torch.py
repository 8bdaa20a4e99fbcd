"""PyTorch's side of cuda_all.py: the same nets, weights and data, plain SGD, in float32.

Ways: ``eager``; ``checkpoint``, each block under torch.utils.checkpoint; ``compile``,
torch.compile; ``budget``, torch.compile with half of the activations' memory
(``torch._functorch.config.activation_memory_budget``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from cuda_plans import Stand, median_seconds
from onnx import numpy_helper
from torch.utils.checkpoint import checkpoint
from torch_nets import FORWARDS

import models

HEADS = {"bert": ("layers", "heads"), "vit": ("layers", "heads")}
RUNS = 15


def torch_row(stand: Stand, net: str, way: str) -> dict[str, Any]:
    """Seconds of a step, bytes at its peak (parameters included), losses."""
    where = "cuda" if stand.provider == "cuda" else "cpu"
    # As ours: no TF32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    step = _step(stand, net, way, where)
    begin = time.perf_counter()
    losses = [step(), step()]
    ready = time.perf_counter() - begin
    if where == "cuda":
        torch.cuda.reset_peak_memory_stats()
    losses.append(step())
    peak = torch.cuda.max_memory_allocated() if where == "cuda" else 0
    with stand.alone():
        seconds = median_seconds(2 if stand.tiny else RUNS, step)
    return {
        "net": net, "way": way, "seconds": seconds, "peak_bytes": peak, "first_steps": ready,
        "losses": losses, "torch": torch.__version__,
    }  # fmt: skip


def _step(stand: Stand, net: str, way: str, where: str) -> Callable[[], float]:
    size = stand.net(net)[1] if net in HEADS else _images(stand, net)
    model = models.build(net, **size)
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    values = {n: torch.tensor(a, device=where) for n, a in stored.items() if a.dtype == np.float32}
    parameters = [
        value.requires_grad_(True)
        for name, value in values.items()
        if value.dim() and "running" not in name and not name.startswith("/")
    ]
    inputs = {name: torch.tensor(a, device=where) for name, a in models.feeds(model).items()}
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    drawn = np.random.default_rng(0).integers(0, shape[-1], shape[:-1])
    targets = torch.tensor(drawn, device=where).reshape(-1)
    block = partial(checkpoint, use_reentrant=False) if way == "checkpoint" else _as_it_is
    settings = {name: size[name] for name in HEADS.get(net, ()) if name in size}
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def loss_of() -> torch.Tensor:
        y = FORWARDS[net](values, inputs, block, **settings)
        return torch.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), targets)

    made = _compiled(loss_of, way)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = made()
        loss.backward()
        optimizer.step()
        return float(loss.detach())  # waits for the GPU

    return step


def _images(stand: Stand, net: str) -> dict[str, Any]:
    """The size of a net that has no toy: small images here."""
    if not stand.tiny:
        return stand.net(net)[1]
    return {"batch": 2, "size": 32, **({"width": 8} if net == "resnet50" else {})}


def _compiled(loss_of: Callable[[], torch.Tensor], way: str) -> Callable[[], torch.Tensor]:
    if way == "budget":
        from torch._functorch import config

        config.activation_memory_budget = 0.5
    return torch.compile(loss_of) if way in ("compile", "budget") else loss_of


def _as_it_is(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
