"""Fine-tune a vision model in 70 % of the memory: one that knows five digits learns all ten.

A residual network is trained on half of the classes, then all but its lower layers are trained on
all of them, by a training step that is planned to keep the budget. Plain onnxruntime judges it.

Images: scikit-learn's handwritten digits (1797 of 8 x 8, part of that package), enlarged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from sklearn.datasets import load_digits

import models
import onnxremat
from examples.run import Said, example
from onnxremat.training.data import Arrays
from onnxremat.training.schedules import Schedule

Images = dict[str, np.ndarray]


def digits(size: int) -> tuple[Images, Images, Images]:
    """The images of 0 to 4, of all, and one in five of all kept for the test."""
    found = load_digits()
    pixels = np.repeat(np.repeat(found.images, size // 8, 1), size // 8, 2)
    images = (pixels / 16).astype(np.float32)[:, None]  # [1797, 1, size, size] in 0..1
    labels = found.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = np.split(order, [len(order) // 5])
    parts = (train[labels[train] < 5], train, test)
    few, every, kept = ({"input": images[rows], "labels": labels[rows]} for rows in parts)
    return few, every, kept


def accuracy(model: Path, test: Images) -> float:
    """Share of the test images that a model names right."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"input": test["input"]})
    return float((scores.argmax(axis=1) == test["labels"]).mean())


@example
def main(small: bool, folder: Path, say: Said) -> None:
    size, blocks, batch, epochs = (8, 1, 32, 2) if small else (32, 2, 64, 6)
    few, every, test = digits(size)
    net = models.build("resnet20", blocks=blocks, size=size, channels=1, symbolic_batch=True)
    say(f"a network of {models.parameter_count(net)} parameters, images of {size} x {size}")

    adamw = onnxremat.Training(optimizer="adamw")
    onnxremat.differentiate(net, folder / "first.onnx", settings=adamw, dims={"batch": batch})
    trainer = onnxremat.Trainer(folder / "first.onnx", net, rate=0.003)
    trainer.fit(Arrays(few, batch), epochs)
    trainer.export(net, folder / "few.onnx")
    say(f"trained on 0 to 4: {accuracy(folder / 'few.onnx', test):.1%} of all test images right")

    freeze = ("conv1*", "bn1*", "layer1*")
    settings = onnxremat.Settings(
        train=onnxremat.Training(optimizer="adamw", freeze=freeze), dims={"batch": batch}
    )
    made = onnxremat.optimize(
        str(folder / "few.onnx"), budget="0.7x", settings=settings, bench_seconds=0,
        options=onnxremat.PlanOptions(time_limit=600, work=20_000),
    )  # fmt: skip
    made.save(folder / "step.onnx")
    facts = made.facts()
    say.memory("the step to fine-tune it", facts)

    trainer = onnxremat.Trainer(
        folder / "step.onnx", folder / "few.onnx", rate=Schedule(0.003, kind="cosine")
    )
    losses = trainer.fit(Arrays(every, batch), 2 * epochs)
    trainer.export(folder / "few.onnx", folder / "all.onnx")
    say(f"fine-tuned in {len(losses)} steps: loss {losses[0]:.2f} -> {np.mean(losses[-10:]):.2f}")
    say(f"knows all ten: {accuracy(folder / 'all.onnx', test):.1%} of all test images right")


if __name__ == "__main__":
    main.run()
