"""How a model is prepared and measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxremat.cost.measure import Measuring
from onnxremat.cost.table import CostTable
from onnxremat.errors import UsageError
from onnxremat.fission.region import Region
from onnxremat.grad import Settings as Training
from onnxremat.graph.ir import Graph
from onnxremat.limits import sizes_of
from onnxremat.ort.offline import HOST
from onnxremat.pipeline.time_left import MEASURING, OFF_PLANNING, QUICK
from onnxremat.pipeline.weight_order import DwPolicy
from onnxremat.planner.options import PlanOptions
from onnxremat.units import Budget

AUTO = "auto"  # a target: the original as it is where that will do, else ``host``


@dataclass(frozen=True)
class Settings:
    """How a model is prepared and measured.

    Attributes:
        shapes: full shape per input.
        dims: size per symbolic dimension.
        target: what the file may contain, a key of ``TARGETS``; or ``auto``: the original as it is
            where it keeps the budget, else what onnxruntime runs on this processor (``host``).
        threads: intra-op threads, 0 for one per core.
        seed: of made-up inputs.
        data: ``.npz`` file with inputs to measure and verify on.
        measure: run the model; without it costs are estimated and nothing is verified.
        fresh: measure costs even when they are cached.
        fixed_order: keep the file's order of first runs.
        dw_policy: when a training step makes gradients of weights; None for like every other op.
        train: make a training step of the model first.
        split_batch: compute the batch in parts: so many, or of so many rows each; whole where
            empty. None leaves it to the planner of several devices.
        fission: regions of the graph that are computed in parts; whole where empty. None leaves it
            to the planner.
        hide_shapes: regions in parts have shapes that a session learns only while it runs
            (:mod:`onnxremat.graph.unforeseen`), for who opens the file without options.
        to_write: False for a model that is only looked at: what a file has to stand is not tried.
        costs: prices the ops of a graph, instead of measuring them or estimating.
        not_counted: parts of a process, of :data:`onnxremat.session.process.PARTS`, that a budget
            leaves out; and :data:`~onnxremat.session.process.UPDATES`.
        costs_within: seconds that measuring costs may take; what there is no time for is estimated.
        budget: that is planned for. Where weights, inputs and results alone take more, costs are
            estimated: there is no plan to make, and the smallest budget needs none.
        held_once: read weights in place of second copies of them
            (:mod:`onnxremat.rewrite.held_once`). None does it where ``budget`` asks for it.
        narrow: weights that lie in half of their width until they are read
            (:mod:`onnxremat.rewrite.held_narrow`). None takes those for which ``budget`` asks.

    Raises:
        UsageError: a size, parts of a batch or a training step that are none.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    target: str = AUTO
    threads: int = 0
    seed: int = 0
    data: Path | None = None
    measure: bool = True
    fresh: bool = False
    fixed_order: bool = False
    train: Training | None = None
    split_batch: tuple[int, ...] | None = None
    fission: tuple[Region, ...] | None = None
    hide_shapes: bool = True
    to_write: bool = True
    costs: Callable[[Graph], CostTable] | None = None
    not_counted: tuple[str, ...] = ()
    dw_policy: DwPolicy | None = None
    costs_within: float = math.inf
    budget: Budget | None = None
    held_once: bool | None = None
    narrow: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        shapes = {name: sizes_of(name, sizes) for name, sizes in self.shapes.items()}
        dims = {name: sizes_of(name, [size])[0] for name, size in self.dims.items()}
        as_read = {"shapes": shapes, "dims": dims, "data": self.data and Path(self.data)}
        vars(self).update(as_read)  # as plain data, which files hold
        if isinstance(self.not_counted, str):
            hint = f"parts as a tuple: not_counted=('{self.not_counted}',)"
            raise UsageError(f"not_counted is '{self.not_counted}'", hint=hint)
        if isinstance(self.split_batch, int):
            hint = f"parts as a tuple: split_batch=({self.split_batch},)"
            raise UsageError(f"split_batch is {self.split_batch}", hint=hint)
        if not isinstance(self.train, Training | None):
            hint = "train=onnxremat.Training(optimizer='adamw')"
            raise UsageError(f"train is {self.train!r}", hint=hint)

    def measuring(self, folder: Path | None) -> Measuring:
        """How costs are measured of a model whose external weights are in ``folder``."""
        return Measuring(folder, self.fresh, self.costs_within)

    def asked(self, options: PlanOptions, budget: Budget | None = None) -> Settings:
        """The same for a command with these options: its time limit holds for costs, too.

        Args:
            budget: the one that is planned for; what measuring took, planning does without then
                (:func:`~onnxremat.pipeline.time_left.left_of`).
        """
        if options.work is not None:  # no clock is looked at then
            return replace(self, budget=budget)
        share = MEASURING if budget is None else MEASURING + OFF_PLANNING
        seconds = share * options.time_limit + QUICK
        return replace(self, budget=budget, costs_within=min(seconds, self.costs_within))

    def on_this_machine(self) -> Settings:
        """The same with ``host`` for ``auto``."""
        return replace(self, target=HOST) if self.target == AUTO else self

    def to_json(self) -> dict[str, Any]:
        """What preparing the same graph again needs."""
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "dims": dict(self.dims),
            "target": self.target,
            "not_counted": list(self.not_counted),
            **({"split_batch": list(self.split_batch)} if self.split_batch else {}),
            **({"fission": [r.to_json() for r in self.fission]} if self.fission else {}),
            **({} if self.hide_shapes else {"hide_shapes": False}),
            **({"held_once": True} if self.held_once else {}),
            **({"narrow": list(self.narrow)} if self.narrow else {}),
        }
