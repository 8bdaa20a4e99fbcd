"""What the registry knows of one model: how to make it and which arguments it takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from models.builder import GraphBuilder

Argument = int | float | bool | str

COMMON: Mapping[str, Argument] = {"seed": 0, "symbolic_batch": False, "weights": True}


@dataclass(frozen=True)
class Spec:
    """A named model. ``defaults`` lists every argument; its value's type is the argument's."""

    name: str
    summary: str
    make: Callable[..., onnx.ModelProto]
    defaults: Mapping[str, Argument]

    def build(self, arguments: Mapping[str, Argument]) -> onnx.ModelProto:
        """Makes the model with ``arguments`` in place of the defaults of the same name."""
        for key, value in arguments.items():
            self._check(key, value)
        return self.make(**{**self.defaults, **arguments})

    def _check(self, key: str, value: Argument) -> None:
        if key not in self.defaults:
            known = ", ".join(self.defaults)
            raise ValueError(f"{self.name} takes no argument {key!r}; it takes {known}")
        default = self.defaults[key]
        accepted = (int, float) if isinstance(default, float) else type(default)
        # bool is a subclass of int, and batch=True is a slip
        if not isinstance(value, accepted) or isinstance(value, bool) != isinstance(default, bool):
            expected = type(default).__name__
            raise ValueError(f"{self.name}: {key} must be of type {expected}, not {value!r}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            lowest = 0 if key == "seed" else 1
            if value < 0 or (isinstance(default, int) and value < lowest):
                raise ValueError(f"{self.name}: {key} must be at least {lowest}, not {value!r}")


def architecture(
    name: str,
    summary: str,
    define: Callable[..., None],
    *,
    batch: int,
    fixed: Mapping[str, Argument] | None = None,
    **sizes: Argument,
) -> Spec:
    """A model that ``define(graph, **fixed, **sizes)`` writes into a GraphBuilder."""

    def make(
        *, batch: int, seed: int, symbolic_batch: bool, weights: bool, **sizes: Argument
    ) -> onnx.ModelProto:
        graph = GraphBuilder(
            name, batch=batch, seed=seed, symbolic_batch=symbolic_batch, weights=weights
        )
        define(graph, **(fixed or {}), **sizes)
        return graph.build()

    return Spec(name, summary, make, {"batch": batch, **sizes, **COMMON})
