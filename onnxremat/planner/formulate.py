"""The formulations by name: how large their models get, how to build them and read their points.

XEngine's are for several devices too (:func:`formulate_devices`). ``cuts`` is a relaxation with the
memory limit at chosen ops only: the sequence of its solution may break the budget elsewhere. The
others are exact for staged sequences (each op at most once per stage, base order inside a stage)
and of size n^2 or n^3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxremat.errors import UsageError
from onnxremat.planner.devices.problem import DeviceProblem, Schedule
from onnxremat.planner.formulations import checkmate, cuts, retention, xengine
from onnxremat.planner.formulations.extract import late_remakes
from onnxremat.planner.formulations.stages import StageModel
from onnxremat.planner.model import Model
from onnxremat.planner.options import DEVICE_FORMULATIONS, FORMULATIONS, MOST_COLUMNS
from onnxremat.planner.problem import Floats, occupancy
from onnxremat.planner.wiring import Wiring


@dataclass(frozen=True)
class Formulated:
    """A model and the way from its points to sequences.

    Attributes:
        name: of the formulation.
        unit: seconds per unit of the objective.
        sequence: ops in execution order of a point, None when it stands for no sequence.
        runs: columns of ``R[stage, op]`` by (stage, op); empty for ``cuts``.
        staged: the model covers staged sequences only.
        cuts: ops at whose first run the memory limit is kept, for ``cuts``.
    """

    name: str
    model: Model
    unit: float
    sequence: Callable[[Floats], list[int] | None]
    runs: dict[tuple[int, int], int]
    staged: bool
    cuts: tuple[int, ...] = ()


Builder = Callable[[Wiring, int], StageModel]
_STAGED: dict[str, Builder] = {
    "checkmate": checkmate.build,
    "retention": lambda wiring, budget: retention.build(
        wiring, budget, intervals=max(1, wiring.problem.ops)
    ),
    "xengine-miqp": lambda wiring, budget: xengine.build(xengine.single(wiring.problem), [budget]),
    "xengine-linear": lambda wiring, budget: xengine.build(
        xengine.single(wiring.problem), [budget], linear=True
    ),
}


def formulate(
    wiring: Wiring,
    budget: int,
    name: str,
    *,
    cut_ops: Sequence[int] = (),
    most_columns: int = MOST_COLUMNS,
) -> Formulated:
    """The model of a formulation for a budget in bytes.

    Args:
        name: one of :data:`FORMULATIONS`.
        cut_ops: for ``cuts``, where the limit is kept; the op at the store-all peak when empty.
        most_columns: larger models are refused before they are built.

    Raises:
        UsageError: unknown name, a cut that is no op, or a model that is too large.
    """
    if name not in FORMULATIONS:
        raise UsageError(f"unknown formulation '{name}'", hint="one of " + ", ".join(FORMULATIONS))
    count, ops = columns(wiring, name), wiring.problem.ops
    if count > most_columns:
        raise UsageError(
            f"the {name} model of this graph has about {count:,} columns",
            why=f"it grows with n^{3 if name == 'retention' else 2}, the graph has n = {ops} ops, "
            f"and {most_columns:,} columns are the limit",
            hint="--formulation cuts or --planner auto, which take any size; or raise the limit "
            f"with --max-columns {count + 1}",
        )
    if name == "cuts":
        return _cuts(wiring, budget, cut_ops)
    if cut_ops:
        raise UsageError(f"--cut is for the formulation cuts, not for {name}")
    made = _STAGED[name](wiring, budget)
    runs = {(stage, op): column for (_, stage, op), column in made.run.items()}
    return Formulated(name, made.model, made.unit, made.sequence, runs, staged=True)


@dataclass(frozen=True)
class DeviceFormulated:
    """A model of a problem on several devices and the way from its points to schedules.

    Attributes:
        name: of the formulation.
        unit: seconds per unit of the objective.
        schedule: the schedule of a point, for the judge.
        columns_of: binary columns that are 1 for a schedule; None when the model cannot say it.
    """

    name: str
    model: Model
    unit: float
    schedule: Callable[[Floats], Schedule]
    columns_of: Callable[[Schedule], set[int] | None]


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


def formulate_devices(
    problem: DeviceProblem,
    budgets: Sequence[int],
    name: str,
    *,
    most_columns: int = MOST_COLUMNS,
) -> DeviceFormulated:
    """The model of a formulation for budgets in bytes per device.

    Args:
        name: one of :data:`DEVICE_FORMULATIONS`.
        most_columns: larger models are refused before they are built.

    Raises:
        UsageError: another name, or a model that is too large.
    """
    check_for_devices(name)
    linear = name == "xengine-linear"
    count = xengine.columns(problem, budgets, linear=linear)
    if count > most_columns:
        raise UsageError(
            f"the {name} model of this graph on {problem.devices} devices has {count:,} columns",
            why=f"it grows with devices x n^2, the graph has n = {problem.ops} ops, and "
            f"{most_columns:,} columns are the limit",
            hint="leave out --formulation: the planner of several devices takes any size; or "
            f"raise the limit with --max-columns {count}",
        )
    made = xengine.build(problem, budgets, linear=linear)
    return DeviceFormulated(name, made.model, made.unit, made.schedule, made.columns_of)


def _cuts(wiring: Wiring, budget: int, cut_ops: Sequence[int]) -> Formulated:
    ops = wiring.problem.ops
    peak = int(occupancy(wiring.problem, wiring.problem.store_all()).argmax())
    chosen = tuple(sorted(set(cut_ops))) or (peak,)
    wrong = [op for op in chosen if not 0 <= op < ops]
    if wrong:
        raise UsageError(f"--cut {wrong[0]} is no op", hint=f"ops are numbered 0..{ops - 1}")
    made = cuts.build(wiring, cuts.fixed_spans(ops, chosen), budget)
    _label(made)

    def sequence(point: Floats) -> list[int] | None:
        return late_remakes(wiring, made.first_runs(point), made.carried(point))

    return Formulated("cuts", made.model, made.unit, sequence, {}, staged=False, cuts=chosen)


def _label(made: cuts.CutModel) -> None:
    """Name the columns after what they are, for files."""
    for letter, rows in (("E", made.run), ("X", made.carry)):
        for interval, row in enumerate(rows):
            for index, column in enumerate(row):
                if column >= 0:
                    made.model.labels[column] = f"{letter}_{interval}_{index}"


def columns(wiring: Wiring, name: str) -> int:
    """Columns that the model of a formulation has, at least (exact for one device)."""
    ops = wiring.problem.ops
    stages = [ops - op if wiring.recomputable[op] else 1 for op in range(ops)]
    places = [ops - op for op in range(ops)]
    runs, around, takes = sum(stages), 0, 0
    for op in range(ops):
        values = {*wiring.reads[op], *wiring.writes[op]}
        around += stages[op] * sum(not wiring.keep[value] for value in values)
        takes += stages[op] * len(wiring.inplace[op])
    held = sum(ops - 1 - maker for maker in wiring.producer)
    if name == "cuts":
        return 0 if not ops else ops + wiring.problem.values
    if name == "retention":
        events = sum(places)
        born = (maker * (maker + 1) // 2 + maker for maker in wiring.producer)
        return runs + takes + sum(events - first for first in born)
    return 2 * runs + held + around + takes
