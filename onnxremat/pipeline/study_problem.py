"""What is planned: a model, or a graph file of a planner study, as one problem of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxremat.errors import ModelError, UsageError
from onnxremat.pipeline.closed_loop import PINS
from onnxremat.pipeline.limits import Limit, limit_of
from onnxremat.pipeline.original.source import Source
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import AUTO, Settings
from onnxremat.planner.graph_files import GraphFileError, read_graph
from onnxremat.planner.problem import Problem
from onnxremat.planner.reasons import named
from onnxremat.planner.semantics import peak, seconds
from onnxremat.session.structures import bytes_again, node_bytes
from onnxremat.units import Budget

GATE = 3  # nodes that keep a recomputation apart from the first run, at most


@dataclass(frozen=True)
class Subject:
    """A problem to plan.

    Attributes:
        name: for people.
        problem: sizes and costs.
        baseline_peak: bytes that shares of the budget refer to: the unoptimised model's peak, or
            that of storing everything in a graph file's order.
        model: the prepared model, None for a graph file.
        fixed_order: keep first runs in the base order.
    """

    name: str
    problem: Problem
    baseline_peak: int
    model: Prepared | None
    fixed_order: bool

    @property
    def store_all_seconds(self) -> float:
        """Seconds without recomputation."""
        return seconds(self.problem, self.problem.store_all())

    @property
    def store_all_peak(self) -> int:
        """Bytes without recomputation, in the base order."""
        return peak(self.problem, self.problem.store_all())

    @property
    def beside(self) -> int:
        """Bytes that budgets count, and the problem does not."""
        return self.model.beside.total if self.model else 0

    @property
    def baseline_process(self) -> int:
        """Bytes of a process that runs the unoptimised model."""
        return self.baseline_peak + self.beside

    def said(self, notes: Sequence[str]) -> str:
        """Notes of the planner, with the names of the model's ops where they are about one."""
        names = self.model.names if self.model else ()
        return "; ".join(named(note, names) if names else note for note in notes)

    def beside_of(self, sequence: Sequence[int]) -> int:
        """At most these bytes are counted beside the problem's, of a sequence that is carried out:
        gates and pins among them."""
        if self.model is None:
            return self.beside
        if "session" in self.model.settings.not_counted:
            return self.beside + PINS
        graph, names = self.model.graph, self.model.reduced.lift(sequence)
        gates = GATE * (len(names) - len(graph.ops)) * node_bytes(graph)
        return self.beside + bytes_again(graph, names) + gates + PINS

    def limit(self, budget: Budget) -> Limit | None:
        """Bytes of the problem within a budget, None for ``min``; a graph file has no device but
        its peak."""
        if self.model is not None:
            return limit_of(self.model, budget)
        size = budget.resolve(device_bytes=self.baseline_peak, peak_bytes=self.baseline_peak)
        return None if size is None else Limit(size)


def is_graph_file(source: Source) -> bool:
    """True for the path of a ``.json`` file."""
    return isinstance(source, str | Path) and Path(source).suffix == ".json"


def read_subject(
    source: Source, settings: Settings, say: Callable[[str], None] | None = None
) -> Subject:
    """Read a graph file, or prepare a model.

    Raises:
        ModelError: neither.
        UsageError: wrong shapes, target or inputs of a model; a setting that is for models.
    """
    if isinstance(source, str | Path) and is_graph_file(source):
        _refuse_of_models(settings)
        return _graph_file(Path(source), settings.fixed_order)
    prepared = prepare(source, settings, say)
    lean = prepared.unsplit.lean
    if say and lean:
        for note in lean.notes:
            say(note)
    return prepared_subject(prepared)


def _refuse_of_models(settings: Settings) -> None:
    """Raises:
    UsageError: a setting that a graph file has nothing for: sizes and costs are all that it says.
    """
    given = {
        "--shape": settings.shapes, "--dim": settings.dims, "--target": settings.target != AUTO,
        "--data": settings.data, "--train": settings.train, "--split-batch": settings.split_batch,
        "--fission": settings.fission, "--not-counted": settings.not_counted,
        "--dw-policy": settings.dw_policy, "--fresh": settings.fresh,
    }  # fmt: skip
    for name, value in given.items():
        if value:
            raise UsageError(
                f"{name} is for models, and this is a graph file",
                why="it says sizes and costs of its nodes, and nothing else",
                hint="leave it out, or give the model",
            )


def prepared_subject(prepared: Prepared) -> Subject:
    """The problem of a prepared model."""
    return Subject(
        prepared.name, prepared.reduced.problem, prepared.baseline_peak, prepared,
        prepared.settings.fixed_order,
    )  # fmt: skip


def _graph_file(path: Path, fixed_order: bool) -> Subject:
    try:
        problem = read_graph(path)
    except GraphFileError as error:
        raise ModelError("not a graph file", where=str(path), why=str(error)) from error
    top = peak(problem, problem.store_all())
    return Subject(path.name, problem, top, None, fixed_order)
