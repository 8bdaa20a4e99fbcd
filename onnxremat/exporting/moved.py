"""A module with other values of its parameters than those that it is exported with.

A number that the module computes from a parameter, and that the file holds as a constant, is right
as long as nobody trains the parameter. So is a number of the code that an exporter took for one of
a parameter, as both were equal. With other values of the parameters either shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from onnxremat.exporting.pytorch import need_torch

MOVED = 0.1  # of each number, at most; at least half of it
ZERO = 0.02  # what a parameter of zeros has then
ROUNDING = {np.dtype(np.float16): 1e-3}
SINGLE = 2e-7  # relative: what rounding in float32 may do to a number


def moved(values: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Each number a little larger or smaller, and of the same sign; zeros are none any more."""
    return _changed(values, seed, _moved)


def _changed(
    values: Mapping[str, np.ndarray],
    seed: int,
    change: Callable[[np.ndarray, np.random.Generator], np.ndarray],
) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {n: change(v, random) if v.dtype.kind == "f" else v for n, v in values.items()}


def _moved(value: np.ndarray, random: np.random.Generator) -> np.ndarray:
    share = random.uniform(MOVED / 2, MOVED, value.shape).astype(np.float32)
    share *= random.choice(np.array([-1.0, 1.0], np.float32), value.shape)
    finite = value[np.isfinite(value) & (value != 0)].astype(np.float32)
    zeros = float(np.abs(finite).mean()) if finite.size else ZERO / MOVED
    made = np.where(value == 0, zeros * share, value * (1 + share))
    return made.astype(value.dtype)


def rounded(values: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Each number off by no more than rounding: what such values change says what rounding may."""
    return _changed(values, seed, _rounded)


def _rounded(value: np.ndarray, random: np.random.Generator) -> np.ndarray:
    share = ROUNDING.get(value.dtype, SINGLE) * random.uniform(-1, 1, value.shape)
    return np.asarray(value * (1 + share), value.dtype)


@contextlib.contextmanager
def holding(module: Any, values: Mapping[str, np.ndarray]) -> Iterator[None]:
    """The module has these values of parameters in the block, and its own again afterwards. What
    it has kept of calls (tables of attention biases, in eval mode) is forgotten before the block,
    and there again after it."""
    torch = need_torch()
    parameters = dict(module.named_parameters())
    kept = {name: parameters[name].detach().clone() for name in values}
    attributes = [_attributes(part) for part in module.modules()]
    modes = {part: part.training for part in module.modules()}
    try:
        with torch.no_grad():
            for name, value in values.items():
                parameters[name].copy_(torch.from_numpy(value))
        module.train()  # by which modules forget what they computed of their parameters
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for part, own, containers in attributes:
            vars(part).clear()
            vars(part).update(own)
            for container, content in containers:
                container.clear()
                container.update(content)
        with torch.no_grad():
            for name, value in kept.items():
                parameters[name].copy_(value)


def _attributes(part: Any) -> tuple[Any, dict[str, Any], list[tuple[Any, Any]]]:
    own = dict(vars(part))
    held = [value for value in own.values() if isinstance(value, dict | set)]
    return part, own, [(value, value.copy()) for value in held]
