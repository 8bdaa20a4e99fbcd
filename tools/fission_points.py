"""Points of ``bench_fission.py``: graphs in parts, planned, checked, and written into a folder that
times are measured from later.

Everything that does not depend on how busy the machine is (bytes, results, what no plan without
parts can go below) is found here; a file beside the models holds it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxremat.cost.analytic import analytic_costs
from onnxremat.fission.choosers import Choosers
from onnxremat.fission.pricing import Priced
from onnxremat.graph.onnx_io import to_model, write_model
from onnxremat.ort.profile import Profile, profile, run_session
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.pipeline.in_parts.divided import prepare_fission
from onnxremat.pipeline.in_parts.in_regions import wholes_of
from onnxremat.pipeline.in_session import carried
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.bounds import largest_need
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.schedule.plan import Plan
from onnxremat.session.compare import compare

ALLOWED = 1.10  # time of a run against the original's
# Estimates of points that are kept: they leave out what caches gain.
ESTIMATED = (1.35, 1.25, 1.20, 1.17, 1.14, 1.11, 1.08, 1.04, 1.02, 0.9, 0.75, 0.6)
SLOW, FEW = 1.0, (1.17, 1.09, 1.05)  # seconds of a run from which fewer points are kept
FINE, FINER = 0.88, 0.94  # a limit as a share of the one before; of nets with few points
HOPELESS = 1.05  # times what is allowed, from which a point is not timed on
ROUNDS = 9
LEAST_ROUNDS, LONG = 3, 30.0  # of a net whose rounds take so many seconds together
MODEL, FACTS = "model.onnx", "points.json"


@dataclass(frozen=True)
class Point:
    """A graph in parts as it ran.

    Attributes:
        share: of the whole's live peak.
        default: the same of both under default session options.
        estimated: time against the whole's, by the costs of the ops.
        worst: largest difference of results.
        tuned: session options that it is planned for.
    """

    share: float
    default: float
    estimated: float
    worst: float
    nodes: int
    tuned: dict[str, object]


@dataclass(frozen=True)
class Planned:
    """What is known of a net before times are measured.

    Attributes:
        bytes: live peak of the whole.
        bound: share of it that no order and no recomputation of the whole can go below.
        least: share that was found to be needed in parts, at whatever time.
        seconds: of choosing, processor time.
        original: session options that the original is timed with.
        points: the leanest first.
    """

    bytes: int
    bound: float
    least: float
    seconds: float
    original: dict[str, object]
    points: tuple[Point, ...]


def chosen(choosers: Choosers) -> list[Priced]:
    """Graphs in parts, the leanest of each estimated time that is looked at."""
    slow = choosers.whole.seconds > SLOW
    fine, found = FINER if slow else FINE, list[Priced]()
    limit = fine * choosers.whole.peak
    while True:
        best = choosers.within(int(limit))
        if best.peak > limit or best.seconds > ESTIMATED[0] * choosers.whole.seconds:
            break
        found.append(best)
        limit *= fine
    kept: dict[int, Priced] = {}
    for share in FEW if slow else ESTIMATED:
        within = [each for each in found if each.seconds <= share * choosers.whole.seconds]
        if within:
            best = min(within, key=lambda each: each.peak)
            kept[best.peak] = best
    return list(kept.values())


def plan(model: onnx.ModelProto, folder: Path) -> Planned:
    """Plan a net and keep its points in a folder."""
    prepared = prepare(model, Settings(threads=1, target="host"))
    choosers = Choosers(wholes_of(prepared.graph, prepared.costs, prepared.folder))
    begin = time.process_time()
    ways = chosen(choosers)
    spent = time.process_time() - begin
    least = choosers.within(0).peak
    need = largest_need(ProblemLists(prepared.reduced.problem)).bytes
    whole = prepared.store_all_peak - prepared.weights
    assert prepared.feeds is not None
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "inputs.npz", **dict[str, Any](prepared.feeds))
    _write(prepared.original, folder / "original", prepared.home)
    ran = _Whole.ran(prepared)
    points = [ran.point(each, folder / str(at)) for at, each in enumerate(ways)]
    found = Planned(
        whole, (need - prepared.weights) / whole, least / whole, spent,
        prepared.default.to_json(), tuple(points),
    )  # fmt: skip
    (folder / FACTS).write_text(json.dumps(asdict(found), indent=1))
    return found


def read(folder: Path) -> Planned | None:
    """What was planned before; None where nothing was."""
    try:
        data = json.loads((folder / FACTS).read_text())
    except OSError:
        return None
    return Planned(**{**data, "points": tuple(Point(**each) for each in data["points"])})


@dataclass(frozen=True)
class _Whole:
    """A net that is not in parts, and what it took under planned and under default options."""

    prepared: Prepared
    planned: Profile
    usual: Profile

    @classmethod
    def ran(cls, prepared: Prepared) -> _Whole:
        feeds = prepared.feeds
        assert feeds is not None
        model, folder = to_model(prepared.graph), prepared.folder
        planned = profile(model, feeds, prepared.tuned, folder=folder)
        usual = profile(prepared.original, feeds, prepared.default, folder=prepared.home)
        return cls(prepared, planned, usual)

    def point(self, best: Priced, folder: Path) -> Point:
        """A graph in parts, run and written into a folder."""
        prepared, feeds = self.prepared, self.prepared.feeds
        settings = replace(prepared.settings, costs=analytic_costs)  # its ops are not timed
        split = prepare_fission(replace(prepared, settings=settings), best.regions)
        assert feeds is not None
        names = [op.name for op in split.graph.ops]
        made = carried(split, Plan.of(split.graph, names), Phases())
        _write(made.model(), folder, split.folder)
        ran = profile(folder / MODEL, feeds, split.tuned)
        usual = profile(folder / MODEL, feeds, prepared.default)
        return Point(
            ran.live_peak / self.planned.live_peak, usual.live_peak / self.usual.live_peak,
            best.seconds / prepared.costs.total, compare(ran.outputs, self.planned.outputs).worst,
            len(split.graph.ops), split.tuned.to_json(),
        )  # fmt: skip


def _write(model: onnx.ModelProto, folder: Path, weights: Path | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_model(model, folder / MODEL, weights)


def ratio(planned: Planned, at: int, folder: Path) -> float:
    """Time of a point against the original's: median of runs in turns, processor time."""
    feeds = dict(np.load(folder / "inputs.npz"))
    sides = (("original", planned.original), (str(at), planned.points[at].tuned))
    runs = [_run(folder / name / MODEL, options, feeds) for name, options in sides]
    ratios: list[float] = []
    start = time.process_time()
    for run in runs:
        run()
    while len(ratios) < LEAST_ROUNDS or (
        len(ratios) < ROUNDS
        and time.process_time() - start < LONG
        and min(ratios) <= HOPELESS * ALLOWED
    ):
        before = runs[0]()
        ratios.append(runs[1]() / before)
    return statistics.median(ratios)


def _run(
    path: Path, options: dict[str, object], feeds: dict[str, np.ndarray]
) -> Callable[[], float]:
    session = open_session(path, session_options(Options.from_json(options)))

    def seconds() -> float:
        begin = time.process_time()
        run_session(session, feeds)
        return time.process_time() - begin

    return seconds
