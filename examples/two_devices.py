"""One model over two devices, each with a memory budget of its own.

Both devices are threads of this processor (``devices/cpu-2x1.toml``), so that it runs anywhere; a
processor and a GPU (``cpu-cuda``) are asked for in the same way.
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
    batch, size = (1, 64) if small else (8, 224)
    net = models.build("inception", batch=batch, size=size)
    made = onnxremat.optimize(
        net, devices="cpu-2x1", budget="cpu:0=1GiB,cpu:1=1GiB", objective="makespan",
        bench_seconds=1 if small else 10,
        options=onnxremat.PlanOptions(time_limit=3 if small else 30),
    )  # fmt: skip
    made.save(folder / "two.onnx")
    say(f"GoogLeNet, {batch} images of {size} x {size}")
    for device in made.facts()["devices"]:
        say(
            f"{device['device']}: {device['ops']} ops in {device['partitions']} partitions, "
            f"{device['peak_measured_bytes'] / 2**20:.1f} MiB measured"
        )
    for timing in made.facts()["timings"]:
        say(f"{timing['name']}: {timing['seconds'] * 1e3:.1f} ms measured")
    for note in made.facts()["notes"]:
        say(f"note: {note}")

    images = models.feeds(net, seed=0)
    plain = onnxruntime.InferenceSession(
        net.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = plain.run(None, images)
    found = onnxremat.load_devices(folder / "two.onnx").run(images)
    (scores,) = found.values()
    say(f"outputs are off by {np.abs(scores - want).max() / np.abs(want).max():.1e} of the largest")


if __name__ == "__main__":
    main.run()
