"""Which initializers are trained."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from onnxremat.errors import UsageError
from onnxremat.grad.tape import FLOATS
from onnxremat.graph.ir import Graph, Op

# Inputs that hold settings or statistics, not parameters.
SETTINGS = {
    "BatchNormalization": (3, 4), "Clip": (1, 2), "Dropout": (1,), "GRU": (5,), "LSTM": (5, 6),
    "OneHot": (2,), "Pad": (2,), "Pow": (1,), "RNN": (5,), "Resize": (1, 2), "Upsample": (1,),
}  # fmt: skip
# Exporters write constants of the code under such names; parameters keep the module's.
CONSTANT_PREFIXES = ("/", "val_", "Constant", "const_", "_val_")


def choose_parameters(
    graph: Graph,
    weights: Sequence[str],
    trainable: Sequence[str] | None,
    freeze: Sequence[str],
) -> tuple[str, ...]:
    """Names of the tensors to train, in the order of ``weights``.

    By default every floating-point initializer is trained that is not a scalar, not a setting or
    statistic of an operator, and not named as exporters name constants. With ``trainable``
    patterns, exactly the initializers and inputs that match; ``freeze`` takes away from either.

    Raises:
        UsageError: a pattern that matches nothing, or nothing left to train.
    """
    floats = [name for name in weights if graph.tensors[name].dtype in FLOATS]
    if trainable is None:
        chosen = learned(graph, weights)
    else:
        inputs = [n for n in graph.inputs if n not in floats and graph.tensors[n].dtype in FLOATS]
        chosen = _matching(floats + inputs, trainable, "--trainable")
    frozen = set(_matching(chosen, freeze, "--freeze"))
    chosen = [name for name in chosen if name not in frozen]
    if not chosen:
        raise UsageError(
            "there is nothing to train",
            why=f"the model has {len(floats)} floating-point initializers, none of them chosen",
            hint="name parameters with --trainable PATTERN",
        )
    return tuple(chosen)


def learned(graph: Graph, weights: Sequence[str]) -> list[str]:
    """The initializers that look like parameters, trained or not."""
    settings = _settings(graph.ops)
    return [
        name
        for name in weights
        if graph.tensors[name].dtype in FLOATS
        and graph.tensors[name].shape != ()
        and name not in settings
        and not name.startswith(CONSTANT_PREFIXES)
    ]


def _settings(ops: Sequence[Op]) -> set[str]:
    """Tensors that occur only as settings."""
    setting: set[str] = set()
    other: set[str] = set()
    for op in ops:
        places = SETTINGS.get(op.op_type, ())
        for position, name in enumerate(op.inputs):
            (setting if position in places else other).add(name)
    return setting - other


def _matching(names: Sequence[str], patterns: Sequence[str], option: str) -> list[str]:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"{option} '{pattern}' matches no parameter",
                hint="parameters are " + ", ".join(names[:8]) + (", ..." * (len(names) > 8)),
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
