"""Whether whole training steps of ``models/`` at full size give the same bits in every run:

    python -m tests.grad.steady [--threads 2] [--runs 20] [NAME ...]

The steps are those of AdamW, portable and for the blocked kernels of this processor. Exits 1 when a
run gives other bits than the first. ``python -m tests.zoo --runs 20`` does so for exported nets.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import onnx

import models
from onnxremat.errors import OnnxrematError
from onnxremat.grad import Settings, differentiate, training_of
from onnxremat.ort.blocks import block_size
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.state import FirstValues, input_types


def main(arguments: list[str] | None = None) -> int:
    """Print one line per model and step."""
    parser = argparse.ArgumentParser(prog="python -m tests.grad.steady", description=__doc__)
    parser.add_argument("names", nargs="*", help="models, all by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    asked = parser.parse_args(arguments)
    changed = made = 0
    for name in asked.names or models.names():
        for blocked in dict.fromkeys((0, block_size())):
            try:
                differ = _differing(name, blocked, asked.threads, asked.runs)
            except OnnxrematError as error:
                print(f"{name:26} blocked {blocked:2}  no step: {error}", flush=True)
                continue
            made, changed = made + 1, changed + bool(differ)
            told = f"{differ} runs DIFFER" if differ else "same bits"
            print(f"{name:26} blocked {blocked:2}  {told}", flush=True)
    print(f"\n{made} steps, {asked.runs} runs each with {asked.threads} threads: "
          f"{changed} with other bits")  # fmt: skip
    return int(changed > 0)


def _differing(name: str, blocked: int, threads: int, runs: int) -> int:
    """How many runs of a step give other bits than the first."""
    model = models.build(name)
    step = differentiate(model, settings=Settings(optimizer="adamw", blocked=blocked))
    session = open_session(step, session_options(Options(threads=threads, pattern=False)))
    given = feeds(model, step)
    first = b"".join(value.tobytes() for value in session.run(None, given))
    return sum(
        b"".join(value.tobytes() for value in session.run(None, given)) != first
        for _ in range(runs - 1)
    )


def feeds(model: onnx.ModelProto, step: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Everything that a step reads."""
    about, types, first = training_of(step), input_types(step), FirstValues(model, step)
    found = dict(models.feeds(model))
    found |= {v.input: first.of(v, *types[v.input]) for v in about.variables}
    found[about.rate] = np.full(types[about.rate][0], 1e-3, types[about.rate][1])
    shape, kind = types[about.target]
    sizes = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    classes = sizes[1] if len(sizes) == 4 else sizes[-1]  # of maps, the channels
    random = np.random.default_rng(0)
    labels = np.issubdtype(kind, np.integer)
    drawn = random.integers(0, classes, shape) if labels else random.standard_normal(shape)
    found[about.target] = np.asarray(drawn).astype(kind)
    return {key: value for key, value in found.items() if key in types}


if __name__ == "__main__":
    sys.exit(main())
