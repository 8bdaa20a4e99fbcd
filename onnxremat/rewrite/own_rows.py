"""Rows of a batch of which the rules of operators show that each depends on itself alone.

A run on some inputs shows most of what rows have to do with each other: of a sum over the batch
every row of the result is another one. It does not show what rows decide together and those inputs
do not meet: a largest value of all that is compared with a bound, a norm that is scaled where it is
too large. So only what a rule shows to be of one row each is taken to be.

By induction over the ops: where a rule says what each entry along an axis of a result reads, and
what is read depends on one row, so does the entry. Of a view (Reshape and the like) that follows
from where its elements lie, of a recurrence from its definition; bodies are gone through as graphs
are, and what an op makes of one row alone is of that row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxremat.errors import UnsupportedError
from onnxremat.graph import axis_layouts as layouts
from onnxremat.graph import axis_products as products
from onnxremat.graph import axis_quantised as quantised
from onnxremat.graph.axes import piece_of, row_of
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.spans import CannotSplitError, Span
from onnxremat.graph.traits import ALIAS, SIZES, has_bodies
from onnxremat.rewrite.own_rows_inside import follow_bodies
from onnxremat.rewrite.told import ANY, Lost, Rows, Told, along, few

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
# Rules that refuse an axis because each entry of it is made of others along it.
ALONG = frozenset({
    products.softmax, products.one_axis, products.cumulated, products.normalised,
    products.skip_normalised, products.reduction, products.best_index, layouts.gathered_elements,
    layouts.scattered_elements, quantised.softmax,
})  # fmt: skip
# Positions of inputs that say a shape, or where in one.
SHAPED: dict[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1,), "Reshape": (1,), "Resize": (2, 3),
    "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "Unsqueeze": (1,),
}  # fmt: skip
MOST = 1 << 16  # entries of an axis that are looked at one by one


def require_own_rows(graph: Graph, inputs: Sequence[str], batch: int, *, hint: str) -> None:
    """Of the outputs with the batch as their leading dimension.

    Args:
        inputs: those with the batch as their leading dimension.

    Raises:
        UnsupportedError: it is not shown that each row depends on that row of the inputs alone.
    """
    lost = lost_by(graph, inputs, batch)
    if lost is None:
        return
    may, value = "" if lost.sure else "may ", lost.value
    said = "is of all of them" if lost.sure else "is not shown to be of one each"
    raise UnsupportedError(
        f"rows of the batch {may}depend on each other: '{value}' {said}",
        where=f"made by node {lost.op.name} ({lost.op.op_type})",
        why=lost.why,
        hint=hint,
    )


def lost_by(graph: Graph, inputs: Sequence[str], batch: int) -> Lost | None:
    """Why rows of an output may depend on other ones; None where they do not. Arguments as of
    :func:`require_own_rows`."""
    if batch < 2:
        return None
    every = tuple(range(batch))
    told = Told(graph, {name: Rows(0, every) for name in inputs})
    follow(told)
    for name in graph.outputs:
        rows = told.known(name)
        if rows is None or told.shape(name)[:1] != (batch,):
            continue
        if isinstance(rows, Lost):
            return rows
        if rows.axis == ANY or (rows.axis == 0 and rows.rows != every):
            op = graph.ops[graph.producer[name]]
            return Lost(op, name, "its rows are not in the order of the batch", sure=True)
    return None


def follow(told: Told) -> None:
    """Add what the ops make to what is told."""
    for op in told.graph.ops:
        counted = _counted(op, told)
        if not any(told.depends(name) for name in op.reads):
            told.counts.update(op.writes if counted else ())
            continue
        if op.op_type in SIZES and (op.reads[0] in told.own or _known(told.graph, op.reads[0])):
            told.counts.update(op.writes)
            continue  # what follows from sizes alone is the same for every row
        lost: Rows | Lost | None = next((told.lost[n] for n in op.reads if n in told.lost), None)
        if lost is None and counted:
            lost = Lost(op, op.writes[0], f"it computes with '{counted}', a number of rows perhaps")
        found = lost or told.one_row(op)
        if found is not None:
            for name in op.writes:
                told.note(name, found)
        elif has_bodies(op):
            follow_bodies(op, told, follow)
        else:
            _follow(op, told)


def _counted(op: Op, told: Told) -> str:
    """What an op computes with that follows from the number of rows; "" for nothing. Of sizes that
    are looked up by constants it is that of the rows alone."""
    shaped = SHAPED.get(op.op_type, ()) if op.standard else ()
    found = [n for at, n in enumerate(op.inputs) if n in told.counts and at not in shaped]
    found += [name for name in op.captures if name in told.counts]
    if found and op.standard and op.op_type == "Gather":
        maker = told.graph.producer.get(op.inputs[0])
        places = told.facts.constant(op.inputs[1])
        sized = told.graph.ops[maker] if maker is not None else op
        rows = told.own.get(sized.inputs[0]) if sized.op_type == "Shape" else None
        plain = not sized.node.attribute and rows is not None and rows.axis != ANY
        if plain and rows is not None and places is not None:
            rank = len(told.shape(sized.inputs[0]))
            return found[0] if rows.axis in (places % max(1, rank)).ravel() else ""
    return found[0] if found else ""


def _known(graph: Graph, name: str) -> bool:
    """The size of a value depends on no data."""
    tensor = graph.tensors[name]
    return tensor.shape is not None and not tensor.seen


def _follow(op: Op, told: Told) -> None:
    """What an op makes of values whose entries are of one row each."""
    for number, name in enumerate(op.outputs):
        if not name or (_known(told.graph, name) and not math.prod(told.shape(name))):
            continue  # no elements, so nothing that depends on rows
        found: Rows | Lost
        try:
            found = _rows(op, number, told)
        except _MixedError as error:
            found = Lost(op, name, str(error), sure=True)
        except CannotSplitError as error:
            found = Lost(op, name, str(error))
        told.note(name, found)


class _MixedError(CannotSplitError):
    """Entries are made of several rows; the text says why."""


def _rows(op: Op, number: int, told: Told) -> Rows:
    """On which rows an output of an op depends.

    Raises:
        CannotSplitError: that is not known, or on several; the text says why.
    """
    if op.standard and op.op_type in RECURRENT:
        return _of_recurrence(op, number, told)
    if op.standard and op.op_type in ALIAS:
        return _of_view(op, told)
    row = row_of(op)
    if row is None:
        raise CannotSplitError(f"no rule says what an entry of a result of {op.op_type} reads")
    if told.tensors[op.outputs[number]].shape is None:
        raise CannotSplitError("its size is not known")
    errors: list[CannotSplitError] = [_MixedError("its entries are of several rows")]
    for axis, size in enumerate(told.shape(op.outputs[number])):
        try:
            return _rows_along(op, axis, size, told)
        except CannotSplitError as error:
            errors.append(error)
    sure = row.rule in ALONG or all(isinstance(error, _MixedError) for error in errors)
    raise errors[0] if sure else next(e for e in errors if not isinstance(e, _MixedError))


def _rows_along(op: Op, axis: int, size: int, told: Told) -> Rows:
    """The rows of the entries along an axis of the results.

    Raises:
        CannotSplitError: there is one that depends on several; or it does not say.
    """
    same = set[tuple[int, ...]]()
    for entry in few(size):
        for name, read in _reads(op, Span(axis, entry, entry + 1), told):
            rows = told.own[name]
            _of_one(name, rows, read)
            alike = read == Span(rows.axis, entry, entry + 1) and len(rows.rows) == size
            same.add(rows.rows if alike else ())
    if len(same) == 1 and () not in same:  # each entry reads the one at its place
        return along(axis, *same)
    if size > MOST:
        raise CannotSplitError(f"an axis of {size} entries is more than is looked at")
    made = []
    for entry in range(size):
        reads = _reads(op, Span(axis, entry, entry + 1), told)
        found = {_of_one(name, told.own[name], read) for name, read in reads}
        if len(found) > 1:
            raise _MixedError("an entry of it reads several rows")
        made.append(found.pop() if found else ALONE)
    if ALONE in made:
        raise CannotSplitError("some of its entries are of no row")
    return along(axis, tuple(made))


ALONE = -1  # the row of an entry that depends on none


def _reads(op: Op, span: Span, told: Told) -> list[tuple[str, Span | None]]:
    """What a stretch of the results reads of what depends on rows.

    Raises:
        CannotSplitError: that is not known.
    """
    piece, found = piece_of(op, told.facts, span), []
    for position, (name, read) in enumerate(zip(op.inputs, piece.reads, strict=True)):
        if told.depends(name) and position not in piece.unread:
            if position in piece.constants:
                raise _MixedError(f"its size depends on '{name}', which depends on rows")
            found.append((name, read))
    return found


def _of_one(name: str, rows: Rows, read: Span | None) -> int:
    """The row that a stretch of a value depends on.

    Raises:
        CannotSplitError: it depends on several.
    """
    found = rows.read_by(read)
    if found is None:
        raise _MixedError(f"an entry of it reads several rows of '{name}'")
    return found


def _of_view(op: Op, told: Told) -> Rows:
    """A view moves no element: rows change as many elements apart as before."""
    if any(told.depends(name) for name in op.inputs[1:]):
        raise _MixedError("its size depends on rows")
    before, after = told.shape(op.inputs[0]), told.shape(op.outputs[0])
    rows = told.own[op.inputs[0]]
    step, turn = _turn(math.prod(before[rows.axis + 1 :]), rows.rows)
    for axis, size in enumerate(after):
        inner = math.prod(after[axis + 1 :])
        if step % inner == 0 and inner * size % (step * len(turn)) == 0:
            entries = (turn[entry * inner // step % len(turn)] for entry in range(size))
            return along(axis, tuple(entries))
    raise _MixedError("no axis of it has entries of one row each")


def _turn(step: int, rows: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """After how many elements the row changes, and the rows that come again and again."""
    count = len(rows)
    for many in sorted((n for n in range(2, count + 1) if count % n == 0), reverse=True):
        if all(rows[i] == rows[i - i % many] for i in range(count)):
            step, rows = step * many, rows[::many]
            break
    count = len(rows)
    turn = next(
        n for n in range(1, count + 1) if count % n == 0 and rows[:n] * (count // n) == rows
    )
    return step, rows[:turn]


def _of_recurrence(op: Op, number: int, told: Told) -> Rows:
    """One sequence for each entry of the batch axis of X, of lengths and of states."""
    first = bool(told.facts.call(op).attributes.get("layout", 0))
    state = 0 if first else 1
    axes = {0: state, 4: 0, 5: state, 6: state}
    found = set[tuple[int, ...]]()
    for position, name in enumerate(op.inputs):
        if told.depends(name):
            rows = told.own[name]
            if axes.get(position) != rows.axis:
                raise _MixedError(f"it goes from row to row of '{name}'")
            found.add(rows.rows)
    if len(found) > 1:
        raise _MixedError("its states are of other rows than its sequences")
    return Rows(0 if first else 2 - min(number, 1), found.pop())
