"""A model ready to be planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from onnxremat.cost.table import CostTable
from onnxremat.errors import UsageError
from onnxremat.grad import updated_inputs
from onnxremat.grad.parted import Parting
from onnxremat.graph.batch import batched_inputs
from onnxremat.graph.ir import Graph
from onnxremat.ort.profile import Feeds, Profile
from onnxremat.ort.session import DEFAULT, TUNED, Options
from onnxremat.pipeline.answers import Answers
from onnxremat.pipeline.floor import Floor
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.unsplit import Unsplit, known_of
from onnxremat.planner.reduce import Reduced, reduce
from onnxremat.planner.semantics import seconds
from onnxremat.session.gathered import update_bytes
from onnxremat.session.process import Beside, beside, nodes_bytes


@dataclass(frozen=True)
class Prepared:
    """A model ready to be planned.

    Attributes:
        unsplit: the model before it was ordered, priced or split.
        graph: optimised for the target, in the base order of planning.
        costs: seconds and scratch per op.
        weights: resident bytes of the weights.
        store_all_peak: predicted bytes of ``graph`` in its order, nothing recomputed.
        notes: what a user should know.
        whole: the graph before its batch was split, None where it is whole.
        whole_seconds: of that, nothing recomputed, by the same costs; 0 where it is whole.
        outputs: what ``graph`` returned for ``feeds`` under the options of plans, None where it
            was not run.
        lasting: tensors of ``graph`` that are left when a session with default options has fused
            it, None where that is not known.
        as_it_is: the original may be written as it is, where it keeps the budget.
        optimising: seconds that this took, and putting in order; as long does each part of it.
        passing: seconds that the original took to be opened, run under the meter and looked at.
        parting: how the forward pass of a step is in parts, None where it is whole.
        answers: what onnxruntime was asked about graphs of it already.
    """

    unsplit: Unsplit
    graph: Graph
    costs: CostTable
    weights: int
    store_all_peak: int
    settings: Settings
    notes: tuple[str, ...] = ()
    whole: Graph | None = None
    whole_seconds: float = 0.0
    outputs: Mapping[str, Any] | None = None
    lasting: frozenset[str] | None = None
    as_it_is: bool = False
    optimising: float = 0.0
    passing: float = 0.0
    parting: Parting | None = None
    answers: Answers = field(default_factory=Answers, compare=False, repr=False)

    @property
    def name(self) -> str:
        """File name, for people."""
        return self.unsplit.name

    @property
    def home(self) -> Path | None:
        """Where external weights of ``original`` are."""
        return self.unsplit.home

    @property
    def folder(self) -> Path | None:
        """Where those of ``graph`` are."""
        return self.unsplit.made.folder

    @property
    def original(self) -> onnx.ModelProto:
        """The bound model, not optimised."""
        return self.unsplit.original

    @property
    def plain(self) -> Graph:
        """The same with known sequences as plain tensors, no size of it from a run."""
        return self.unsplit.plain

    @property
    def feeds(self) -> Feeds | None:
        """Inputs for measuring, None when nothing is measured."""
        return self.unsplit.feeds

    @property
    def baseline(self) -> Profile | None:
        """A run of the original, None when nothing is measured."""
        return self.unsplit.baseline

    @property
    def baseline_peak(self) -> int:
        """Bytes of the original as it came under default options, measured where possible: what
        shares of it are of."""
        return self.unsplit.peak if self.unsplit.came is None else self.unsplit.came

    @property
    def unmeasured(self) -> Prepared:
        """The same as one that cannot be run: its plans are predicted alone."""
        unsplit = known_of(self.unsplit, replace(self.unsplit, feeds=None))
        return known_of(self, replace(self, unsplit=unsplit))

    def noted(self, *notes: str) -> Prepared:
        """The same with more to say about it."""
        return known_of(self, replace(self, notes=(*self.notes, *notes)))

    @property
    def bare(self) -> Prepared:
        """The same without what only running it needs, cheap to hand to another process."""
        said = onnx.ModelProto(metadata_props=self.original.metadata_props)
        nothing = Graph((), {}, (), (), said)
        made = replace(self.unsplit.made, model=said, graph=nothing)
        unsplit = replace(
            self.unsplit, source=nothing, feeds=None, baseline=None, made=made, graph=nothing,
            listed=nothing, measured=self.unsplit.peak, forward=None, lean=None,
        )  # fmt: skip
        return replace(self, unsplit=unsplit, outputs=None, answers=Answers())

    @cached_property
    def reduced(self) -> Reduced:
        """The planner's numbers for one session."""
        return reduce(self.graph, self.costs, self.weights)

    @property
    def store_all_seconds(self) -> float:
        """Of a run of the whole graph with nothing recomputed, though this be one in parts."""
        if self.whole_seconds:
            return self.whole_seconds
        problem = self.reduced.problem
        return seconds(problem, problem.store_all())

    @property
    def names(self) -> list[str]:
        """Of the ops of these numbers, for people."""
        ops = [self.graph.ops[index] for index in self.reduced.index]
        return [f"{op.name} ({op.op_type})" for op in ops]

    @property
    def in_place(self) -> tuple[tuple[str, str], ...]:
        """Inputs and outputs of a training step that a trainer binds to one buffer."""
        return tuple(updated_inputs(self.original).items())

    @cached_property
    def beside(self) -> Beside:
        """What budgets count beside weights and values, of a session of ``graph``."""
        return self.beside_in(self.graph)

    @cached_property
    def floor(self) -> Floor:
        """Bytes that no budget goes below, whatever is computed in parts."""
        return Floor.of(self.graph, self.weights, self.beside)

    def beside_in(self, graph: Graph) -> Beside:
        """The same of a session of another graph of this model."""
        return self.everything_in(graph).without(self.settings.not_counted)

    def everything_in(self, graph: Graph) -> Beside:
        """The same, counted or not."""
        state = [name for name, _ in self.in_place]
        return beside(graph, state, update_bytes(self.original))

    def bytes_of_nodes(self, nodes: int) -> int:
        """What budgets count of so many nodes more than the graph has."""
        return nodes_bytes(self.graph, nodes, self.settings.not_counted)

    @property
    def batch(self) -> int:
        """Rows of the batch, 0 where no input has one."""
        try:
            _, rows = batched_inputs(self.original)
        except UsageError:
            return 0
        return int(rows)  # its dimensions are bound

    @property
    def tuned(self) -> Options:
        """Options the plan is made for."""
        return replace(TUNED, threads=self.settings.threads)

    @property
    def default(self) -> Options:
        """Options of a session opened without any, threads aside."""
        return replace(DEFAULT, threads=self.settings.threads)
