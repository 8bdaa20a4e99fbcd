"""Files that PyTorch's exporters wrote: what is trained, and its gradients by PyTorch's autograd.

``python -m tests.zoo.keep`` wrote files and gradients; PyTorch is not needed to read them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxremat.grad import Variable, differentiate, training_of
from onnxremat.training.state import FirstValues, input_types

FILES = sorted((Path(__file__).parent / "exported").glob("*.onnx"))
EXACT = 1e-4  # of a gradient, against its norm


def test_there_are_files() -> None:
    assert len(FILES) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_are_those_of_pytorch(path: Path, threads: int) -> None:
    kept = np.load(path.with_suffix(".npz"))
    model = onnx.load(path)
    step = differentiate(model, optimizer=None, loss=str(kept["kind"]))
    about, types, values = training_of(step), input_types(step), FirstValues(model, step)
    wanted = {n.split(":", 1)[1]: kept[n] for n in kept.files if n.startswith("gradient:")}
    assert {name for name, _ in about.gradients} == set(wanted)
    feeds = {n.split(":", 1)[1]: kept[n] for n in kept.files if n.startswith("feed:")}
    for name in wanted:
        feeds[name] = values.of(Variable(name, "", "model"), *types[name])
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        step.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    first, second = (session.run(None, feeds) for _ in range(2))
    found = dict(zip(names, first, strict=True))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
    np.testing.assert_allclose(found[about.loss], kept["loss"], rtol=1e-4)
    largest = max(np.linalg.norm(value) for value in wanted.values())
    for name, gradient in about.gradients:
        size = max(np.linalg.norm(wanted[name]), 1e-2 * largest)
        assert np.linalg.norm(found[gradient] - wanted[name]) <= EXACT * size, name
