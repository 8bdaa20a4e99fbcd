"""From which parameter of a module each number of an exported tensor comes.

Exporters transpose, reshape, slice, expand, gather and concatenate parameters. No two numbers of a
zoo module are equal, so each number of a tensor in the file says which element of which parameter
it is, whatever was done to it, and the gradient of the parameter is what is added up at these
elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import numpy_helper

SHARE = 0.5  # of the numbers of a tensor: with fewer it is from somewhere else


@dataclass(frozen=True)
class Source:
    """Where the numbers of one tensor come from.

    Attributes:
        places: per number its place among all numbers of the module, -1 where it is none of them.
        owners: parameters and buffers that have a part in it.
    """

    places: np.ndarray
    owners: tuple[str, ...]


class Index:
    """Every floating-point number of a module by value.

    Attributes:
        trained: names of the parameters that PyTorch trains.
        ranges: per parameter and buffer, from where to where its numbers are.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        parameters = dict(module.named_parameters())
        self.trained = [name for name, p in parameters.items() if p.requires_grad]
        buffers = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
        # Parameters last: where a buffer holds the same numbers, they are the parameter's.
        names = [*buffers, *(n for n in parameters if n not in self.trained), *self.trained]
        values = [(parameters.get(n, buffers.get(n))) for n in names]
        flat = [value.detach().float().reshape(-1).numpy() for value in values]
        ends = np.cumsum([part.size for part in flat])
        self.ranges = {
            name: (int(end - part.size), int(end))
            for name, end, part in zip(names, ends, flat, strict=True)
        }
        self.shapes = {name: tuple(v.shape) for name, v in zip(names, values, strict=True)}
        every = np.concatenate(flat)
        self.size = every.size
        self._order = np.argsort(every, kind="stable")
        self._sorted = every[self._order]

    def source(self, array: np.ndarray) -> Source:
        """Where the numbers of an array come from."""
        flat = array.astype(np.float32).reshape(-1)
        at = np.searchsorted(self._sorted, flat, side="right") - 1
        at = at.clip(min=0)
        places = np.where(self._sorted[at] == flat, self._order[at], -1)
        if (places >= 0).sum() < SHARE * flat.size:  # a few numbers agree by chance
            places = np.full_like(places, -1)
        hit = places[places >= 0]
        owners = [name for name, (a, b) in self.ranges.items() if ((hit >= a) & (hit < b)).any()]
        return Source(places, tuple(owners))


@dataclass(frozen=True)
class Gathered:
    """Numbers of the file's tensors brought back to the module's parameters.

    Attributes:
        of: per parameter, the sum of what came from each element.
        times: per parameter, how many trained numbers came from each element.
    """

    of: dict[str, np.ndarray]
    times: dict[str, np.ndarray]


def gather(
    index: Index, sources: Mapping[str, Source], values: Mapping[str, np.ndarray], *, mean: bool
) -> Gathered:
    """Add up values of tensors at the elements of parameters that they came from.

    Args:
        mean: divide by how often an element occurs: for values, not for gradients.
    """
    total, times = np.zeros(index.size), np.zeros(index.size, np.int64)
    for name, source in sources.items():
        known = source.places >= 0
        places, flat = source.places[known], values[name].reshape(-1)[known]
        np.add.at(total, places, flat.astype(np.float64))
        np.add.at(times, places, 1)
    if mean:
        total = total / np.maximum(times, 1)

    def of(name: str, flat: np.ndarray) -> np.ndarray:
        start, end = index.ranges[name]
        return flat[start:end].reshape(index.shapes[name])

    return Gathered(
        {name: of(name, total) for name in index.trained},
        {name: of(name, times) for name in index.trained},
    )


def floats_in(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Every floating-point array that a file holds, as initializers or in Constant nodes."""
    tensors = list(model.graph.initializer)
    for node in model.graph.node:
        if node.op_type == "Constant":
            tensors += [a.t for a in node.attribute if a.HasField("t")]
    arrays = {f"{k}:{t.name}": numpy_helper.to_array(t) for k, t in enumerate(tensors)}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
