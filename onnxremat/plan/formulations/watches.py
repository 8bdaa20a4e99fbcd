"""Memory rows for second runs inside an interval of the cut relaxation.

A watch (b, k) keeps the limit at the *first* run of op k in interval b. With E2[b, p] = "op p runs
at least twice in interval b" (one more cost_p each) and P[i] = "value i is in memory then",

    base_k E[b, k] + sum_i size_i P[i] <= budget - fixed - kept
    P[i] >= E[b, k] + (literals true) - (number of literals)       one row per certificate

``base_k`` counts inputs, outputs and workspace of k less the largest takeover; ``kept`` the kept
values made before the interval. A certificate is a set of literals that force value i, made by p,
to be in memory at the first run of k. It has a *birth* and a *use*:

    birth   E[b, p] = 0                            the instance is older than the interval, or
            E2[b, p] = 0 and p ~> k                p runs once, before any run of k
    use     X[b + 1, i] = 1                        carried out of the interval, or
            the op that ends the interval reads i, or
            E[b, j] = 1 and k ~> j, j reads i      some run of j comes after the first run of k, or
            k ~> s, j reads i                      s and j first run in the interval, j not before s

``p ~> k`` is a chain of reads p -> .. -> k in which no value is carried into the interval
(X[b, w] = 0 for each): each of them is then made inside the interval before its reader runs, so
every run of k comes after a run of p, whatever the order. Nothing is assumed about the order of
the runs in an interval or their number, so the rows hold for every sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onnxremat.plan.formulations.cuts import ALWAYS, NEVER, SCALE, CutModel, Runs
from onnxremat.plan.formulations.extract import Breach
from onnxremat.plan.problem import Floats
from onnxremat.plan.wiring import Wiring


class Literal(NamedTuple):
    """Variable ``kind`` (``in``, ``out``, ``run``, ``twice``), its value or op, wanted 0 or 1."""

    kind: str
    item: int
    wanted: int


Certificate = frozenset[Literal]


@dataclass(frozen=True)
class _Present:
    """Tells whether a sequence makes every literal of a certificate true."""

    op: int
    certificate: Certificate

    def __call__(self, interval: int, runs: Runs, spanned: list[set[int]]) -> bool:
        def value(literal: Literal) -> bool:
            if literal.kind == "in":
                return literal.item in spanned[interval]
            if literal.kind == "out":
                return interval + 1 < len(spanned) and literal.item in spanned[interval + 1]
            count = runs.get((interval, literal.item), 0)
            return count > (1 if literal.kind == "twice" else 0)

        watched = runs.get((interval, self.op), 0) > 0
        return watched and all(value(x) == bool(x.wanted) for x in self.certificate)


@dataclass
class Watch:
    """A memory row at the first run of ``op`` between cuts ``start`` and ``end`` (ops, or -1).

    One that is not for ``any_order`` holds for sequences whose first runs keep the base order.
    """

    start: int
    end: int
    op: int
    any_order: bool = True
    certificates: dict[int, set[Certificate]] = field(default_factory=dict)  # per value

    @property
    def place(self) -> tuple[int, int, int, bool]:
        """What two watches share that can be one."""
        return self.start, self.end, self.op, self.any_order

    def merge(self, other: Watch) -> bool:
        """Take over the certificates of a watch of the same place; True when some are new."""
        new = False
        for value, certificates in other.certificates.items():
            mine = self.certificates.setdefault(value, set())
            new |= not certificates <= mine
            mine |= certificates
        return new


def add_watches(made: CutModel, watches: Sequence[Watch]) -> None:
    """Append the rows of every watch whose interval exists in the model."""
    bounds = interval_ends(made)
    for watch in watches:
        applies = watch.any_order or not made.spans.any_order
        if applies and (watch.start, watch.end) in bounds:
            _add_watch(made, bounds.index((watch.start, watch.end)), watch)


def interval_ends(made: CutModel) -> list[tuple[int, int]]:
    """(cut before, cut at the end) of each interval, -1 where there is none."""
    cuts = made.spans.cuts
    return list(zip([-1, *cuts], [*cuts, -1], strict=True))


def _add_watch(made: CutModel, interval: int, watch: Watch) -> None:
    wiring, model = made.wiring, made.model
    runs = made.run[interval][watch.op]
    if runs == NEVER:
        return
    size = wiring.size
    present = set(wiring.reads[watch.op]) | set(wiring.writes[watch.op])
    base = wiring.work[watch.op] + sum(size[value] for value in present)
    base -= max((size[value] for value in wiring.inplace[watch.op]), default=0)
    room = made.budget - wiring.problem.fixed
    for value, column in enumerate(made.carry[interval]):
        if column == ALWAYS and value not in present:
            room -= size[value]
    terms: list[tuple[int, float]] = []
    scale = SCALE / max(1, made.budget)
    for value, certificates in watch.certificates.items():
        column = model.column(0.0, 1.0)
        for certificate in certificates:
            _add_certificate(made, interval, watch.op, column, certificate)
        terms.append((column, size[value] * scale))
    if runs == ALWAYS:
        room -= base
    else:
        terms.append((runs, base * scale))
    model.row(terms, upper=room * scale)


def _add_certificate(
    made: CutModel, interval: int, watch_op: int, presence: int, certificate: Certificate
) -> None:
    runs = made.run[interval][watch_op]
    columns, need = [(presence, 1.0)], 0.0
    if runs != ALWAYS:
        columns.append((runs, -1.0))
    else:
        need += 1.0
    for literal in certificate:
        column = column_of(made, interval, literal)
        if column < 0:
            if (column == ALWAYS) != bool(literal.wanted):
                return  # never true in this model
            continue
        if literal.wanted:
            columns.append((column, -1.0))
            need -= 1.0
        else:
            columns.append((column, 1.0))
    made.implied.append((presence, interval, _Present(watch_op, certificate)))
    merged: dict[int, float] = {}
    for column, value in columns:
        merged[column] = merged.get(column, 0.0) + value
    made.model.row(list(merged.items()), lower=need)


def column_of(made: CutModel, interval: int, literal: Literal) -> int:
    """Column of a literal's variable, or NEVER/ALWAYS when it is fixed."""
    if literal.kind == "in":
        return made.carry[interval][literal.item]
    if literal.kind == "out":
        last = interval + 1 >= made.intervals
        return NEVER if last else made.carry[interval + 1][literal.item]
    if literal.kind == "run":
        return made.run[interval][literal.item]
    return _twice(made, interval, literal.item)


def _twice(made: CutModel, interval: int, op: int) -> int:
    """Column of E2: the op runs at least twice in the interval."""
    once = made.run[interval][op]
    if once == NEVER or not made.wiring.recomputable[op]:
        return NEVER
    key = (interval, op)
    if key not in made.twice:
        column = made.model.binary(made.wiring.cost[op] / made.unit)
        made.twice[key] = column
        if once >= 0:
            made.model.row([(once, 1.0), (column, -1.0)], lower=0.0)
    return made.twice[key]


@dataclass
class _Scene:
    """One interval of a sequence read from a point: what ran, what was carried in."""

    wiring: Wiring
    made: CutModel
    point: Floats
    interval: int
    ran: set[int]

    def holds(self, literal: Literal) -> bool:
        column = column_of(self.made, self.interval, literal)
        if column >= len(self.point):
            value = False  # a column added since the solve: not used by the point
        else:
            value = column == ALWAYS or (column >= 0 and self.point[column] > 0.5)
        return value == bool(literal.wanted)

    def earlier(self, op: int) -> dict[int, list[Literal]]:
        """Ops that run before any run of ``op`` here, each with the literals of its chain."""
        chains: dict[int, list[Literal]] = {op: []}
        queue = [op]
        for reader in queue:
            for value in self.wiring.reads[reader]:
                source = self.wiring.producer[value]
                literal = Literal("in", value, 0)
                if source not in chains and source in self.ran and self.holds(literal):
                    chains[source] = [*chains[reader], literal]
                    queue.append(source)
        return chains

    def later(self, op: int) -> dict[int, list[Literal]]:
        """Ops all of whose runs here come after a run of ``op``, with the literals."""
        chains: dict[int, list[Literal]] = {op: []}
        queue = [op]
        for source in queue:
            for value in self.wiring.writes[source]:
                literal = Literal("in", value, 0)
                if not self.holds(literal):
                    continue
                for reader in self.wiring.readers[value]:
                    if reader not in chains and reader in self.ran:
                        chains[reader] = [*chains[source], literal]
                        queue.append(reader)
        return chains


def certify(made: CutModel, point: Floats, breach: Breach) -> tuple[Watch, int]:
    """Certificates for the values in memory at a breach: the first run of its op in an interval.

    Args:
        point: solution of the model that the sequence with the breach was read from.

    Returns:
        The watch, and the bytes it can prove at that step for this point.
    """
    wiring, interval, op = made.wiring, breach.interval, breach.op
    scene = _Scene(wiring, made, point, interval, set(breach.ran))
    start, end = interval_ends(made)[interval]
    watch = Watch(start, end, op, made.spans.any_order)
    earlier, later = scene.earlier(op), scene.later(op)
    follow = _following(made, breach) if breach.stage in later else set[int]()
    size = wiring.size
    proven = wiring.problem.fixed + wiring.work[op]
    proven += sum(size[v] for v in {*wiring.reads[op], *wiring.writes[op]})
    proven -= max((size[v] for v in wiring.inplace[op]), default=0)
    for value in breach.live:
        if made.carry[interval][value] == ALWAYS:
            proven += size[value]
            continue
        birth = _birth(scene, value, earlier)
        use = _use(scene, value, later, end)
        if use is None and not follow.isdisjoint(wiring.readers[value]):
            use = later[breach.stage]
        if birth is not None and use is not None:
            watch.certificates.setdefault(value, set()).add(frozenset([*birth, *use]))
            proven += size[value]
    return watch, proven


def _following(made: CutModel, breach: Breach) -> set[int]:
    """Ops that first run in the interval of a breach, at its stage or later, in every sequence."""
    known = made.run[breach.interval]
    if known[breach.stage] != ALWAYS:
        return set()
    if made.spans.any_order:
        ops: Iterable[int] = {breach.stage} | made.wiring.descendant_ops(breach.stage)
    else:
        ops = range(breach.stage, len(known))
    return {op for op in ops if known[op] == ALWAYS}


def _birth(scene: _Scene, value: int, earlier: dict[int, list[Literal]]) -> list[Literal] | None:
    maker = scene.wiring.producer[value]
    old = Literal("run", maker, 0)
    if scene.holds(old):
        return [old]
    once = Literal("twice", maker, 0)
    if maker in earlier and scene.holds(once):
        return [once, *earlier[maker]]
    return None


def _use(
    scene: _Scene, value: int, later: dict[int, list[Literal]], end: int
) -> list[Literal] | None:
    if end >= 0 and value in scene.wiring.reads[end]:
        return []
    out = Literal("out", value, 1)
    if scene.holds(out):
        return [out]
    for reader in scene.wiring.readers[value]:
        if reader in later and reader in scene.ran:
            return [Literal("run", reader, 1), *later[reader]]
    return None
