"""Where a trainer runs, and the sessions that it opens there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from onnxremat.device.machine import Device
from onnxremat.errors import UnsupportedError
from onnxremat.grad.description import StepSignature
from onnxremat.ort.providers import CPU, CUDA, of_names, open_with
from onnxremat.ort.session import TUNED, Options, model_source, session_options
from onnxremat.rewrite.pins import PREFIX as PIN
from onnxremat.session.held import open_held, open_light
from onnxremat.session.region import find_region
from onnxremat.training.state import Opening, Serial

# The memory pattern would double the peak of a training graph, and buffers held for a later value
# of the same shape raise it by up to a third.
UNPLANNED = Options(pattern=False, reuse=False)


def device_of(providers: Sequence[str]) -> Device:
    """Where to train: where the first provider computes."""
    device = of_names(providers)
    if device.provider not in (CPU, CUDA):
        raise UnsupportedError(
            f"{device.provider} cannot train this way",
            why="it would not see what a step has written into parameters and state",
            hint="plan for it with --devices, and give that file without providers",
        )
    return device


def session_of(step: Serial, opening: Opening) -> Any:
    """A session on the step, or on its update."""
    device, options = opening.device, opening.options
    chosen = options or replace(TUNED if step.planned else UNPLANNED, threads=device.threads)
    made = session_options(chosen)
    if not step.planned:
        # It would hold what is made when it is needed: tensors of zeros as large as activations.
        made.add_session_config_entry(
            "optimization.disable_specified_optimizers", "ConstantFolding"
        )
    # The pool's threads; the calling thread is seen to at each run.
    made.add_session_config_entry("session.set_denormal_as_zero", "1")
    if device.provider != CPU:
        return open_with(device, step.content, made, step.folder)
    if step.file is None:
        return open_held(model_source(step.content, made, step.folder), made, chosen, kept=False)
    model_source(step.content, made, None)  # its folder is set with the file
    without = "" if options else PIN  # as it was read
    told = (step.file, chosen, _bound_outputs(step.about), without)
    search = partial(find_region, *told) if step.planned else None
    return open_light(step.file, step.content, made, chosen, search)


def _bound_outputs(about: StepSignature) -> list[str]:
    """Outputs that the trainer gives memory for."""
    return [*about.updates.values(), *([about.loss] if about.loss else []), *about.outputs]
