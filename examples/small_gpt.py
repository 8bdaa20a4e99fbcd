"""Train a small GPT within 1 GiB: parameters, optimizer, session and all.

A GPT on the bytes of a text (this project's own documentation). Its training step takes 1.2 GiB by
itself; planned, it keeps 1 GiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import models
import onnxremat
from examples.run import Said, example

ROOT = Path(__file__).resolve().parent.parent


def batches(rows: int, length: int) -> Iterator[dict[str, np.ndarray]]:
    """Pieces of the text at random places, and the same one byte on."""
    text = b"".join(file.read_bytes() for file in sorted((ROOT / "docs").glob("*.md")))
    codes, random = np.frombuffer(text, np.uint8).astype(np.int64), np.random.default_rng(0)
    while True:
        at = random.integers(len(codes) - length - 1, size=rows)[:, None] + np.arange(length)
        yield {"input_ids": codes[at], "labels": codes[at + 1]}


@example
def main(small: bool, folder: Path, say: Said) -> None:
    shape = {"batch": 2, "sequence": 32, "hidden": 32, "layers": 2, "heads": 2}
    steps, budget, seconds = 12, "0.7x", 5.0
    if not small:
        shape = {"batch": 24, "sequence": 256, "hidden": 256, "layers": 6, "heads": 8}
        steps, budget, seconds = 48, "1GiB", 60.0
    net = models.build("gpt2", **shape, vocab=256, positions=shape["sequence"])
    say(f"a GPT of {models.parameter_count(net)} parameters, {shape}")

    settings = onnxremat.Settings(train=onnxremat.Training(optimizer="adamw", clip_norm=1.0))
    made = onnxremat.optimize(
        net, budget=budget, settings=settings, bench_seconds=0,
        options=onnxremat.PlanOptions(time_limit=seconds),
    )  # fmt: skip
    made.save(folder / "step.onnx")
    facts = made.facts()
    say.memory("values and weights of its training step", facts)
    whole = facts["peak_measured_bytes"] + facts["beside_bytes"]
    say(f"with parameters, AdamW's state and the session: {whole / 2**20:.0f} MiB")

    trainer = onnxremat.Trainer(folder / "step.onnx", net, rate=1e-3)
    feed = batches(shape["batch"], shape["sequence"])
    losses = [trainer.step(next(feed)) for _ in range(steps)]
    for k in range(0, steps, max(1, steps // 6)):
        say(f"step {k + 1:4d}  loss {losses[k]:.2f}")
    first, last = losses[0], float(np.mean(losses[-5:]))
    say(f"loss {first:.2f} -> {last:.2f} after {steps} steps (ln 256 = {np.log(256):.2f})")


if __name__ == "__main__":
    main.run()
