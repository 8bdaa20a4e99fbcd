"""PyTorch's side of an export: its modules, and its two exporters."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnxremat.errors import MissingComponentError, UnsupportedError, UsageError
from onnxremat.exporting.smoothing import smoothing_written_out
from onnxremat.grad.exported.listed import Parameters

Inputs: TypeAlias = Any  # a tensor, a tuple or list of them, or a dict by argument name
SHELL = "onnxremat_shell"  # prefix of names in a legacy export
BATCH = "batch"
PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def need_torch() -> Any:
    """The ``torch`` module.

    Raises:
        MissingComponentError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingComponentError(
            "PyTorch is not installed",
            why="a module can only be exported or checked where PyTorch can run it",
            hint="pip install 'onnxremat[torch]'",
        ) from error
    return torch


def need_module(module: Any) -> Any:
    """The module.

    Raises:
        UsageError: it is none, or its lazy layers have no parameters yet.
        MissingComponentError: PyTorch is not installed.
    """
    torch = need_torch()
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"a {type(module).__name__} is no torch.nn.Module", hint="give the module itself"
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise UsageError(
                f"'{name}' of this {type(module).__name__} has no shape yet",
                why="a lazy layer makes it at its first call",
                hint="call the module once: module(*example_inputs)",
            )
    return module


@dataclass(frozen=True)
class Arguments:
    """Example inputs as a call takes them, and their names.

    Attributes:
        positional, named: as in ``module(*positional, **named)``.
        names: of all tensors, in this order.
    """

    positional: tuple[Any, ...]
    named: dict[str, Any]
    names: tuple[str, ...]

    @property
    def tensors(self) -> tuple[Any, ...]:
        """In the order of ``names``."""
        return (*self.positional, *self.named.values())

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, for onnxruntime."""
        return {
            n: np.asarray(numbers(n, t), order="C")  # which leaves a single number one
            for n, t in zip(self.names, self.tensors, strict=True)
        }

    def with_tensors(self, tensors: Sequence[Any]) -> Arguments:
        """The same call with other values."""
        count = len(self.positional)
        named = dict(zip(self.named, tensors[count:], strict=True))
        return Arguments(tuple(tensors[:count]), named, self.names)


def arguments(module: Any, given: Inputs, names: Sequence[str] | None = None) -> Arguments:
    """Example inputs sorted out; names are those of ``forward`` unless given.

    Raises:
        UsageError: not tensors, or other than as many names.
    """
    torch = need_torch()
    named = dict(given) if isinstance(given, Mapping) else {}
    positional: tuple[Any, ...] = ()
    if not named:
        positional = tuple(given) if isinstance(given, list | tuple) else (given,)
    odd = [v for v in (*positional, *named.values()) if not torch.is_tensor(v)]
    if odd or not (positional or named):
        raise UsageError(
            "example inputs are tensors",
            why=f"there is a {type(odd[0]).__name__} among them" if odd else "there are none",
            hint="wrap the module in one that takes tensors only",
        )
    told = list(names or [*_argument_names(module, len(positional)), *named])
    if len(told) != len(positional) + len(named):
        raise UsageError(f"{len(told)} input names for {len(positional) + len(named)} inputs")
    taken = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    told = [f"{name}_input" if name in taken and not names else name for name in told]
    return Arguments(positional, named, tuple(told))


def _argument_names(module: Any, count: int) -> list[str]:
    known = inspect.signature(module.forward).parameters.values()
    names = [p.name for p in known if p.kind in PLAIN][:count]
    return names if len(names) == count else [f"input{k}" for k in range(count)]


def facts_of(module: Any, resting: Mapping[str, Any] | None = None) -> Parameters:
    """The names of a module's parameters and buffers; ``stopped`` and ``unused`` are not known yet.

    Args:
        resting: parts that stay in eval mode (:func:`at_rest`).
    """
    own = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    return Parameters(
        trained=tuple(name for name, p in own.items() if p.requires_grad),
        frozen=tuple(name for name, p in own.items() if not p.requires_grad),
        buffers=tuple(buffers),
        resting=tuple(f"{name}.running_mean" for name in resting or {}),
        tied=_further(own, module.named_parameters(remove_duplicate=False))
        | _further(buffers, module.named_buffers(remove_duplicate=False)),
    )


def _further(own: Mapping[str, Any], every: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Further names of tensors to the first name of each: a module may have two places in
    another, and a tensor in two modules."""
    name_of = {id(tensor): name for name, tensor in own.items()}
    return {name: name_of[id(tensor)] for name, tensor in every if name not in own}


def values_of(module: Any) -> dict[str, np.ndarray]:
    """Every parameter and buffer by name."""
    every = (*module.named_parameters(), *module.named_buffers())
    return {name: numbers(name, value) for name, value in every}


def numbers(name: str, tensor: Any) -> np.ndarray:
    """A tensor as an array.

    Args:
        name: for messages.

    Raises:
        UnsupportedError: NumPy has no such numbers.
    """
    try:
        array: np.ndarray = tensor.detach().cpu().numpy()
    except TypeError as error:
        raise UnsupportedError(
            f"a module with tensors of {str(tensor.dtype).removeprefix('torch.')} is not exported",
            where=name,
            why="NumPy has no such numbers, and onnxruntime few kernels for them: what is exported "
            "could not be compared with the module",
            hint="module.float() and inputs of float32; for training in bfloat16, differentiate "
            "with precision='bf16'",
        ) from error
    return array


# ---- state of a module -----------------------------------------------------------------------


@contextlib.contextmanager
def untouched(module: Any) -> Iterator[None]:
    """Whatever the block does to modes, buffers, gradients wanted and random numbers is undone."""
    torch = need_torch()
    modes = {part: part.training for part in module.modules()}
    buffers = [(part, dict(part._buffers)) for part in modes]  # a call may put others there
    values = [(b, b.detach().clone()) for b in module.buffers()]
    wanted = [(p, p.requires_grad, p.grad) for p in module.parameters()]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.backends.mha.set_fastpath_enabled(False)  # one fused op, which no exporter knows
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part, mode in modes.items():
            part.training = mode
        for part, own in buffers:
            part._buffers.update(own)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        for parameter, grad_wanted, gradient in wanted:
            parameter.requires_grad_(grad_wanted)
            parameter.grad = gradient


def at_rest(module: Any) -> dict[str, Any]:
    """Parts in eval mode inside a module in training mode, by name: they are to stay so. Of one
    that is in eval mode as a whole nothing is known."""
    parts = module.named_modules() if module.training else ()
    return {name: part for name, part in parts if not part.training}


def set_modes(
    module: Any,
    *,
    dropout: bool = False,
    batch_norm: bool = False,
    resting: Mapping[str, Any] | None = None,
) -> None:
    """Eval mode, but for batch normalizations that are not frozen and those dropout layers that
    ONNX has an operator for, where asked.

    Args:
        resting: parts that stay in eval mode all the same (:func:`at_rest`).
    """
    torch = need_torch()
    module.eval()
    still = {id(part) for part in (resting or {}).values()}
    for part in (part for part in module.modules() if id(part) not in still):
        if dropout and isinstance(part, torch.nn.Dropout) and part.p > 0:
            part.training = True
        if batch_norm and isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            own = [p.requires_grad for p in part.parameters()]
            part.training = not own or any(own)


def other_dropouts(module: Any) -> list[str]:
    """Dropout layers that no operator of ONNX is for (Dropout2d, AlphaDropout), by name."""
    torch = need_torch()
    every = torch.nn.modules.dropout._DropoutNd
    return [
        name
        for name, part in module.named_modules()
        if isinstance(part, every) and not isinstance(part, torch.nn.Dropout) and part.p > 0
    ]


def tables_with(module: Any, setting: str) -> list[str]:
    """Embeddings with a setting that no file holds, by name: ``max_norm``, by which a call scales
    rows down in place, or ``scale_grad_by_freq``, by which gradients are divided."""
    every = module.named_modules()
    return [name for name, part in every if getattr(part, setting, None) not in (None, False)]


def padding_rows(module: Any) -> dict[str, int]:
    """Rows that embeddings keep for padding and do not train (``padding_idx``), by their names in
    the shell that is exported."""
    found = {name: getattr(part, "padding_idx", None) for name, part in module.named_modules()}
    return {f"{SHELL}.{name}".rstrip("."): row for name, row in found.items() if row is not None}


@contextlib.contextmanager
def as_in_files(module: Any, *, detach: bool) -> Iterator[None]:
    """Gradients are those that a file tells: they pass under ``torch.no_grad()``, and at
    ``detach()`` where asked; hooks of tensors do not change them; functions with a backward of
    their own have the derivative of what they compute."""
    torch = need_torch()
    stopping = {torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__} if detach else set()

    class Passing(torch.overrides.TorchFunctionMode):  # type: ignore[name-defined]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch._C._set_grad_enabled:
                return None
            if function is torch.Tensor.register_hook:
                return torch.utils.hooks.RemovableHandle({})
            return args[0].clone() if function in stopping else function(*args, **(kwargs or {}))

    def apply(kind: Any, *given: Any, **named: Any) -> Any:
        if kind.__module__.startswith("torch."):  # a checkpoint: its gradient is the derivative
            return own.__func__(kind, *given, **named)
        if kind.setup_context is not function.setup_context:
            return kind.forward(*given, **named)
        context = torch.autograd.function.FunctionCtx()
        context.needs_input_grad = [torch.is_tensor(each) for each in given]
        return kind.forward(context, *given, **named)

    function = torch.autograd.Function
    own = vars(function)["apply"]
    hooks = {p: p._backward_hooks for p in module.parameters()}
    with torch.enable_grad(), Passing():
        function.apply = classmethod(apply)
        try:
            for parameter in hooks:
                parameter._backward_hooks = None
            yield
        finally:
            function.apply = own
            for parameter, kept in hooks.items():
                parameter._backward_hooks = kept


def backward(module: Any, total: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients of a number by tensors, None for those that it does not depend on.

    Raises:
        UnsupportedError: the module has a backward of its own, which fails.
    """
    try:
        found = need_torch().autograd.grad(total, list(tensors), allow_unused=True)
    except Exception as error:  # whatever such a backward raises
        raise UnsupportedError(
            f"the gradients of this {type(module).__name__} cannot be computed in eval mode",
            why=f"{type(error).__name__}: {str(error).strip()[:200]}",
            hint="torch.onnx.export, as docs/exporting.md says, writes the file without them",
        ) from error
    return tuple(found)


def outputs_of(module: Any, given: Arguments) -> list[Any]:
    """Results of a call, flat."""
    return list(need_torch().utils._pytree.tree_leaves(_called(module, given)))


def _called(module: Any, given: Arguments) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module(*given.positional, **given.named)


# ---- exporters -------------------------------------------------------------------------------


def by_dynamo(
    module: Any, given: Arguments, path: Path, opset: int | None, batched: Sequence[str],
    _outputs: Sequence[str] | None,
) -> None:  # fmt: skip
    """The exporter over torch.export, told to leave parameters alone, and names of outputs:
    it would rename an input that is returned."""
    torch = need_torch()
    shapes = {"dynamic_shapes": _dynamic_shapes(module, given, batched)} if batched else {}
    with _quiet(), smoothing_written_out():
        program = torch.onnx.export(
            module, given.positional, kwargs=given.named or None, dynamo=True, optimize=False,
            verbose=False, opset_version=opset, input_names=list(given.names), **shapes,
        )  # fmt: skip
        _name_results_apart(program.model.graph)
        program.save(str(path), external_data=True, keep_initializers_as_inputs=False)


def _name_results_apart(graph: Any) -> None:
    """Give results names of their own: the exporter calls one after the operator (``mean``), also
    where an input or a parameter of the module is called so, and the file is no model then."""
    taken = {value.name for value in graph.inputs} | set(graph.initializers)
    known = taken | {value.name for node in graph.all_nodes() for value in node.outputs}
    for value in (value for node in graph.all_nodes() for value in node.outputs):
        if value.name in taken:
            name = f"{value.name}_result"
            while name in known:
                name += "_"
            known.add(name)
            value.name = name


def _dynamic_shapes(module: Any, given: Arguments, batched: Sequence[str]) -> dict[str, Any]:
    """What torch.export takes: by argument of ``forward``, which dimensions vary."""
    size = need_torch().export.Dim(BATCH)
    each = [{0: size} if name in batched else None for name in given.names]
    count = len(given.positional)
    known = inspect.signature(module.forward).parameters
    plain = [n for n, p in known.items() if p.kind in PLAIN]
    shapes: dict[str, Any] = dict(zip(plain, each[:count], strict=False))
    spread = [name for name, p in known.items() if p.kind is p.VAR_POSITIONAL]
    if spread and count > len(plain):
        shapes[spread[0]] = tuple(each[len(plain) : count])
    named = dict(zip(given.named, each[count:], strict=True))
    other = {name: shape for name, shape in named.items() if name not in known}
    shapes.update({name: shape for name, shape in named.items() if name in known})
    gathered = [name for name, p in known.items() if p.kind is p.VAR_KEYWORD]
    return {**shapes, **({gathered[0]: other} if other and gathered else {})}


def by_tracing(
    module: Any, given: Arguments, path: Path, opset: int | None, batched: Sequence[str],
    outputs: Sequence[str] | None,
) -> None:  # fmt: skip
    """The exporter over torch.jit.trace, told to leave parameters alone.

    It merges initializers of equal value unless the module it is given is in training mode. So it
    is given a shell in training mode around the module, which is not.
    """
    torch = need_torch()
    count = len(given.positional)
    keys = list(given.named)

    class Shell(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.add_module(SHELL, module)

        def forward(self, *values: Any) -> Any:
            named = dict(zip(keys, values[count:], strict=True))
            return getattr(self, SHELL)(*values[:count], **named)

    modes = {part: part.training for part in module.modules()}
    shell = Shell()
    shell.training = True
    for part, mode in modes.items():
        part.training = mode
    axes: dict[str, dict[int, str]] = {name: {0: BATCH} for name in batched}
    if batched and outputs:
        axes.update({name: {0: BATCH} for name in outputs})
    with _quiet(), smoothing_written_out():
        torch.onnx.export(
            shell, given.tensors, str(path), dynamo=False, opset_version=opset,
            training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
            input_names=list(given.names), output_names=list(outputs) if outputs else None,
            dynamic_axes=axes or None, keep_initializers_as_inputs=False,
        )  # fmt: skip


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of what does not matter here, and print a graph when they fail, whatever the
    switch for that says (PyTorch 2.13 sets it itself)."""
    core = need_torch()._C
    switch = getattr(core, "_jit_set_onnx_log_enabled", lambda _: None)
    switched = getattr(core, "_jit_is_onnx_log_enabled", lambda: True)()
    printing = getattr(core, "_jit_onnx_log", None)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    core._jit_onnx_log = lambda *_: None
    with warnings.catch_warnings(), Path(os.devnull).open("w") as nowhere:
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(nowhere):
            try:
                yield
            finally:
                core._jit_onnx_log = printing
                switch(switched)
                logging.disable(level)
