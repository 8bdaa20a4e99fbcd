"""A planned model for programs in other languages, and what they should compute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import models
import onnxremat
from examples.run import Said
from onnxremat.memory.arena import Region
from onnxremat.session.load import options_of
from onnxremat.session.region import find_region
from onnxremat.session.snippets import Snippets

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Planned:
    """A model to deploy.

    Attributes:
        code: that opens it, by language.
        wanted: the sum of its first output where every element of the input is 0.5.
        budget: bytes that a process may take for it.
    """

    file: Path
    code: dict[str, str]
    wanted: float
    budget: int


def planned(small: bool, folder: Path, say: Said) -> Planned:
    """A U-Net that keeps 60 % of its peak."""
    size = 128 if small else 192
    net = models.build("unet", batch=4, size=size, width=8, levels=2)
    made = onnxremat.optimize(
        net, budget="0.6x", bench_seconds=0, options=onnxremat.PlanOptions(time_limit=20)
    )
    file = folder / "out.onnx"
    made.save(file)
    facts, options = made.facts(), options_of(made.model)
    say.memory(f"a U-Net for 4 images of {size} x {size}", facts)
    image = {name: np.full_like(array, 0.5) for name, array in models.feeds(net).items()}
    first, *_ = onnxremat.load(file).run(None, image)
    region = find_region(file, options)
    code = Snippets(str(file), options, region if isinstance(region, Region) else None)
    budget = facts["limit_bytes"] + facts["beside_bytes"]
    return Planned(file, code.by_language(), float(first.sum(dtype=np.float64)), budget)


def option_lines(code: str) -> list[str]:
    """Those of the code that set options."""
    return [line for line in code.splitlines() if line.startswith("options.")]


def compare(say: Said, said: str, wanted: float) -> None:
    """What the program computed, and what Python did.

    Raises:
        SystemExit: they differ.
    """
    say(f"the program's sum of the output: {float(said):.6g}; Python's: {wanted:.6g}")
    if not np.isclose(float(said), wanted, rtol=1e-4):
        raise SystemExit("they differ")
