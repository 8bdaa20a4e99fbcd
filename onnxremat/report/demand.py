"""What a model needs, when and why, and the smallest budgets there are, all without planning.

Ways to need less are functions of a :class:`Subject` in :data:`WAYS`; each answers what it makes of
the peak, what is proven of it, and the command that does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from onnxremat.fission.choosers import Choosers
from onnxremat.graph.batch import batched_inputs, dependents
from onnxremat.pipeline.closed_loop import PINS
from onnxremat.pipeline.in_parts.fission_ways import described
from onnxremat.pipeline.in_parts.in_regions import wholes_of
from onnxremat.pipeline.in_session import session_of
from onnxremat.pipeline.original.as_loaded import REUSE
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.study_problem import GATE
from onnxremat.planner import search
from onnxremat.planner.baselines.checkpoints import articulation, chen_sqrt, recompute_all
from onnxremat.planner.bounds import Need, largest_need, needs
from onnxremat.planner.minimum import smallest_budget
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.order import Order, best_order
from onnxremat.planner.problem import Problem, Rows
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.problem_lists import reordered as renumbered
from onnxremat.planner.reasons import named
from onnxremat.planner.semantics import peak, seconds
from onnxremat.planner.solution import Solution
from onnxremat.report.pages.holders import Holder, Holders
from onnxremat.rewrite.emit import rewrite
from onnxremat.schedule.plan import Plan
from onnxremat.schedule.simulate import Timeline, simulate
from onnxremat.units import format_bytes

ORDER_SECONDS = 0.2  # for another order
LEANER = 0.98  # share of the base order's peak at which another order is the one to start from
SMALL = 600  # ops up to which holding no forward value at all is tried: its sequence is quadratic
UNLIMITED = 1 << 62
FORESEEN = 2 << 10  # bytes of nodes that find shapes as a session runs, known only by its runs
HELD = 8  # values listed at the peak
TRIALS, WORK = 60, 20_000  # of regions in parts; and times the ops of a graph
QUICK = 3000  # ops up to which these are looked for


@dataclass(frozen=True)
class Peak:
    """The worst step of a run of the model under onnxruntime's default options, as predicted.

    Attributes:
        step: number of the op, from 0, of ``steps``.
        weights, live, scratch: the bytes at that step; they add up to ``bytes``.
        kept: of ``weights``: constants that onnxruntime computes at load and keeps.
        holders: the largest values then.
    """

    bytes: int
    step: int
    steps: int
    op: str
    op_type: str
    before: str
    weights: int
    kept: int
    live: int
    scratch: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True)
class Way:
    """A way to need less memory.

    Attributes:
        bytes: the smallest budget it is known to keep.
        known: ``predicted`` (a run on paper), ``found`` (an order or a plan, on paper),
            ``estimated`` (of what was not built), or ``open`` (nothing smaller was found).
        lower: proven: the way goes below no smaller budget; ``why`` the reason.
        overhead: extra time, estimated from the costs, as a share of storing everything.
        options: what ``onnxremat optimize`` needs besides the budget.
        nodes: that it adds, at most, beside those of its order.
        pins: bytes that budgets count of what makes its order onnxruntime's own.
    """

    name: str
    bytes: int
    known: str
    lower: int
    why: str
    overhead: float = 0.0
    options: str = ""
    note: str = ""
    nodes: int = 0
    pins: int = 0

    @property
    def proven(self) -> bool:
        """Nothing smaller is possible this way."""
        return self.bytes <= self.lower


@dataclass(frozen=True)
class Subject:
    """A prepared model and what is asked of it more than once.

    Attributes:
        seconds: for the planner's search of the smallest budget; 0 leaves it to rules that take a
            moment.
    """

    prepared: Prepared
    seconds: float = 0.0

    @property
    def problem(self) -> Problem:
        return self.prepared.reduced.problem

    @cached_property
    def lists(self) -> ProblemLists:
        return ProblemLists(self.problem)

    @cached_property
    def need(self) -> Need:
        """The op that needs most at once."""
        return largest_need(self.lists)

    @property
    def reason(self) -> str:
        """Why no plan that runs every op whole needs less."""
        return named(self.need.why, self.prepared.names)

    @cached_property
    def alone(self) -> bool:
        """Whether one op by itself needs that, and not all results together."""
        return self.need.bytes == max(needs(self.lists), default=0)

    @cached_property
    def order(self) -> Order:
        """The order of least peak that a moment's search finds."""
        return best_order(self.lists, ORDER_SECONDS)

    def pins(self, order: Sequence[int]) -> int:
        """Bytes that budgets count of what makes an order of all ops onnxruntime's own."""
        prepared = self.prepared
        names = prepared.reduced.lift(order)
        made = session_of(prepared, rewrite(prepared.graph, Plan.of(prepared.graph, names)))
        return max(0, made.beside - prepared.beside.total) + FORESEEN

    @cached_property
    def base_pins(self) -> int:
        """Of the base order."""
        return self.pins(range(self.problem.ops))

    @cached_property
    def default(self) -> Timeline:
        """A run under onnxruntime's default options, on paper."""
        costs = self.prepared.costs
        return self.prepared.unsplit.loaded.run(costs.scratch, costs.seconds)

    @property
    def floor(self) -> int:
        """Weights and results: in memory at the end of every plan, in any number of parts."""
        return self.prepared.floor.fixed


def worst_moment(subject: Subject, most: int = HELD) -> Peak:
    """The peak of a run under default options, and what is in memory then."""
    loaded, line = subject.prepared.unsplit.loaded, subject.default
    if not line.ops:
        return Peak(line.peak, 0, 0, "", "", "", line.weight_bytes, loaded.kept, 0, 0, ())
    graph = loaded.graph
    step = line.peak_step
    holders = Holders.of(graph, line, REUSE).at(step, most)
    return Peak(
        line.peak, step, len(line.ops), line.ops[step], graph.ops[step].op_type,
        line.ops[step - 1] if step else "", line.weight_bytes, loaded.kept, line.live[step],
        line.scratch[step],
        tuple(holders),
    )  # fmt: skip


def in_place(subject: Subject) -> Way:
    """Every buffer given back after its last reader, or taken over by the op that reads it last."""
    found, problem = subject.prepared.store_all_peak, subject.problem
    apart = replace(problem, inplace=Rows.of([[]] * problem.ops))
    without = peak(apart, problem.store_all())
    saved = without - peak(problem, problem.store_all())
    note = f"in-place operators save {format_bytes(saved)} of it" if saved > 0 else ""
    why = f"results and weights take {format_bytes(subject.floor)}"
    pins = subject.base_pins
    return Way("planned, same order", found, "predicted", subject.floor, why, note=note, pins=pins)


def another_order(subject: Subject) -> Way:
    """The same ops once each, in the order with the least peak."""
    found = subject.order
    words = "no order needs less" if found.proven else subject.reason
    pins = subject.pins([int(op) for op in found.order])
    return Way("another order", found.peak, "found", found.bound, words, pins=pins)


def recomputing(subject: Subject) -> Way:
    """Values computed again instead of kept."""
    need, problem = subject.need.bytes, subject.problem
    quick, plain = min(_checkpointed(subject, UNLIMITED), key=_lean), subject.order.peak
    by, bytes_, time = quick.planner, quick.peak, quick.time
    runs = len(quick.sequence or ())
    if subject.seconds and min(plain, bytes_) > need:
        search.warm_up()  # in no time limit
        found, sequence, *_ = smallest_budget(problem, PlanOptions(subject.seconds, threads=1))
        if found < bytes_:
            by, bytes_, time = "the search", found, seconds(problem, sequence)
            runs = len(sequence)
    pins = subject.base_pins
    if plain <= need:
        return Way("recomputing", plain, "found", need, subject.reason, pins=pins)
    if bytes_ >= plain:
        note = "nothing smaller found in a moment; optimize --budget min searches"
        return Way("recomputing", plain, "open", need, subject.reason, note=note, pins=pins)
    total = float(problem.cost.sum())
    note = f"by {by}; optimize finds plans that take less time"
    return Way(
        "recomputing", bytes_, "found", need, subject.reason,
        overhead=time / total - 1 if total else 0.0, note=note,
        nodes=_added(runs - problem.ops), pins=pins,
    )  # fmt: skip


def _added(again: int) -> int:
    """Nodes that so many recomputations add at most: each with a view of it, and a gate."""
    return (2 + GATE) * again


def _checkpointed(subject: Subject, budget: int) -> list[Solution]:
    """What the checkpoint rules of a moment make of a budget, in the order of least peak where
    that is clearly another one."""
    problem, order = subject.problem, subject.order
    if order.peak <= LEANER * peak(problem, problem.store_all()):
        problem = renumbered(problem, order.order)
    rules = [articulation, chen_sqrt, *([recompute_all] if problem.ops <= SMALL else [])]
    return [rule(problem, budget) for rule in rules]


def _lean(found: Solution) -> tuple[bool, int, float]:
    return found.schedule is None, found.peak, found.time


def _overhead(found: Solution) -> float:
    return found.time / found.reference - 1 if found.reference else 0.0


WAYS: tuple[Callable[[Subject], Way], ...] = (in_place, another_order, recomputing)


def in_parts(subject: Subject, parts: int) -> Way:
    """An inference's batch in parts, estimated: what depends on the batch is that much smaller,
    while the results are whole, and one of them is beside its parts when these are joined."""
    graph, prepared = subject.prepared.graph, subject.prepared
    inputs, _ = batched_inputs(prepared.original)
    shrunk = {name for name in dependents(graph, inputs) if name in graph.tensors}
    tensors = {
        name: replace(tensor, bytes=math.ceil(tensor.bytes / parts)) if name in shrunk else tensor
        for name, tensor in graph.tensors.items()
    }
    scratch = {name: math.ceil(bytes_ / parts) for name, bytes_ in prepared.costs.scratch.items()}
    small = graph.with_ops(graph.ops, tensors)
    part = simulate(small, scratch=scratch, weight_bytes=prepared.weights).peak
    largest = max((graph.tensors[name].bytes for name in graph.outputs), default=0)
    joining, needed = subject.floor + largest, part + graph.result_bytes
    why = f"results and weights take {format_bytes(joining)} when the largest result is joined"
    return Way(
        f"batch in {parts} parts", max(needed, joining), "estimated", joining, why,
        options=f" --split-batch {parts}",
        note="where rows do not depend on each other, which optimize checks by a run",
        nodes=parts * len(graph.ops),
    )  # fmt: skip


def regions_in_parts(subject: Subject) -> Way | None:
    """Regions of an inference's graph in parts, as a few trials find them; None where these need no
    less, for training steps, and for graphs whose trials take longer than a moment."""
    prepared = subject.prepared
    if prepared.in_place or not 0 < len(prepared.graph.ops) <= QUICK:
        return None
    trials, most = count(), min(TRIALS, WORK // len(prepared.graph.ops))
    wholes = wholes_of(prepared.graph, prepared.costs, prepared.folder)
    choosers = Choosers(wholes, lambda: next(trials) >= most)
    found, whole = choosers.within(0), choosers.whole
    if not found.regions:
        return None
    why = f"results and weights take {format_bytes(subject.floor)}"
    return Way(
        "regions in parts", prepared.weights + found.peak, "estimated", subject.floor, why,
        overhead=found.seconds / whole.seconds - 1 if whole.seconds else 0.0,
        note=f"{described(found.regions)}; optimize looks for quicker ones and for less",
        nodes=sum(len(region.ops) * len(region.parts) for region in found.regions),
    )  # fmt: skip


def rows(subject: Subject) -> int:
    """Rows of an inference's batch that may be computed apart, 0 for none: a result that has not
    as many rows is made of all of them (a loss, a gradient)."""
    prepared, tensors = subject.prepared, subject.prepared.graph.tensors
    shapes = [tensors[name].shape or () for name in prepared.graph.outputs]
    apart = all(shape[:1] == (prepared.batch,) for shape in shapes)
    return prepared.batch if apart and not prepared.in_place else 0


def ways(subject: Subject) -> list[Way]:
    """Every way that is open, from the least change to the most; a batch or regions in parts where
    these are estimated to need less than the others."""
    found = [way(subject) for way in WAYS]
    batch, least = rows(subject), min(way.bytes for way in found)
    parts = [in_parts(subject, many) for many in sorted({2, batch}) if 2 <= many <= batch]
    regions = regions_in_parts(subject)
    parts += [regions] if regions is not None else []
    return found + [way for way in parts if way.bytes < least]


@dataclass(frozen=True)
class Verdict:
    """What is known about a budget.

    Attributes:
        keeps: True where a run on paper keeps it, False where none can, None where that is open.
        lower: proven: no budget below these bytes can be kept.
        share: of the peak: nodes that a plan adds come on top.
    """

    budget: int
    keeps: bool | None
    words: str
    lower: int
    share: bool = False


def judge(
    subject: Subject,
    worst: int,
    open_ways: list[Way],
    budget: int,
    *,
    share: bool = False,
    in_parts: int | None = None,
) -> Verdict:
    """Whether a budget can be kept, as far as a moment tells.

    Args:
        worst: bytes of the model as it is, measured where they were.
        open_ways: of :func:`ways`.
        budget: bytes for weights and values, and for the nodes that a plan adds.
        share: nodes that a plan adds come on top.
        in_parts: bytes for weights and values whatever is computed in parts; as many when None.
    """

    def room(nodes: int, pins: int) -> int:
        return budget if share else budget - subject.prepared.bytes_of_nodes(nodes) - pins - PINS

    whole = bool(subject.prepared.in_place)  # a training step of ours: no op goes in parts
    lower = subject.need.bytes if whole else subject.floor
    if budget >= worst:
        return Verdict(budget, True, "the model keeps it as it is", lower)
    for way in open_ways:
        if way.known != "estimated" and not way.overhead and way.bytes <= room(way.nodes, way.pins):
            words = f"{way.name} keeps it, nothing recomputed ({format_bytes(way.bytes)})"
            return Verdict(budget, True, words, lower)
    quick = min(_checkpointed(subject, budget), key=lambda one: one.time)
    again = len(quick.sequence or ()) - subject.problem.ops
    fits = quick.schedule is not None and quick.peak <= room(_added(again), subject.base_pins)
    prices = [(_overhead(quick), quick.planner)] if fits else []
    prices += [
        (way.overhead, f"a plan of {format_bytes(way.bytes)}")
        for way in open_ways
        if way.known == "found" and way.bytes <= room(way.nodes, way.pins)
    ]
    if prices:
        price, how = min(prices)
        words = f"recomputing keeps it: {how} takes {price:+.0%} time (estimated), optimize finds "
        return Verdict(budget, True, words + "plans that take less", lower)
    if (budget if whole or in_parts is None else in_parts) < lower:
        why = subject.reason if whole else "weights and results take that at the end of every run"
        words = f"proven: weights and values need at least {format_bytes(lower)}: {why}"
        return Verdict(budget, False, words, lower)
    if budget < subject.need.bytes:
        apart = format_bytes(subject.need.bytes)
        words = f"only with ops in parts, if at all: whole they need {apart}; optimize searches"
        return Verdict(budget, None, words, lower)
    words = "open: not proven impossible, and not kept by a rule of a moment; optimize searches"
    return Verdict(budget, None, words, lower)
