"""Least live memory at 10 % extra time, by regions in parts: inferences at batch 1.

Per net one line: live peak without weights of the graph as onnxruntime optimises it, the share of
it that is left with regions in parts, and the time of one run against the original's (default
options, one thread, processor time, paired). Memory does not depend on the machine; times do.

    python tools/bench_fission.py [--net unet ...] [--small] [--curve]
    python tools/bench_fission.py --training [--step unet ...]
    python tools/bench_fission.py --training --run [--step unet ...]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fission_nets as nets
import numpy as np
import onnx
from fission_steps_run import rows as rows_run
from fission_training import WORKLOADS, rows

from models import build
from onnxremat.cost.analytic import analytic_costs
from onnxremat.fission.choose import STEP, Choosers
from onnxremat.fission.pricing import Priced
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.profile import profile, run_session
from onnxremat.ort.session import open_session, session_options
from onnxremat.pipeline.divided import prepare_fission
from onnxremat.pipeline.in_regions import wholes_of
from onnxremat.pipeline.prepare import Prepared, Settings, prepare
from onnxremat.session.compare import compare

ALLOWED = 1.10  # time of a run against the original's
ESTIMATED = 1.35  # estimates, which leave out what caches gain, of graphs that are timed
ROUNDS = 9
LEAST_ROUNDS, LONG = 3, 240.0  # of a net whose rounds take so many seconds together


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


@dataclass(frozen=True)
class Found:
    """A graph in parts as it ran: its share of the live peak, time and worst difference."""

    share: float
    ratio: float
    worst: float
    nodes: int


def chosen(prepared: Prepared) -> list[Priced]:
    """Graphs in parts, from little memory saved to much, as long as estimates are near."""
    chooser = Choosers(wholes_of(prepared.graph, prepared.costs, prepared.folder))
    found: list[Priced] = []
    limit = STEP * chooser.whole.peak
    while True:
        best = chooser.within(int(limit))
        if best.peak > limit or best.seconds > ESTIMATED * chooser.whole.seconds:
            return found
        if not found or best.peak < found[-1].peak:
            found.append(best)
        limit *= STEP


def measured(prepared: Prepared, best: Priced) -> Found:
    """Run the original and a graph in parts in turns."""
    settings = replace(prepared.settings, costs=analytic_costs)  # its ops are not timed one by one
    split = prepare_fission(replace(prepared, settings=settings), best.regions)
    feeds = prepared.feeds
    assert feeds is not None
    model, tuned = to_model(split.graph), split.tuned
    ran = profile(model, feeds, tuned, folder=split.folder)
    before = profile(to_model(prepared.graph), feeds, tuned, folder=prepared.folder)
    sessions = [
        open_session(prepared.original, session_options(prepared.default), prepared.home),
        open_session(model, session_options(tuned), split.folder),
    ]
    ratios: list[float] = []
    start = time.process_time()
    while len(ratios) < LEAST_ROUNDS or (
        len(ratios) < ROUNDS and time.process_time() - start < LONG
    ):
        times = []
        for session in sessions:
            begin = time.process_time()
            run_session(session, feeds)
            times.append(time.process_time() - begin)
        ratios.append(times[1] / times[0])
    worst = compare(ran.outputs, before.outputs).worst
    share = ran.live_peak / before.live_peak
    return Found(share, statistics.median(ratios[1:]), worst, len(split.graph.ops))


def lines(name: str, net: Net, small: bool, curve: bool) -> Iterator[str]:
    """Rows of the table: the leanest within the time, or every point that was chosen."""
    model = net.make(**(net.small if small else net.full))
    prepared = prepare(model, Settings(threads=1, target="host"))
    begin = time.process_time()
    ways = chosen(prepared)
    spent = time.process_time() - begin
    whole = prepared.store_all_peak - prepared.weights
    text = f"| {name} | {whole / 2**20:.1f} |"
    for best in reversed(ways):
        found = measured(prepared, best)
        if curve or found.ratio <= ALLOWED:
            yield (
                f"{text} {found.share:.3f} | {found.ratio:.3f} | {found.worst:.1g} | {found.nodes} "
                f"| {spent:.0f} |"
            )
            if not curve:
                return
    if not curve:
        yield f"{text} 1 | - | - | {len(prepared.graph.ops)} | {spent:.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", action="append", choices=tuple(NETS), help="repeatable; all")
    parser.add_argument("--small", action="store_true", help="sizes of a few seconds each")
    parser.add_argument("--curve", action="store_true", help="every point, not the leanest alone")
    parser.add_argument(
        "--training", action="store_true", help="steps of training instead, planned only"
    )
    parser.add_argument("--run", action="store_true", help="smaller steps of training, measured")
    parser.add_argument("--step", action="append", choices=tuple(WORKLOADS), help="of these; all")
    given = parser.parse_args()
    if given.training or given.run or given.step:
        for line in rows_run(given.step, given.small) if given.run else rows(given.step):
            print(line, flush=True)
        return
    print(f"processor: {platform.processor() or platform.machine()}, numpy {np.__version__}")
    print("| net | MiB whole | live | time | differs | nodes | choosing, s |")
    print("|---|---|---|---|---|---|---|")
    for name in given.net or NETS:
        for line in lines(name, NETS[name], given.small, given.curve):
            print(line, flush=True)


if __name__ == "__main__":
    main()
