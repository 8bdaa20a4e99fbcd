"""From a model file to the graph that is planned: bound, optimised offline, ordered, priced."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import onnx

from onnxremat.cost.measure import Measuring
from onnxremat.cost.table import CostTable
from onnxremat.errors import UsageError
from onnxremat.fission.region import Region
from onnxremat.grad import Settings as Training
from onnxremat.grad import differentiate, training_of, updated_inputs
from onnxremat.grad.parted import Parting
from onnxremat.graph.batch import batched_inputs
from onnxremat.graph.bodies import brought_out
from onnxremat.graph.ir import Graph
from onnxremat.graph.light import read_structure
from onnxremat.graph.onnx_io import computes_nothing, to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.limits import sizes_of
from onnxremat.ort.blocks import require_block
from onnxremat.ort.feeds import load_feeds, seeded_feeds
from onnxremat.ort.functions import check_domains, inline_functions
from onnxremat.ort.infer import bind, build_graph, require_shapes
from onnxremat.ort.offline import HOST, TARGETS, read_saved
from onnxremat.ort.profile import Feeds, Profile
from onnxremat.ort.session import DEFAULT, TUNED, Options
from onnxremat.pipeline.floor import Floor
from onnxremat.pipeline.in_parts.batch_slices import in_parts
from onnxremat.pipeline.in_parts.in_regions import in_regions
from onnxremat.pipeline.in_place import in_place
from onnxremat.pipeline.original.as_it_came import AsItCame, require_same
from onnxremat.pipeline.original.base_order import base_order, target_notes, weights_notes
from onnxremat.pipeline.original.first_values import said_of_defaults, without_first_values
from onnxremat.pipeline.original.largest import at_largest
from onnxremat.pipeline.original.lost_sums import without_lost_sums
from onnxremat.pipeline.original.mispadded import mispadded
from onnxremat.pipeline.original.sizes import (
    in_tensors,
    seen_sizes,
    size_notes,
    with_measured_shapes,
)
from onnxremat.pipeline.original.source import Source, files_read, read_source
from onnxremat.pipeline.phases import MEASURE, OPTIMISE, READ, Phases
from onnxremat.pipeline.priced import priced
from onnxremat.pipeline.time_left import MEASURING, OFF_PLANNING, QUICK, say_of_runs
from onnxremat.pipeline.unsplit import AsRead, Unsplit, known_of, optimised, peak_of
from onnxremat.pipeline.weight_order import DwPolicy, fixes_order
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.reduce import Reduced, reduce
from onnxremat.planner.semantics import seconds
from onnxremat.rewrite.restore import restored
from onnxremat.schedule.simulate import simulate
from onnxremat.session.gathered import update_bytes
from onnxremat.session.measure import profiled, weight_bytes
from onnxremat.session.process import PARTS, UPDATES, Beside, beside, nodes_bytes
from onnxremat.units import Budget

Progress = Callable[[str], None]
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
            **({"held_once": True} if self.held_once else {}),
            **({"narrow": list(self.narrow)} if self.narrow else {}),
        }


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
        return replace(self, unsplit=unsplit, outputs=None)

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


def prepare(source: Source, settings: Settings, progress: Progress | None = None) -> Prepared:
    """Read, bind, optimise, order and price a model.

    Args:
        source: a file, or a model in memory.
        progress: told what is being done.

    Raises:
        ModelError: not readable, not valid, or onnxruntime refuses it.
        UsageError: wrong target, shape, dimension or inputs, two orders asked for.
        UnsupportedError: no gradients of weights for a policy.
    """
    log = Phases.of(progress)
    if settings.target not in (AUTO, *TARGETS):
        names = ", ".join((AUTO, *TARGETS))
        raise UsageError(f"unknown target '{settings.target}'", hint=f"one of {names}")
    if odd := ", ".join(sorted(set(settings.not_counted).difference(parts := (*PARTS, UPDATES)))):
        raise UsageError(f"a budget counts no '{odd}'", hint="one of " + ", ".join(parts))
    kept = fixes_order(settings.dw_policy, settings.fixed_order)
    settings = replace(settings, fixed_order=settings.fixed_order or kept)
    before, ran = log.seconds.get(OPTIMISE, 0.0), log.seconds.get(MEASURE, 0.0)
    with log.phase(READ, "reading the model"):
        made = _prepared(source, settings.on_this_machine(), log)
    whole = not (settings.split_batch or settings.fission or kept)
    took, passing = log.seconds[OPTIMISE] - before, log.seconds.get(MEASURE, 0.0) - ran
    as_it_is = settings.target == AUTO and whole
    return replace(made, as_it_is=as_it_is, optimising=took, passing=passing)


def _prepared(source: Source, settings: Settings, log: Phases) -> Prepared:
    listed, folder, name = read_source(source)
    files = files_read(source, listed, folder)
    require_block(listed)
    model = restored(listed)
    check_domains(model)
    bound = bind(inline_functions(model), settings.shapes, settings.dims)
    forward, unsaid = None, ""
    if settings.train is not None:
        log("adding the backward pass")
        forward, bound = bound, step_of(bound, folder, settings)
        unsaid = training_of(bound).unsaid
    bound, dropped = without_first_values(bound)
    dropped = (*([unsaid] if unsaid else []), *said_of_defaults(listed), *dropped)
    bound, folder = brought_out(bound, folder) if forward is None else (bound, folder)
    original = without_dead_ops(build_graph(bound, folder, opened=not settings.measure))
    if all(op.op_type == "Constant" for op in original.ops):
        raise computes_nothing(name)
    given, (original, lost) = original, without_lost_sums(original)
    dropped = (*dropped, *lost)
    plain = in_tensors(original, folder)
    bound = to_model(original)
    feeds = _feeds(original, settings)
    baseline = came = None
    if feeds is not None:
        with log.phase(MEASURE, "measuring the original"):
            options = replace(DEFAULT, threads=settings.threads)
            updates = tuple(in_place(bound, settings.not_counted).values())
            began = time.perf_counter()
            # What is planned for this processor is what this session makes of it, too.
            read = partial(read_saved, folder=folder) if settings.target == HOST else read_structure
            baseline = profiled(bound, feeds, options, folder, updates, read)
            took = time.perf_counter() - began
            if lost:
                came = peak_of(given, profiled(to_model(given), feeds, options, folder), folder)
        say_of_runs(took, log)
        if model.functions:
            alone = AsItCame.of(source, bound if forward is None else forward, folder)
            seen = (feeds, baseline.outputs) if forward is None else None
            dropped = (*dropped, *require_same(alone, settings.seed, seen))
        original = with_measured_shapes(original, bound, feeds, folder)
    with log.phase(OPTIMISE):
        found = AsRead(name, folder, original, plain, feeds, baseline, came, files)
        unsplit = optimised(found, settings, log)
        made = for_planning(replace(unsplit, forward=forward), settings, log)
    return replace(made, notes=(*dropped, *mispadded(original), *made.notes))


def step_of(
    forward: onnx.ModelProto,
    folder: Path | None,
    settings: Settings,
    parting: Parting | None = None,
) -> onnx.ModelProto:
    """The training step of a model."""
    assert settings.train is not None
    # The portable graph uses no kernels of one processor; a file for this one may.
    step = settings.train.on_this_machine() if settings.target == HOST else settings.train
    return differentiate(forward, folder=folder, settings=step, parting=parting)


def for_planning(
    unsplit: Unsplit,
    settings: Settings,
    log: Phases,
    outputs: Mapping[str, Any] | None = None,
    whole: Prepared | None = None,
) -> Prepared:
    """The optimised graph, in parts where that is asked for, ordered and priced.

    Args:
        outputs: what the whole batch gives, where that is known.
        whole: the same model whole, priced already: an interrupt ends measuring, and costs are
            estimated by it.
    """
    made, graph, listed = unsplit.made, unsplit.graph, unsplit.listed
    feeds, folder = unsplit.feeds, made.folder
    asked, settings = settings.target, replace(settings, target=made.target)
    lean = unsplit.lean
    settings = replace(settings, **(lean.settings if lean else {}))
    if settings.split_batch:
        # Afterwards, so that parts share weights that are made from others (with a normalisation
        # folded in).
        log("splitting the batch")
        graph = in_parts(graph, settings.split_batch, feeds, folder, outputs)
        assert feeds is not None  # or there were no parts
        listed = graph = with_measured_shapes(graph, to_model(graph), feeds, folder)
        require_shapes(graph)
    policy, unordered = settings.dw_policy, graph
    graph = base_order(graph, listed, settings.fixed_order, policy)
    if settings.fission:
        log("computing regions in parts")
        original = unsplit.baseline.outputs if unsplit.baseline else None
        graph = in_regions(graph, settings.fission, feeds, folder, outputs, original)
    costs, measured = priced(graph, feeds, settings, unsplit, log, whole)
    if policy is not None and not policy.fixed and not settings.fission:
        # Only now it is known which order takes least, workspace included.
        graph = base_order(unordered, listed, settings.fixed_order, policy, costs.scratch)
    weights = weight_bytes(graph, measured)
    store_all = simulate(graph, scratch=costs.scratch, weight_bytes=weights).peak
    largest = at_largest(graph) if seen_sizes(graph) else None
    most = simulate(largest, weight_bytes=weights).peak if largest is not None else None
    notes = (*(lean.notes if lean else ()), *target_notes(asked, made, store_all, unsplit.peak))
    notes += size_notes(graph, feeds is not None, most)
    notes += (*weights_notes(policy, graph, listed, costs, weights), *costs.notes)
    return Prepared(
        unsplit, graph, costs, weights, store_all, settings, notes,
        outputs=measured.outputs if measured else None,
        lasting=None if settings.split_batch or settings.fission else made.lasting,
    )  # fmt: skip


def _feeds(graph: Graph, settings: Settings) -> Feeds | None:
    if not settings.measure:
        return None
    if settings.data is not None:
        return load_feeds(settings.data, graph)
    return seeded_feeds(graph, settings.seed)
