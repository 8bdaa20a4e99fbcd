"""The formulations by name: how large their models get, how to build them and read their points.

XEngine's are for several devices too. ``cuts`` is a relaxation with the memory limits at chosen ops
only: the schedule of its solution may break a budget elsewhere. The others are exact for staged
schedules (each op at most once per stage and device, base order inside a stage) and of size n^2 or
n^3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxremat.errors import UsageError
from onnxremat.planner.formulations import checkmate, cuts, retention, xengine
from onnxremat.planner.formulations.cut_model import CutModel
from onnxremat.planner.formulations.extract import late_schedule
from onnxremat.planner.formulations.spans import fixed_spans
from onnxremat.planner.formulations.stages import StageModel
from onnxremat.planner.model import Model
from onnxremat.planner.options import DEVICE_FORMULATIONS, FORMULATIONS, MOST_COLUMNS
from onnxremat.planner.problem import Floats
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import occupancy

Fixed = dict[int, float]  # column to value


@dataclass(frozen=True)
class Formulated:
    """A model and the way from its points to schedules.

    Attributes:
        name: of the formulation.
        unit: seconds per unit of the objective.
        schedule: the schedule of a point, for the judge; None when it stands for none.
        fixed: columns that a schedule determines, with their values; None when the model cannot
            say it.
        staged: the model covers staged schedules only.
        cuts: ops at whose first run the memory limit is kept, for ``cuts``.
    """

    name: str
    model: Model
    unit: float
    schedule: Callable[[Floats], Schedule | None]
    fixed: Callable[[Schedule], Fixed | None]
    staged: bool
    cuts: tuple[int, ...] = ()


_ONE_DEVICE: dict[str, Callable[[ProblemLists, int], StageModel]] = {
    "checkmate": checkmate.build,
    "retention": lambda lists, budget: retention.build(
        lists, budget, intervals=max(1, lists.problem.ops)
    ),
}


def formulate(
    lists: ProblemLists,
    budgets: Sequence[int],
    name: str,
    *,
    cut_ops: Sequence[int] = (),
    most_columns: int = MOST_COLUMNS,
) -> Formulated:
    """The model of a formulation for budgets in bytes, one per device.

    Args:
        name: one of :data:`FORMULATIONS`; of :data:`DEVICE_FORMULATIONS` for several devices.
        cut_ops: for ``cuts``, where the limit is kept; the op at the store-all peak when empty.
        most_columns: larger models are refused before they are built.

    Raises:
        UsageError: unknown name, one that is not for several devices, a cut that is no op, or a
            model that is too large.
    """
    if name not in FORMULATIONS:
        raise UsageError(f"unknown formulation '{name}'", hint="one of " + ", ".join(FORMULATIONS))
    if lists.problem.devices > 1:
        check_for_devices(name)
    _check_size(lists, budgets, name, most_columns)
    if name == "cuts":
        return _cuts(lists, budgets, cut_ops)
    if cut_ops:
        raise UsageError(f"--cut is for the formulation cuts, not for {name}")
    if name in _ONE_DEVICE:
        made = _ONE_DEVICE[name](lists, budgets[0])
        problem = lists.problem

        def schedule(point: Floats) -> Schedule:
            return Schedule.of(problem, made.sequence(point))

        def fixed(found: Schedule) -> Fixed | None:
            return _runs(made, found.sequence)

        return Formulated(name, made.model, made.unit, schedule, fixed, staged=True)
    made = xengine.build(lists.problem, budgets, linear=name == "xengine-linear")

    def all_fixed(found: Schedule) -> Fixed | None:
        chosen = made.columns_of(found)
        if chosen is None:
            return None
        whole = np.flatnonzero(made.model.integer).tolist()
        return {column: float(column in chosen) for column in whole}

    return Formulated(name, made.model, made.unit, made.schedule, all_fixed, staged=True)


def check_for_devices(name: str) -> None:
    """Raises:
    UsageError: the formulation is not one for several devices.
    """
    if name not in DEVICE_FORMULATIONS:
        raise UsageError(
            f"the formulation '{name}' is not for several devices",
            why="it has one memory" if name in FORMULATIONS else "there is none of that name",
            hint="--formulation " + " or ".join(DEVICE_FORMULATIONS)
            + "; or none, and the planner of several devices takes any size",
        )  # fmt: skip


def _check_size(lists: ProblemLists, budgets: Sequence[int], name: str, most: int) -> None:
    count, ops, devices = columns(lists, budgets, name), lists.problem.ops, lists.problem.devices
    if count <= most:
        return
    if devices > 1:
        raise UsageError(
            f"the {name} model of this graph on {devices} devices has {count:,} columns",
            why=f"it grows with devices x n^2, the graph has n = {ops} ops, and {most:,} columns "
            "are the limit",
            hint="leave out --formulation: the planner of several devices takes any size; or "
            f"raise the limit with --max-columns {count}",
        )
    raise UsageError(
        f"the {name} model of this graph has about {count:,} columns",
        why=f"it grows with n^{3 if name == 'retention' else 2}, the graph has n = {ops} ops, "
        f"and {most:,} columns are the limit",
        hint="--formulation cuts or --planner auto, which take any size; or raise the limit "
        f"with --max-columns {count + 1}",
    )


def _runs(made: StageModel, sequence: Sequence[int]) -> Fixed | None:
    """Columns of R for a sequence whose first runs are in base order."""
    wanted = {(0, stage, op) for stage, op in staged_runs(sequence)}
    if not wanted <= made.run.keys():
        return None
    return {column: float(key in wanted) for key, column in made.run.items()}


def staged_runs(sequence: Sequence[int]) -> set[tuple[int, int]]:
    """(stage, op) of every run; stage t ends with the first run of op t."""
    seen: set[int] = set()
    runs: set[tuple[int, int]] = set()
    waiting: list[int] = []
    for op in sequence:
        waiting.append(op)
        if op not in seen:
            runs.update((op, again) for again in waiting)
            waiting = []
        seen.add(op)
    return runs


def _cuts(lists: ProblemLists, budgets: Sequence[int], cut_ops: Sequence[int]) -> Formulated:
    ops = lists.problem.ops
    peak = int(occupancy(lists.problem, lists.problem.store_all()).argmax())
    chosen = tuple(sorted(set(cut_ops))) or (peak,)
    wrong = [op for op in chosen if not 0 <= op < ops]
    if wrong:
        raise UsageError(f"--cut {wrong[0]} is no op", hint=f"ops are numbered 0..{ops - 1}")
    made = cuts.build(lists, fixed_spans(ops, chosen), budgets)
    _label(made)

    def schedule(point: Floats) -> Schedule | None:
        return late_schedule(made, point)

    return Formulated(
        "cuts", made.model, made.unit, schedule, lambda _: None, staged=False, cuts=chosen
    )


def _label(made: CutModel) -> None:
    """Name the columns after what they are, for files."""
    for letter, rows in (("E", made.run), ("X", made.carry)):
        for interval, (row,) in enumerate(rows):
            for index, column in enumerate(row):
                if column >= 0:
                    made.model.labels[column] = f"{letter}_{interval}_{index}"


def columns(lists: ProblemLists, budgets: Sequence[int], name: str) -> int:
    """Columns that the model of a formulation has, at least (exact for all but ``cuts``)."""
    ops = lists.problem.ops
    if name == "cuts":
        return 0 if not ops else ops + lists.problem.values
    if name in DEVICE_FORMULATIONS:
        return xengine.columns(lists.problem, budgets, linear=name == "xengine-linear")
    stages = [ops - op if lists.recomputable[op] else 1 for op in range(ops)]
    places = [ops - op for op in range(ops)]
    runs, around, takes = sum(stages), 0, 0
    for op in range(ops):
        values = {*lists.reads[op], *lists.writes[op]}
        around += stages[op] * sum(not lists.keep[value] for value in values)
        takes += stages[op] * len(lists.inplace[op])
    if name == "retention":
        events = sum(places)
        born = (maker * (maker + 1) // 2 + maker for maker in lists.producer)
        return runs + takes + sum(events - first for first in born)
    held = sum(ops - 1 - maker for maker in lists.producer)
    return 2 * runs + held + around + takes
