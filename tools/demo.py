"""The demonstration of README: a training step that keeps 60 % of its peak, proven.

make demo                 one training step of a U-Net
make demo MODEL=vit       any name of `python -m models --list`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
from onnxremat import api  # noqa: E402
from onnxremat.grad import differentiate  # noqa: E402


def main() -> None:
    """Build, optimise, verify, tell."""
    name = os.environ.get("MODEL", "unet")
    folder = ROOT / "demo"
    folder.mkdir(exist_ok=True)
    source, target = folder / f"{name}_train.onnx", folder / f"{name}_train_60.onnx"
    print(f"1. building {name} and its training step -> {source.relative_to(ROOT)}")
    onnx.save(differentiate(models.build(name)), source)
    print("2. optimising it to 60 % of its peak")
    result = api.optimize(source, budget="0.6x", say=lambda text: print(f"   {text}"))
    written = result.save(target)
    print(f"3. wrote {', '.join(str(path.relative_to(ROOT)) for path in written)}")
    print(result.report())
    print("4. verifying: original and result in stock onnxruntime")
    found = api.verify(source, target)
    for check in found.checks:
        print(f"   {'PASSED' if check.ok else 'FAILED'}  {check.name}: {check.text}")
    timeline = folder / f"{name}_train_60.png"
    result.draw(timeline)
    print(f"5. memory timeline: {timeline.relative_to(ROOT)}")
    if not found.ok:
        sys.exit(1)


if __name__ == "__main__":
    main()
