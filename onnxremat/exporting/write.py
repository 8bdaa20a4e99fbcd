"""A module as an ONNX model that can be trained, in memory or as a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxremat.errors import (
    OnnxrematError,
    TrainingWarning,
    UnsupportedError,
    UsageError,
    VerificationError,
)
from onnxremat.exporting.check import check_model
from onnxremat.exporting.pytorch import (
    Arguments,
    Inputs,
    arguments,
    as_in_files,
    at_rest,
    backward,
    by_dynamo,
    by_tracing,
    facts_of,
    need_module,
    need_torch,
    numbers,
    other_dropouts,
    outputs_of,
    padding_rows,
    set_modes,
    tables_with,
    untouched,
    values_of,
)
from onnxremat.exporting.randomness import drawn_in_training
from onnxremat.exporting.restore import restored
from onnxremat.exporting.run import run_file
from onnxremat.exporting.simplify import name_outputs, simplified
from onnxremat.grad.exported.listed import Parameters, parameters_of
from onnxremat.grad.exported.marks import first_of
from onnxremat.grad.exported.padding import tell_padding
from onnxremat.graph.atomic import check_writable
from onnxremat.graph.onnx_io import write_model
from onnxremat.graph.temporary import scratch_folder
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.units import format_bytes

EXPORTERS = {"dynamo": by_dynamo, "legacy": by_tracing}
# Of the largest element of an output: what another order of float32 sums may make of a deep net.
ALLOWED, HALF = 1e-3, 2e-2  # in half precision, whose numbers are 1e-3 apart
SAME = 1e-4  # of the largest element of a gradient
LARGE = 1 << 30  # bytes of parameters, beyond which gradients are compared if asked


def from_torch(
    module: Any,
    example_inputs: Inputs,
    *,
    dynamic_batch: bool = False,
    opset: int | None = None,
    exporter: str = "auto",
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dropout: bool = True,
    check: bool | None = None,
) -> onnx.ModelProto:
    """The ONNX model of a PyTorch module, in which every parameter can be trained::

        result = onnxremat.optimize(onnxremat.from_torch(module, images), budget="0.6x")

    Each parameter is an initializer of its own, in its own layout, under its name in
    ``module.named_parameters()``; tied parameters are one. Batch normalization is one op that reads
    its running statistics; dropout layers are Dropout ops that pass everything until
    ``differentiate`` switches them on. What is a trained or frozen parameter and what a buffer is
    in the metadata, under ``onnxremat.parameters``, which ``differentiate`` reads. The module
    itself is left as it was, but for rows of embeddings with ``max_norm``, which its calls scale
    down. The model is compared with the module on the example inputs and returned only where their
    outputs agree, and the gradients of its training step with autograd's, with other values of the
    parameters too. That takes about three training steps, and four times the parameters' memory.
    Dropout that a module applies by a function call, with ``self.training`` (in attention, between
    layers of an LSTM), and that of layers without an operator (Dropout2d, AlphaDropout) is not in
    the model. Parameters that only get a gradient through
    ``torch.no_grad()`` or ``detach()`` are listed as frozen. Of a module in training mode, batch
    normalizations and dropouts that are in eval mode stay so.

    Warns:
        TrainingWarning: the module stops a part of a gradient where the model does not say so,
            makes one by a function of its own, or has a dropout layer that is left out; or why
            gradients were not compared.

    Args:
        module: a ``torch.nn.Module``.
        example_inputs: a tensor, a tuple of tensors, or a dict of tensors by argument name.
        dynamic_batch: leave the first dimension open, of all inputs with the first one's size.
        opset: of the model; by default the exporter's.
        exporter: ``dynamo`` (torch.export), ``legacy`` (torch.jit.trace), or ``auto``: the first,
            and the second where the first fails.
        input_names, output_names: by default those of ``forward``, and the exporter's.
        dropout: keep dropout layers.
        check: compare gradients; by default unless the parameters are larger than 1 GiB.

    Raises:
        MissingComponentError: PyTorch is not installed, or the dynamo exporter's onnxscript.
        UsageError: no module, no tensors, an unknown exporter, or an output named as another value.
        UnsupportedError: PyTorch cannot export the module, or did not keep a parameter.
        VerificationError: the model computes something else than the module, or trains otherwise.
    """
    need_module(module)
    if exporter not in (*EXPORTERS, "auto"):
        raise UsageError(f"unknown exporter '{exporter}'", hint="it is dynamo, legacy or auto")
    _require_real(module)
    named = _apart(arguments(module, example_inputs, input_names), output_names or ())
    given = _with_rows(named, dynamic_batch)
    batched = _batched(given) if dynamic_batch else ()
    refusals: list[OnnxrematError] = []
    resting = at_rest(module)
    for name in EXPORTERS if exporter == "auto" else (exporter,):
        with scratch_folder() as folder, untouched(module):
            try:
                file = Path(folder) / "exported.onnx"

                def run(exporter: Any = EXPORTERS[name], file: Path = file) -> onnx.ModelProto:
                    exporter(module, given, file, opset, batched, output_names)
                    model = onnx.load(str(file))
                    name_outputs(model.graph, output_names)
                    return model

                model, told = _exported(module, given, batched, dropout, name, run)
                if _is_to_compare(module, check):
                    _check_training(module, given, model, resting, told)
                return model
            except OnnxrematError as error:
                refusals.append(error)
    raise _of_both(*refusals) if len(refusals) > 1 else refusals[0]


def _apart(given: Arguments, outputs: Sequence[str]) -> Arguments:
    """The inputs.

    Raises:
        UsageError: a file has one value of a name, and two are to have it.
    """
    names = [*given.names, *outputs]
    if twice := [name for name in dict.fromkeys(outputs) if names.count(name) > 1]:
        raise UsageError(
            f"two inputs or outputs would be named '{twice[0]}'",
            hint="choose other output_names (or input_names)",
        )
    return given


def _of_both(first: OnnxrematError, second: OnnxrematError) -> OnnxrematError:
    """Why neither exporter will do: a hint to try the other one leads nowhere then."""
    made = type(first)(
        first.what,
        where=first.where,
        why=f"{first.why}; nor does the other exporter do: {second.what} ({second.why})",
        hint="change the module: both of PyTorch's exporters were tried",
    )
    made.__cause__ = first.__cause__ or first
    return made


def export(
    module: Any, example_inputs: Inputs, path: str | os.PathLike[str], **wanted: Any
) -> Parameters:
    """Write an ONNX file of a PyTorch module in which every parameter can be trained.

    Args:
        module, example_inputs: of :func:`from_torch`.
        path: the file; weights beyond 1.9 GB go into ``<name>.data`` beside it.
        wanted: further arguments of :func:`from_torch`.

    Returns:
        What the metadata says of the parameters.

    Raises:
        UsageError: the file cannot be written; and as :func:`from_torch`.
    """
    need_module(module)
    target = Path(path)
    check_writable(target)
    model = from_torch(module, example_inputs, **wanted)
    write_model(model, target)
    facts = parameters_of(model)
    assert facts is not None
    return facts


def _exported(
    module: Any, given: Arguments, batched: Sequence[str], dropout: bool, exporter: str,
    run: Callable[[], onnx.ModelProto],
) -> tuple[onnx.ModelProto, list[str]]:  # fmt: skip
    """What one exporter makes of the module, restored, simplified, and compared with it; and the
    parameters that are known to have other gradients.

    Args:
        run: the exporter; returns what it wrote.
    """
    resting = at_rest(module)
    gradients = _gradients(module, given)
    needed = {*gradients}
    facts, values = facts_of(module, resting), values_of(module)
    set_modes(module, dropout=dropout, resting=resting)
    try:
        model = run()
    except Exception as error:  # whatever the traced code raises
        raise UnsupportedError(
            f"PyTorch's {exporter} exporter cannot export this {type(module).__name__}",
            why=_reason(error),
            hint="the message is PyTorch's; try the other exporter, or change the module",
        ) from error
    tell_padding(model, padding_rows(module))
    model = restored(model, facts, values, needed)
    kept = {*facts.trained, *facts.frozen}
    kept |= {name for name in facts.buffers if values[name].dtype.kind == "f"}
    smaller = restored(simplified(model, kept), facts, values, needed)
    told = _warn_of_stops(module, given, gradients, {*facts.trained}, exporter)
    if dropout:
        _warn_of_dropouts(module)
        _warn_of_draws(drawn_in_training(module, given, resting))
    _warn_of_tables(module)
    _warn_of_resting(resting)
    try:
        _check(module, given, smaller, batched)
    except OnnxrematError:  # what was exported may still be right
        _check(module, given, model, batched)
        return model, told
    return smaller, told


def _reason(error: BaseException) -> str:
    """The first line of the innermost cause that has one."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    for each in reversed(chain):
        lines = str(each).strip().splitlines()
        if lines:
            return f"{type(each).__name__}: {lines[0]}"[:300]
    return type(error).__name__


def _gradients(module: Any, given: Arguments) -> dict[str, np.ndarray]:
    """Of the parameters, frozen ones too, that some output depends on: of the sum of the squares of
    all numbers that are finite (masked scores are not)."""
    torch = need_torch()
    set_modes(module)
    wanted = {p: p.requires_grad for p in module.parameters()}
    try:
        for parameter in wanted:
            parameter.requires_grad_(parameter.is_floating_point())
        with torch.enable_grad():
            made = [y for y in outputs_of(module, given) if torch.is_tensor(y) and y.requires_grad]
            if not made:
                return {}
            finite = [torch.nan_to_num(y.double(), 0.0, 0.0, 0.0) for y in made]
            total = torch.stack([y.square().sum() for y in finite]).sum()
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        found = backward(module, total, [p for _, p in named])
    finally:
        for parameter, grad_wanted in wanted.items():
            parameter.requires_grad_(grad_wanted)
    pairs = zip(named, found, strict=True)
    return {name: numbers(name, g.to_dense()) for (name, _), g in pairs if g is not None}


def _warn_of_draws(names: Sequence[str]) -> None:
    if names:
        warnings.warn(
            f"in training mode the module draws random numbers beside its nn.Dropout layers, in "
            f"{first_of([name or 'itself' for name in names], 4)} (dropout by a function call or "
            "inside a layer, stochastic depth, noise); the file holds none of these, and the step "
            "trains without them",
            TrainingWarning,
            stacklevel=2,
        )


def _warn_of_dropouts(module: Any) -> None:
    names = other_dropouts(module)
    if names:
        warnings.warn(
            f"{len(names)} dropout layers are left out: {first_of(names, 4)}; ONNX has an operator "
            "for nn.Dropout alone, and the step trains without these",
            TrainingWarning,
            stacklevel=2,
        )


def _warn_of_resting(resting: Mapping[str, Any]) -> None:
    nn = need_torch().nn
    kinds = (nn.Dropout, nn.modules.batchnorm._BatchNorm)
    if names := [name for name, part in resting.items() if isinstance(part, kinds)]:
        warnings.warn(
            f"{len(names)} dropouts and batch normalizations are in eval mode inside a module in "
            f"training mode, and stay so in a training step: {first_of(names, 4)} (module.train() "
            "before the export has them train, too)",
            TrainingWarning,
            stacklevel=2,
        )


def _warn_of_tables(module: Any) -> None:
    for setting, does in (
        ("max_norm", "scales their rows down in place at each call"),
        ("scale_grad_by_freq", "divides gradients of rows by how often a batch reads them"),
    ):
        if names := tables_with(module, setting):
            warnings.warn(
                f"{len(names)} embeddings with {setting} ({first_of(names, 4)}): PyTorch {does}, a "
                "training step of this file does not",
                TrainingWarning,
                stacklevel=2,
            )


def _require_real(module: Any) -> None:
    """Raises:
    UsageError: the module has no Python code any more.
    UnsupportedError: a parameter that is trained is complex.
    """
    if isinstance(module, need_torch().jit.ScriptModule):
        raise UsageError(
            f"a {type(module).__name__} was scripted or traced already",
            why="what is exported is the Python code of a module",
            hint="give the module that it was made of",
        )
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise UnsupportedError(
                f"the parameter '{name}' is complex",
                why="ONNX has real parameters alone",
                hint="keep it as real numbers with a last axis of 2, and read it through "
                "torch.view_as_complex",
            )


def _warn_of_stops(
    module: Any, given: Arguments, real: Mapping[str, np.ndarray], trained: set[str],
    exporter: str,
) -> list[str]:  # fmt: skip
    """Name parameters whose gradient by a file of this exporter is not the module's, as the file
    does not say what the module does with it."""
    how = "makes the gradients of {} parameters otherwise than a file can say"
    try:
        with as_in_files(module, detach=exporter != "dynamo"):
            found = _gradients(module, given)
    except Exception:  # what the module does without gradients may not be possible with them
        found, how = {}, "may make the gradients of {} parameters otherwise than a file can say"
    names = [
        name
        for name, gradient in real.items()
        if name in trained and (name not in found or _error(found[name], gradient) > SAME)
    ]
    if names:
        stops = "torch.no_grad()" + ", detach()" * (exporter != "dynamo")
        warnings.warn(
            f"the module {how.format(len(names))}, by {stops}, hooks or functions with a backward "
            f"of their own: {first_of(names, 4)}; they are trained with the derivative of what "
            "the module computes",
            TrainingWarning,
            stacklevel=2,
        )
    return names


def _batched(given: Arguments) -> tuple[str, ...]:
    rows = given.tensors[0].shape[0] if given.tensors[0].dim() else -1
    pairs = zip(given.names, given.tensors, strict=True)
    return tuple(name for name, t in pairs if t.dim() and t.shape[0] == rows)


def _with_rows(given: Arguments, dynamic: bool) -> Arguments:
    """At least two rows: exporters take a batch of one for a fixed size."""
    if not dynamic or not given.tensors[0].dim() or given.tensors[0].shape[0] != 1:
        return given
    return _twice(given)


def _twice(given: Arguments) -> Arguments:
    torch, batched = need_torch(), _batched(given)
    pairs = zip(given.names, given.tensors, strict=True)
    return given.with_tensors([torch.cat([t, t]) if n in batched else t for n, t in pairs])


def _check(module: Any, given: Arguments, model: onnx.ModelProto, batched: Sequence[str]) -> None:
    """The file computes what the module does in eval mode, for another batch size too.

    Raises:
        VerificationError: it does not.
    """
    torch = need_torch()
    set_modes(module)
    session = open_session(model, session_options(Options(pattern=False)))
    names = [value.name for value in session.get_inputs()]
    for call in (given, _twice(given)) if batched else (given,):
        with torch.no_grad():
            want = [numbers("an output", y) for y in outputs_of(module, call) if torch.is_tensor(y)]
        arrays = call.arrays()
        found = run_file(session, None, {name: arrays[name] for name in names})
        if len(found) != len(want):
            raise VerificationError(
                f"the exported file returns {len(found)} values, the module {len(want)} tensors",
                hint="try the other exporter, or let the module return tensors alone",
            )
        for k, (ours, theirs) in enumerate(zip(found, want, strict=True)):
            error = _error(np.asarray(ours), theirs)
            allowed = HALF if theirs.dtype == np.float16 else ALLOWED
            if not error <= allowed:
                raise VerificationError(
                    f"output {k} of the exported file is not that of the module",
                    why=f"off by {error:.1e} of its largest element (allowed {allowed})",
                    hint="a random operator, or control flow that depends on data: "
                    "try the other exporter",
                )


def _is_to_compare(module: Any, wanted: bool | None) -> bool:
    """Whether there are gradients, and they are compared."""
    own = [p for p in module.parameters() if p.requires_grad]
    size = sum(p.numel() * p.element_size() for p in own)
    if wanted is None and size > LARGE:
        _warn_not_compared(f"the parameters have {format_bytes(size)} (check=True does)")
        return False
    if wanted is not False and tables_with(module, "max_norm"):
        _warn_not_compared("its calls scale rows of embeddings down (max_norm)")
        return False
    return bool(own) and wanted is not False


def _check_training(
    module: Any, given: Arguments, model: onnx.ModelProto, resting: Mapping[str, Any],
    told: Collection[str],
) -> None:  # fmt: skip
    """The step of the file has the module's gradients, but for parameters of which was told.

    Raises:
        VerificationError: it has not.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the step, which differentiate repeats
        found = check_model(module, model, given, resting)
    if found.failed:
        _warn_not_compared(found.failed)
        return
    told = {*told, *(f"{name}.weight" for name in tables_with(module, "scale_grad_by_freq"))}
    rows = tuple(p for p in found.parameters if p.name not in told)
    replace(found, parameters=rows).require(
        "change the module: what code reads of a parameter (float(p), p.item(), p.data) is a "
        "constant in a file; check=False writes the file all the same"
    )


def _warn_not_compared(why: str) -> None:
    warnings.warn(
        f"the gradients of a training step of this file were not compared with the module's: {why}",
        TrainingWarning,
        stacklevel=2,
    )


def _error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, as a share of the largest finite element; of what is infinite, or no
    number, in both alike there is none."""
    if ours.shape != theirs.shape:
        return float("inf")
    first, second = ours.astype(np.float64), theirs.astype(np.float64)
    apart = (first != second) & ~(np.isnan(first) & np.isnan(second))
    off = np.abs(first[apart] - second[apart]).max(initial=0.0)
    return float(off / max(np.abs(second[np.isfinite(second)]).max(initial=0.0), 1e-12))
