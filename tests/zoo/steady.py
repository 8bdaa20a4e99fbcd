"""Whether a training step gives the same bits in every run: ``python -m tests.zoo --runs 20``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from onnxremat.errors import OnnxrematError
from onnxremat.grad import differentiate, training_of
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.state import FirstValues, input_types
from tests.zoo.export import NotExportedError, exported, silence
from tests.zoo.registry import Architecture


@dataclass
class Steady:
    """What was found for one net and exporter.

    Attributes:
        outputs: of the step: loss, new parameters, new state.
        differ: per number of threads, how many runs gave other bits than the first.
        failed: why there is no step.
    """

    net: str
    exporter: str
    outputs: int = 0
    differ: dict[int, int] = field(default_factory=dict)
    failed: str = ""


def steady(
    net: Architecture, exporter: str, folder: Path, threads: Sequence[int], runs: int
) -> Steady:
    """Run a step with an optimizer again and again from the same state."""
    found = Steady(net.name, exporter)
    module = net.module()
    try:
        with silence():
            model = exported(net, module, exporter, folder)
            step = differentiate(model, optimizer="adamw", loss=net.loss)
    except (NotExportedError, OnnxrematError) as error:
        found.failed = str(error).splitlines()[0]
        return found
    about, types, first = training_of(step), input_types(step), FirstValues(model, step)
    data = net.data()
    feeds = {f"input{k}": x.numpy() for k, x in enumerate(data)}
    with torch.no_grad(), silence():
        target = net.target(module(*data)).numpy()
    shape, kind = types[about.target]
    feeds[about.target] = target.astype(kind).reshape(shape)
    feeds |= {v.input: first.of(v, *types[v.input]) for v in about.variables}
    if about.rate in types:
        feeds[about.rate] = np.full(types[about.rate][0], net.rate, types[about.rate][1])
    feeds = {name: value for name, value in feeds.items() if name in types}
    found.outputs = len(step.graph.output)
    for count in threads:
        session = open_session(step, session_options(Options(threads=count, pattern=False)))
        bits = [b"".join(a.tobytes() for a in session.run(None, feeds)) for _ in range(runs)]
        found.differ[count] = sum(each != bits[0] for each in bits)
    return found


def line(found: Steady) -> str:
    """One line of the table."""
    head = f"{found.net:20} {found.exporter:13} "
    if found.failed:
        return f"{head}no step: {found.failed[:80]}"
    told = ", ".join(
        f"{n} threads: " + (f"{k} runs DIFFER" if k else "same bits")
        for n, k in found.differ.items()
    )
    return f"{head}{found.outputs:4} outputs  {told}"
