"""Data and a small network for the fine-tuning example of README.

python tools/digits.py              writes digits/: net.onnx, few.npz, train.npz, test.npz
python tools/digits.py A.onnx ...   accuracy of models on test.npz, in plain onnxruntime

The data are scikit-learn's handwritten digits (1797 images of 8 x 8, part of that package). One
image in five is kept for the test. ``few.npz`` has only the digits 0 to 4 of the others.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402


def write(folder: Path) -> None:
    """The network, not trained, and the data."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images / 16).astype(np.float32)[:, None]  # [1797, 1, 8, 8] in 0..1
    labels = found.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = np.split(order, [len(order) // 5])
    few = train[labels[train] < 5]
    folder.mkdir(exist_ok=True)
    for name, rows in (("train", train), ("test", test), ("few", few)):
        np.savez(folder / f"{name}.npz", input=images[rows], labels=labels[rows])
        print(f"{folder / name}.npz: {len(rows)} images of {len(set(labels[rows]))} digits")
    # A residual network of 8 layers; its batch is left open.
    net = models.build("resnet20", blocks=1, size=8, channels=1, symbolic_batch=True)
    onnx.save(net, folder / "net.onnx")
    print(f"{folder / 'net.onnx'}: {models.parameter_count(net)} parameters")


def accuracy(model: Path) -> float:
    """Share of test images a model names right."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    with np.load(model.parent / "test.npz") as test:
        (scores,) = session.run(None, {"input": test["input"]})
        return float((scores.argmax(axis=1) == test["labels"]).mean())


if __name__ == "__main__":
    if len(sys.argv) == 1:
        write(Path("digits"))
    for name in sys.argv[1:]:
        print(f"{name}: {accuracy(Path(name)):.1%} of the test images right")
