"""Parameters as the user gives them: a list of names, a state dict, or the module itself.

Names decide where the file has them. Where an exporter folded a parameter away, values tell: each
element of what it left is looked up among the elements of the parameters given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from onnxremat.errors import MissingComponentError, UsageError
from onnxremat.grad.exported.marks import is_buffer_name
from onnxremat.grad.exported.patterns import is_constant, zero_block
from onnxremat.grad.exported.stored import Stored
from onnxremat.grad.tape import FLOATS
from onnxremat.graph.onnx_io import missing_file
from onnxremat.graph.tensor_files import read_tensors
from onnxremat.ort.arrays import read_arrays

Parameters: TypeAlias = Any  # names, arrays by name, a path, or a torch.nn.Module
SAMPLE = 256  # elements looked up before all are


@dataclass(frozen=True)
class Given:
    """A list of parameters.

    Attributes:
        trained: whether each name is trained.
        values: their values, where known.
    """

    trained: Mapping[str, bool]
    values: Mapping[str, np.ndarray] = field(default_factory=dict)


def read_given(parameters: Parameters) -> Given:
    """A list of parameters from what the user gives.

    Args:
        parameters: names; arrays by name (a state dict; PyTorch's tensors are taken as well);
            a module with ``named_parameters``; or a path to a text file with a name per line, or
            to a state dict as .safetensors, .npz, .pt or .pth.

    Raises:
        UsageError: none of these, or a file that cannot be read.
        MissingComponentError: a PyTorch file without PyTorch.
    """
    if hasattr(parameters, "named_parameters"):
        found = dict(parameters.named_parameters())
        trained = {name: bool(value.requires_grad) for name, value in found.items()}
        return Given(trained, {name: _array(value) for name, value in found.items()})
    if isinstance(parameters, (str, Path)):
        return _from_file(Path(parameters))
    if isinstance(parameters, Mapping):
        return Given(
            {name: not is_buffer_name(name) for name in parameters},
            {name: _array(value) for name, value in parameters.items()},
        )
    if isinstance(parameters, Iterable):
        return Given({str(name): True for name in parameters})
    raise UsageError(
        f"cannot read parameters from a {type(parameters).__name__}",
        hint="give names, a state dict, a module, or a file of either",
    )


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(value)


def _from_file(path: Path) -> Given:
    if not path.is_file():
        make = "--parameters takes names, .npz, .safetensors or .pt"
        raise missing_file(path, path.suffix, make=make)
    readers = {".npz": _npz, ".safetensors": _safetensors, ".pt": _torch, ".pth": _torch}
    reader = readers.get(path.suffix)
    try:
        if reader is not None:
            return read_given(reader(path))
        lines = [line.split("#", 1)[0].strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise UsageError(
            f"cannot read parameters from {path}",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="it is a text file with a name per line, or .safetensors, .npz, .pt, .pth",
        ) from error
    names = [line for line in lines if line]
    if not names:
        raise UsageError(f"{path} names no parameter", hint="write one name per line")
    return read_given(names)


def _npz(path: Path) -> Mapping[str, np.ndarray]:
    return read_arrays(path, "parameters")


def _safetensors(path: Path) -> Mapping[str, np.ndarray]:
    return read_tensors(path)[0]


def _torch(path: Path) -> Mapping[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise MissingComponentError(
            f"{path} is a file of PyTorch, which is not installed",
            hint="pip install torch, or save the state dict as .safetensors or .npz",
        ) from error
    found = torch.load(path, map_location="cpu", weights_only=True)
    found = found.get("state_dict", found.get("model", found)) if hasattr(found, "get") else found
    return {name: value for name, value in found.items() if hasattr(value, "detach")}


def matched(
    model: onnx.ModelProto, folder: Path | None, given: Given
) -> dict[str, tuple[str, ...]]:
    """Names of the given parameters that each initializer is made of, most elements first.

    Initializers that have a given name are that parameter; of the others every element is looked
    up among the given values. What is computed from parameters (a product, a sum) is not found.
    """
    stored = Stored(model, folder)
    floats = [t.name for t in model.graph.initializer if t.data_type in FLOATS]
    found: dict[str, tuple[str, ...]] = {n: (n,) for n in floats if n in given.trained}
    waiting = [n for n in floats if n not in found and stored.size(n) > 1 and stored.readable(n)]
    if not waiting or not given.values:
        return found
    index = _Index({n: v for n, v in given.values.items() if v.dtype.kind == "f"})
    for name in waiting:
        sources = index.sources(stored.value(name))
        if sources:
            found[name] = sources
    return found


class _Index:
    """Which parameter a number is in."""

    def __init__(self, values: Mapping[str, np.ndarray]) -> None:
        self.names: Sequence[str] = list(values)
        flat = [np.asarray(v, np.float32).reshape(-1) for v in values.values()]
        owner = [np.full(v.size, k, np.int32) for k, v in enumerate(flat)]
        every = np.concatenate([*flat, np.empty(0, np.float32)])
        order = np.argsort(every, kind="stable")
        self.sorted = every[order]
        self.owner = np.concatenate([*owner, np.empty(0, np.int32)])[order]
        self.constant = {
            name: float(v.flat[0]) for name, v in zip(self.names, flat, strict=True)
            if is_constant(v)
        }  # fmt: skip

    def sources(self, value: np.ndarray) -> tuple[str, ...]:
        """Parameters with the elements of a tensor, empty where some are in none."""
        flat = np.asarray(value, np.float32).reshape(-1)
        if is_constant(flat):
            return ()  # equal numbers are in many
        if zeros := zero_block(value):  # of a buffer that the parameters were joined with
            flat = np.delete(flat, np.s_[slice(*zeros)])
        sample = flat[np.linspace(0, flat.size - 1, min(SAMPLE, flat.size)).astype(int)]
        if not self._all_there(sample):
            return ()
        if not self._all_there(flat):
            return ()
        left = np.searchsorted(self.sorted, flat, "left")
        right = np.searchsorted(self.sorted, flat, "right")
        single = left + 1 == right
        count = np.bincount(self.owner[left[single]], minlength=len(self.names))
        order = np.argsort(-count, kind="stable")
        return tuple(self.names[k] for k in order if count[k] * 50 >= max(single.sum(), 1))

    def _all_there(self, flat: np.ndarray) -> bool:
        place = np.minimum(np.searchsorted(self.sorted, flat), max(len(self.sorted) - 1, 0))
        return bool(len(self.sorted)) and bool((self.sorted[place] == flat).all())
