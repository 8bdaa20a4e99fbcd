"""Random numbers that a module draws in training mode alone: no file of an inference holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from onnxremat.exporting.pytorch import Arguments, need_torch, outputs_of, set_modes, untouched


def drawn_in_training(module: Any, given: Arguments, resting: Mapping[str, Any]) -> list[str]:
    """Parts that draw random numbers in training mode and not in eval mode: stochastic depth,
    dropout that is called as a function, inside attention or between the layers of an LSTM.

    Layers for dropout count nowhere. Nothing is known of a module that does not run in training
    mode on these inputs, and then nothing is said.

    Args:
        resting: parts that stay in eval mode.
    """
    with untouched(module):
        try:
            set_modes(module)
            still = _drawn(module, given)
            _train(module, resting)
            found = _drawn(module, given)
        except Exception:  # whatever the module does in training mode, which export does not need
            return []
    return [name for name in found if name not in still]


def _train(module: Any, resting: Mapping[str, Any]) -> None:
    """Training mode, but for layers of dropout and batch normalizations."""
    nn = need_torch().nn.modules
    still, layers = {id(part) for part in resting.values()}, nn.dropout._DropoutNd
    for part in module.modules():
        if id(part) not in still and not isinstance(part, layers | nn.batchnorm._BatchNorm):
            part.training = True


def _drawn(module: Any, given: Arguments) -> dict[str, None]:
    torch = need_torch()
    inside: list[str] = []
    found: dict[str, None] = {}
    base = torch.utils._python_dispatch.TorchDispatchMode

    class Watch(base):  # type: ignore[misc,valid-type]
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if torch.Tag.nondeterministic_seeded in op.tags and _draws(op, args, kwargs or {}):
                found[inside[-1] if inside else ""] = None
            return op(*args, **(kwargs or {}))

    with _followed(module, inside), torch.no_grad(), Watch():
        outputs_of(module, given)
    return found


def _draws(op: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Fused attention is marked as random whatever its dropout, RReLU in eval mode, too."""
    for position, argument in enumerate(op._schema.arguments):
        if argument.name in ("dropout_p", "training", "train"):
            given = args[position] if position < len(args) else argument.default_value
            if named.get(argument.name, given) in (0, False):
                return False
    return True


@contextmanager
def _followed(module: Any, inside: list[str]) -> Iterator[None]:
    """Keeps the names of the parts that are running in ``inside``, the innermost one last."""

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: inside.append(name)

    def leave(*_: Any) -> None:  # what a hook returns takes the place of the result
        inside.pop()

    hooks = []
    try:
        for name, part in module.named_modules():
            hooks.append(part.register_forward_pre_hook(enter(name)))
            hooks.append(part.register_forward_hook(leave))
        yield
    finally:
        for hook in hooks:
            hook.remove()
