"""Fewer bytes of weights, where a budget does not hold those that onnxruntime makes of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxremat.cost.table import CostTable
from onnxremat.device.host import memory_bytes
from onnxremat.graph.ir import Graph
from onnxremat.ort.offline import PORTABLE
from onnxremat.ort.weights import held_by
from onnxremat.pipeline.floor import Floor
from onnxremat.planner.reduce import reduce
from onnxremat.rewrite.held_narrow import narrow_weights, narrowed, turned_weights, with_values
from onnxremat.rewrite.held_once import held_once
from onnxremat.schedule.simulate import simulate
from onnxremat.session.gathered import beside_step
from onnxremat.session.process import Beside
from onnxremat.units import format_bytes

if TYPE_CHECKING:
    from onnxremat.pipeline.settings import Settings
    from onnxremat.pipeline.unsplit import Unsplit


@dataclass(frozen=True)
class Lean:
    """What was done to the weights of a graph.

    Attributes:
        before: the graph as it was.
        folder: where external weights of ``graph`` are.
        settings: that say what was done, of :class:`~onnxremat.pipeline.settings.Settings`.
        notes: for people.
    """

    before: Graph
    graph: Graph
    folder: Path | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def then(self, graph: Graph, folder: Path | None, note: str, **settings: Any) -> Lean:
        """The same after another change, that a note tells of with the bytes it spares."""
        spared = format_bytes(held_by(self.graph) - held_by(graph))
        done = {**self.settings, **settings}
        return Lean(self.before, graph, folder, done, (*self.notes, note.format(spared)))


def said_of_inputs(graph: Graph) -> tuple[str, ...]:
    """What onnxruntime says of a planned graph to those who open its file, for people."""
    count = len(graph.optional)
    if not count:
        return ()
    which = "a weight is" if count == 1 else f"{count} weights are"
    return (
        f"onnxruntime warns that {which} among the inputs as it opens the file: that keeps it from "
        "making copies; get_inputs() does not show them, and they need not be given",
    )


def lean_weights(made: Unsplit, settings: Settings) -> Lean:
    """The graph with second copies of weights left out, where the budget of ``settings`` is less
    than it takes as it is; and with weights in half of their width, as many as it takes, where
    weights and results alone are more. For the least memory, all of both."""
    standard = _standard(made)
    lean, limit = Lean(made.graph, made.graph, made.made.folder), _Limit(made, settings)
    if settings.held_once or (settings.held_once is None and limit.asked):
        lean = _once(lean, limit, standard, settings.held_once)
    if settings.narrow == () or not (settings.narrow or limit.asked or settings.held_once):
        return lean
    kinds = narrow_weights(lean.graph, lean.folder)
    if not kinds:
        return lean
    if settings.narrow is None and not limit.asked:
        return _told(lean, kinds)
    if settings.narrow is None and limit.hopeless(lean.graph):
        return _narrow(lean, kinds, limit.needed(lean.graph, kinds), standard)
    return _narrow(lean, kinds, settings.narrow or (), standard)


def _standard(made: Unsplit) -> bool:
    """It has standard operators alone, and is to have no others."""
    return made.made.target in ("none", PORTABLE)


def _once(lean: Lean, limit: _Limit, standard: bool, asked: bool | None) -> Lean:
    """Without second copies, unless only the budget asks and keeps them."""
    once = held_once(lean.graph, lean.folder, standard=standard)
    if once is None or not (asked or not limit.keeps(lean.graph)):
        return lean
    note = "weights that several ops read are there once, with no transposed or packed copy: {} "
    note += "less; products with them may take longer"
    return lean.then(once, lean.folder, note, held_once=True)


def _narrow(lean: Lean, kinds: Mapping[str, int], asked: Sequence[str], standard: bool) -> Lean:
    """With some weights in half of their width."""
    kinds = {name: kind for name, kind in kinds.items() if name in {*asked}}
    if not kinds:
        return lean
    turned = turned_weights(lean.graph, kinds, standard=standard)
    made = narrowed(lean.graph, kinds, turned)
    made, folder = with_values(made, lean.graph, kinds, lean.folder, turned)
    note = f"{_number(kinds)} in half precision until read, which loses nothing: {{}} less; a Cast "
    note += "before each reading takes time, and so do products with what is not packed"
    return lean.then(made, folder, note, narrow=tuple(kinds))


def _told(lean: Lean, kinds: Mapping[str, int]) -> Lean:
    """With a note on what a small budget would do, where many are looked at on one graph."""
    spared = sum(lean.graph.tensors[name].bytes for name in kinds) // 2
    note = f"for a budget below these, optimize keeps up to {_number(kinds)} in half precision "
    note += f"until read, which loses nothing: {format_bytes(spared)} less"
    return replace(lean, notes=(*lean.notes, note))


def narrower(made: Unsplit, settings: Settings) -> Unsplit | None:
    """The same with as many weights in half of their width as let its graph keep the budget as it
    is, all where even these do not; None where nobody asks for one, weights are narrow already, or
    no narrower type holds them.

    Args:
        settings: with what was done to the weights.
    """
    lean, limit = made.lean, _Limit(made, settings)
    if lean is None or not limit.asked or settings.narrow is not None:
        return None
    kinds = narrow_weights(lean.graph, lean.folder)
    found = _narrow(lean, kinds, limit.needed(lean.graph, kinds), _standard(made))
    return None if found is lean else made.leaner(found)


def _number(kinds: Mapping[str, int]) -> str:
    return f"{len(kinds)} weight{'s' * (len(kinds) > 1)}"


class _Limit:
    """What a budget leaves for weights and values.

    Attributes:
        asked: there is one.
    """

    def __init__(self, made: Unsplit, settings: Settings) -> None:
        self._made, self._settings, self.asked = made, settings, settings.budget is not None

    @cached_property
    def _size(self) -> int | None:
        """Bytes, None for the least memory."""
        assert self._settings.budget is not None
        peak = self._made.peak if self._made.came is None else self._made.came
        return self._settings.budget.resolve(device_bytes=memory_bytes(), peak_bytes=peak)

    def keeps(self, graph: Graph) -> bool:
        """The graph as it is does."""
        return self._holds(graph, simulate(graph, weight_bytes=held_by(graph)).peak)

    def hopeless(self, graph: Graph) -> bool:
        """Weights and results alone are more."""
        return not self._holds(graph, Floor.of(graph, held_by(graph), self._beside(graph)).fixed)

    def needed(self, graph: Graph, kinds: Mapping[str, int]) -> list[str]:
        """The fewest of these weights, the first ones, with which the graph keeps it. Where it does
        not even with all, or the least is asked for, all, of which parts make few rows wide at
        once; the last ones where nothing is in parts and a large one takes less that stays wide."""
        names = self._first(graph, kinds)
        if len(names) < len(kinds) or self._in_parts:
            return names
        counts = [0, *(2**k for k in range(len(kinds).bit_length())), len(kinds)]
        return min(
            (names[count:] for count in counts), key=lambda some: self._least(graph, kinds, some)
        )

    @property
    def _in_parts(self) -> bool:
        """Something may be in parts of which each reads some rows of a weight."""
        asked = self._settings.fission, self._settings.split_batch, self._settings.train
        return not self._settings.fixed_order and all(each is None for each in asked)

    def _least(self, graph: Graph, kinds: Mapping[str, int], names: Sequence[str]) -> int:
        """Bytes that no plan of the graph as a whole goes below, with some weights narrow."""
        made = narrowed(graph, {name: kinds[name] for name in names}) if names else graph
        return reduce(made, CostTable({}, {}, "none"), held_by(made)).need.bytes

    def _first(self, graph: Graph, kinds: Mapping[str, int]) -> list[str]:
        """The fewest, from the first on, all where it is not kept."""
        names = list(kinds)
        low, high = 0 if self._size is not None else len(names), len(names)
        while low < high:
            middle = (low + high) // 2
            if self.keeps(narrowed(graph, {name: kinds[name] for name in names[:middle]})):
                high = middle
            else:
                low = middle + 1
        return names[:low]

    def _holds(self, graph: Graph, peak: int) -> bool:
        """Whether it has room for so many bytes of weights and values."""
        budget = self._settings.budget
        if budget is None or self._size is None:
            return False
        return peak + (0 if budget.of_peak else self._beside(graph).total) <= self._size

    def _beside(self, graph: Graph) -> Beside:
        around = beside_step(graph, self._made.original)
        return around.without(self._settings.not_counted)
