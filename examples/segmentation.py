"""Segment an image of high resolution in a quarter of the memory: regions in parts (fission).

At batch 1 there is no batch to split, and recomputation cannot help: single convolutions need more
than the budget. Rows of the image are computed part by part instead.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

import models
import onnxremat
from examples.run import Said, example


@example
def main(small: bool, folder: Path, say: Said) -> None:
    size, width, share = (128, 8, "0.5x") if small else (512, 16, "0.25x")
    net = models.build("unet", batch=1, size=size, width=width, levels=2 if small else 4)
    say(f"a U-Net of {models.parameter_count(net)} parameters, one image of {size} x {size}")
    made = onnxremat.optimize(
        net, budget=share, bench_seconds=0 if small else 10,
        options=onnxremat.PlanOptions(time_limit=600),  # it takes a fraction
    )  # fmt: skip
    made.save(folder / "parts.onnx")
    facts = made.facts()
    before, after = facts["baseline_peak_bytes"], facts["peak_measured_bytes"]
    say(f"{before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB measured, {after / before:.1%}")
    for region in facts["fission"]:
        say(f"a region of {len(region['ops'])} ops in {len(region['parts'])} parts")

    image = models.feeds(net, seed=0)
    plain = onnxruntime.InferenceSession(
        net.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = plain.run(None, image)
    (mask,) = onnxremat.load(folder / "parts.onnx").run(None, image)
    say(f"the mask is off by {np.abs(mask - want).max() / np.abs(want).max():.1e} of its largest")
    if facts.get("original_time_ratio") and facts.get("overhead_measured") is not None:
        ratio = (1 + facts["overhead_measured"]) / facts["original_time_ratio"]
        say(f"takes {ratio:.2f} x the original's time")


if __name__ == "__main__":
    main.run()
