"""Does a model give the same bits when it runs again?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from onnxremat.graph.ir import Graph
from onnxremat.graph.traits import is_racing, is_random, writes_over_inputs
from onnxremat.ort.profile import Feeds, run_session
from onnxremat.session.compare import Difference, compare

APART = 4  # times the distance of the runs that were compared
RUNS = 4  # threads that race do not lose a sum every time
MOST_RUNS = 256  # until each output that depends on random numbers has been another once
MORE_RUNS = 16  # where outputs that change have few elements: the largest of few draws says little
FEW = 4096  # elements
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Repeats:
    """What several runs on the same inputs gave.

    Attributes:
        output: the first output whose bits changed, "" where none did.
        spread: how far runs were apart, as :class:`Difference` measures it.
        changing: all outputs whose bits changed; None where any of them may.
    """

    output: str
    spread: float
    changing: Collection[str] | None = None

    @property
    def same(self) -> bool:
        """Every run gave the same bits."""
        return not self.output

    def allows(self, found: Difference, *, exact: bool = False) -> bool:
        """A difference to another model that this one's own runs have as well, in outputs that
        change in them. A few runs are seldom those farthest apart (random draws were seen at 2.1
        times the distance of four), so more is allowed; what is wrong is off by far more, or by
        nothing that runs can show.

        Args:
            exact: also of outputs that are near enough to be the same.
        """
        apart = [one for one in found.each or (found,) if not (one.bit_equal if exact else one.ok)]
        if self.changing is not None and not {one.output for one in apart} <= {*self.changing}:
            return False
        return not self.same and all(one.worst <= APART * self.spread for one in apart)


def repeats(session: Any, feeds: Feeds, runs: int = RUNS, drawn: Collection[str] = ()) -> Repeats:
    """Run a session several times on the same inputs, with its own threads.

    Where few numbers change it is run more often, and two runs are as far apart as they are seen
    from either of them: one in which all is dropped but little makes others look large.

    Args:
        drawn: outputs that depend on random numbers. Until each of them has changed it is run on:
            of few elements a Dropout drops all in most runs.

    Raises:
        ModelError: a run fails.
    """
    names = [value.name for value in session.get_outputs()]
    first = dict(zip(names, run_session(session, feeds), strict=True))
    few = sum(map(_elements, first.values())) <= FEW
    seen = [first]
    changing, spread = dict[str, None](), 0.0
    for number in range(1, MOST_RUNS):
        waits = not changing.keys() >= {*drawn}
        if number >= runs and not (few and (waits or (changing and number < MORE_RUNS))):
            break
        again = dict(zip(names, run_session(session, feeds), strict=True))
        new = True
        for before in seen:
            apart = _apart(names, again, before)
            new = new and bool(apart)
            changing.update(dict.fromkeys(apart))
            spread = max([spread, *apart.values()])
        seen += [again] if few and new else []
    return Repeats(next(iter(changing), ""), spread, tuple(changing))


def _elements(value: Any) -> int:
    """Of an array, or of what a sequence or map holds, be it of arrays of different shapes."""
    if isinstance(value, np.ndarray):
        return int(value.size)
    rows = value.values() if isinstance(value, Mapping) else value
    return sum(map(_elements, rows)) if isinstance(rows, Iterable) and not _is_text(rows) else 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str | bytes)


def _apart(names: Sequence[str], one: Arrays, other: Arrays) -> dict[str, float]:
    """How far two runs are apart, seen from either, by the outputs whose bits differ."""
    found: dict[str, float] = {}
    for name in names:
        for a, b in permutations((one, other)):
            difference = compare({name: a[name]}, {name: b[name]})
            if not difference.bit_equal:
                found[name] = max(found.get(name, 0.0), difference.worst)
    return found


def drawn_outputs(graph: Graph) -> tuple[str, ...]:
    """Outputs of a graph that depend on random numbers that its ops draw."""
    found: set[str] = set()
    for op in graph.ops:
        if (is_random(op) and not is_racing(op)) or not found.isdisjoint(op.reads):
            found.update(op.writes)
    return tuple(name for name in graph.outputs if name in found)


def why(graph: Graph) -> str:
    """Operators of a graph that may change its outputs from run to run, and what to do."""
    random = [op for op in graph.ops if is_random(op) and not is_racing(op)]
    racing = [op for op in graph.ops if is_racing(op)]
    words = []
    if over := writing_over(graph):
        words.append(
            f"{_named('BatchNormalization', over)} in training mode writes over the statistics "
            "that it is given, as onnxruntime computes it where nobody reads both new ones, and "
            "over equal weights with them: set training_mode to 0 (export the model in evaluation "
            "mode), or name its outputs 1 and 2 among those of the model"
        )
    if racing:
        words.append(
            f"{_named(racing[0].op_type, [op.name for op in racing])} with a reduction adds to one "
            "place from several threads at once where indices repeat: use ScatterElements, make "
            "the training step again, or run with one thread"
        )
    if random:
        words.append(f"{_named(random[0].op_type, [op.name for op in random])} draws anew each run")
    return "; ".join(words) or "no operator here is known for it; compare runs with one thread"


def writing_over(graph: Graph) -> list[str]:
    """Names of the ops that write over what they are given."""
    read = {name for op in graph.ops for name in op.reads}.union(graph.outputs)
    return [op.name for op in graph.ops if writes_over_inputs(op, read)]


def _named(kind: str, names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{kind} '{names[0]}'{more}"
