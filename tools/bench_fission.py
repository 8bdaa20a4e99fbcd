"""Least live memory at 10 % extra time, by regions in parts: inferences at batch 1.

Per net one line: live peak without weights of the graph as onnxruntime optimises it; the share of
it that no order and no recomputation can go below; the least that was found in parts; the share of
the leanest point within the time; that of its file under default session options; and the time of
one run against the original's (default options, one thread, processor time, paired; as estimated,
too). Memory does not depend on the machine; times do: plan beside other jobs, with --keep, and
measure what was kept while nothing else runs.

    python tools/bench_fission.py [--net unet ...] [--small] [--curve]
    python tools/bench_fission.py --keep DIR --plan-only; python tools/bench_fission.py --keep DIR
    python tools/bench_fission.py --training [--step unet ...]
    python tools/bench_fission.py --training --run [--large] [--step unet ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fission_nets as nets
import numpy as np
import onnx
from fission_points import ALLOWED, Planned, plan, ratio, read
from fission_steps_run import rows as rows_run
from fission_training import WORKLOADS, rows

from models import build
from onnxremat.device.host import processor_name

TITLE = (
    "| net | MiB whole | no plan of the whole below | least | live | default options | time "
    "| estimated | differs | nodes | choosing, s |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Net:
    """How a net is built, in full and small."""

    make: Callable[..., onnx.ModelProto]
    full: Mapping[str, Any]
    small: Mapping[str, Any]


def _model(name: str) -> Callable[..., onnx.ModelProto]:
    return partial(build, name, batch=1)


BERT = {"hidden": 768, "heads": 12, "layers": 12}
NETS = {
    "unet": Net(_model("unet"), {"size": 512}, {"size": 256, "width": 16}),
    "vae": Net(nets.vae, {}, {"latent": 32, "widths": (128, 64, 32)}),
    "mobilenetv2": Net(_model("mobilenetv2"), {"size": 224}, {"size": 224}),
    "resnet50": Net(_model("resnet50"), {"size": 224, "width": 64}, {"size": 224, "width": 64}),
    "superres": Net(nets.superres, {}, {"size": 64, "blocks": 2}),
    "mlp": Net(nets.mlp, {}, {"tokens": 512}),
    "attention": Net(nets.attention, {}, {"tokens": 512}),
    "causal": Net(nets.attention, {"causal": True}, {"causal": True, "tokens": 512}),
    "loss": Net(nets.loss, {}, {"tokens": 512, "vocab": 8192}),
    "ffn": Net(nets.ffn, {}, {"rows": 4096}),
    "vit": Net(_model("vit"), BERT | {"size": 224}, {"size": 224, "layers": 4}),
    "vit2048": Net(  # 2026 tokens
        _model("vit"), BERT | {"size": 720}, {"size": 224, "layers": 2}
    ),
    "bert": Net(
        _model("bert"), BERT | {"sequence": 2048, "positions": 2048},
        {"sequence": 512, "positions": 512, "layers": 2},
    ),
    "gpt2": Net(
        _model("gpt2"), BERT | {"sequence": 2048, "positions": 2048},
        {"sequence": 512, "positions": 512, "layers": 2},
    ),
    "yolo": Net(nets.yolo, {}, {"size": 320, "width": 16}),
    "efficientnet": Net(nets.efficientnet, {}, {}),
}  # fmt: skip


def points(name: str, planned: Planned, folder: Path | None, curve: bool) -> Iterator[str]:
    """Rows of the table: the leanest within the time, or every point that was kept.

    Args:
        folder: of the points; None to time none of them.
    """
    text = f"| {name} | {planned.bytes / 2**20:.1f} | {planned.bound:.3f} | {planned.least:.3f} |"
    for at, point in enumerate(planned.points):
        took = ratio(planned, at, folder) if folder else None
        if curve or took is None or took <= ALLOWED:
            told = "-" if took is None else f"{took:.3f}"
            yield (
                f"{text} {point.share:.3f} | {point.default:.3f} | {told} | {point.estimated:.3f} "
                f"| {point.worst:.1g} | {point.nodes} | {planned.seconds:.0f} |"
            )
            if took is not None and not curve:
                return
    if folder and not curve:
        yield f"{text} 1 | 1 | - | - | - | - | {planned.seconds:.0f} |"


def table(given: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The table of inferences."""
    yield f"processor: {processor_name()}, numpy {np.__version__}"
    yield TITLE
    for name in given.net or NETS:
        net, own = NETS[name], folder / (f"{name}-small" if given.small else name)
        planned = read(own) or plan(net.make(**(net.small if given.small else net.full)), own)
        yield from points(name, planned, None if given.plan_only else own, given.curve)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", action="append", choices=tuple(NETS), help="repeatable; all")
    parser.add_argument("--small", action="store_true", help="sizes of a few seconds each")
    parser.add_argument("--curve", action="store_true", help="every point, not the leanest alone")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the plans: those that are there are not made again"
    )
    parser.add_argument("--plan-only", action="store_true", help="time nothing; for --keep")
    parser.add_argument(
        "--training", action="store_true", help="steps of training instead, planned only"
    )
    parser.add_argument("--run", action="store_true", help="smaller steps of training, measured")
    parser.add_argument("--large", action="store_true", help="of these such as take 10 GiB")
    parser.add_argument("--step", action="append", choices=tuple(WORKLOADS), help="of these; all")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        keep = given.keep or Path(scratch)
        if given.run:
            size = "large" if given.large else "small" if given.small else ""
            lines = rows_run(given.step, size, keep, given.plan_only)
        elif given.training or given.step:
            lines = rows(given.step)
        else:
            lines = table(given, keep)
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
