"""The one judge: what each device of a split is charged, which rules it breaks, and which released
program would let that pass.

Let D be the nodes of a device. An accelerator is charged the sum of ``acc`` of D, and ``out(u)``
once for every node u whose output crosses the border of D, in either direction, however many
readers and devices there are. A CPU is charged the sum of ``cpu`` of D and no communication. The
*load* is all of it; its parts are charged to the forward or the backward pass by the pass of the
node that computes, or whose output moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from onnxremat.placement.circles import acyclic, ordered
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.splits import Split

DP, IP, LIP, GREEDY = "dp.cpp", "ip.py", "lip.py", "greedy.cpp"


@dataclass(frozen=True)
class Charge:
    """What one device is charged for one sample, pairs are (forward, backward).

    Attributes:
        kind: "accelerator" or "cpu".
        number: among its kind, as the split lists them.
        size: of its nodes, in the graph's ``unit`` of a byte.
    """

    kind: str
    number: int
    nodes: tuple[int, ...]
    compute: tuple[float, float]
    taken: tuple[float, float]
    sent: tuple[float, float]
    size: float

    @property
    def parts(self) -> tuple[float, float]:
        """Time of the forward and of the backward pass."""
        first, second = (
            c + t + s for c, t, s in zip(self.compute, self.taken, self.sent, strict=True)
        )
        return first, second

    @property
    def load(self) -> float:
        """Time it is busy per sample."""
        return sum(self.parts)


@dataclass(frozen=True)
class Finding:
    """A rule that a split breaks.

    Attributes:
        rule: its name.
        text: what breaks it.
        passes: released programs that would let it pass.
        refused: whether it makes the split useless; else it matters only where asked for.
    """

    rule: str
    text: str
    passes: tuple[str, ...]
    refused: bool = True


@dataclass(frozen=True)
class Verdict:
    """Charges and findings of a split.

    Attributes:
        order: devices that hold forward nodes (indices into ``charges``) in an order in which data
            flows; empty where they wait for each other in a circle.
    """

    charges: tuple[Charge, ...]
    findings: tuple[Finding, ...]
    order: tuple[int, ...]

    @cached_property
    def max_load(self) -> float:
        """Largest load: time per sample of a full pipeline."""
        return max((charge.load for charge in self.charges), default=0.0)

    @cached_property
    def two_maxima(self) -> float:
        """Largest forward plus largest backward time: all forwards, then all backwards."""
        parts = [charge.parts for charge in self.charges] or [(0.0, 0.0)]
        return max(part[0] for part in parts) + max(part[1] for part in parts)

    @property
    def bottleneck(self) -> Charge | None:
        """The device with the largest load."""
        return max(self.charges, key=lambda charge: charge.load, default=None)

    def broken(self, contiguous: bool) -> list[Finding]:
        """Findings that matter."""
        return [f for f in self.findings if f.refused or contiguous]

    def breaks(self, rule: str) -> bool:
        """Whether a rule is broken."""
        return any(finding.rule == rule for finding in self.findings)


def judge(graph: PlacementGraph, split: Split) -> Verdict:
    """Charges of every device, and all rules.

    Node by node from the graph's edges; solvers count nets of classes instead
    (:mod:`onnxremat.placement.classes`), and tests compare the two.
    """
    groups = [("accelerator", i, group) for i, group in enumerate(split.accelerators)]
    groups += [("cpu", i, group) for i, group in enumerate(split.cpus)]
    charges = tuple(_charge(graph, kind, i, group) for kind, i, group in groups)
    after = _waits(graph, charges)
    flows = acyclic(after)
    order = [d for d in ordered(after) if charges[d].nodes] if flows else []
    findings = [
        *_places(graph, charges),
        *_counts(graph, charges),
        *_sizes(graph, charges),
        *_supported(graph, charges),
        *_colours(graph, charges),
        *_shape(graph, charges, flows),
    ]
    return Verdict(charges, tuple(findings), tuple(order))


def judge_placement(
    graph: PlacementGraph, where: Sequence[int], order: Sequence[int] = ()
) -> Verdict:
    """The verdict on a device number per node."""
    return judge(graph, Split.of(graph, where, order))


def _charge(graph: PlacementGraph, kind: str, number: int, group: tuple[int, ...]) -> Charge:
    inside = set(group)
    compute, taken, sent = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    times = graph.acc if kind == "accelerator" else graph.cpu
    for v in sorted(inside):
        compute[int(graph.backward[v])] += float(times[v])
    if kind == "accelerator":
        for v in sorted(inside):
            if any(w not in inside for w in graph.readers[v]):
                sent[int(graph.backward[v])] += float(graph.out[v])
        for u in sorted({u for v in inside for u in graph.inputs[v]} - inside):
            taken[int(graph.backward[u])] += float(graph.out[u])
    size = float(sum(float(graph.size[v]) for v in sorted(inside)))
    return Charge(
        kind, number, tuple(sorted(inside)), (compute[0], compute[1]), (taken[0], taken[1]),
        (sent[0], sent[1]), size,
    )  # fmt: skip


def _name(charge: Charge) -> str:
    return f"{charge.kind} {charge.number}"


def _places(graph: PlacementGraph, charges: Sequence[Charge]) -> list[Finding]:
    times = [0] * graph.count
    for charge in charges:
        for v in charge.nodes:
            times[v] += 1
    found = []
    for few, word in ((True, "on no device"), (False, "on two devices")):
        bad = [v for v, count in enumerate(times) if (count < 1 if few else count > 1)]
        if bad:
            names = ", ".join(graph.shown(v) for v in bad[:3]) + (", ..." if bad[3:] else "")
            found.append(
                Finding("one device per node", f"{len(bad)} nodes are {word}: {names}", ())
            )
    return found


def _counts(graph: PlacementGraph, charges: Sequence[Charge]) -> list[Finding]:
    found = []
    for kind, most, passes in (
        ("accelerator", graph.accelerators, (GREEDY,)),
        ("cpu", graph.cpus, (DP, LIP, GREEDY)),
    ):
        used = sum(1 for charge in charges if charge.kind == kind and charge.nodes)
        if used > most:
            text = f"{used} of kind {kind} hold nodes, there are {most}"
            found.append(Finding(f"number of {kind}s", text, passes))
    return found


def _sizes(graph: PlacementGraph, charges: Sequence[Charge]) -> list[Finding]:
    return [
        Finding(
            "memory",
            f"{_name(charge)} holds {charge.size / graph.unit:,.15g} bytes, "
            f"its limit is {graph.memory / graph.unit:,.15g}",
            (DP, GREEDY),
        )
        for charge in charges
        if charge.kind == "accelerator" and charge.size > graph.memory
    ]


def _supported(graph: PlacementGraph, charges: Sequence[Charge]) -> list[Finding]:
    found = []
    for charge in charges:
        bad = [v for v in charge.nodes if not graph.supported[v]]
        if charge.kind == "accelerator" and bad:
            text = f"{_name(charge)} holds {len(bad)} nodes it cannot run: {graph.shown(bad[0])}"
            found.append(Finding("supported", text, (DP, GREEDY)))
    return found


def _colours(graph: PlacementGraph, charges: Sequence[Charge]) -> list[Finding]:
    homes: dict[int, set[int]] = {}
    for d, charge in enumerate(charges):
        for v in charge.nodes:
            homes.setdefault(int(graph.colour[v]), set()).add(d)
    return [
        Finding(
            "colours",
            f"{graph.labels[colour]} is on {', '.join(_name(charges[d]) for d in sorted(home))}",
            (GREEDY,),
        )
        for colour, home in sorted(homes.items())
        if len(home) > 1
    ]


def _waits(graph: PlacementGraph, charges: Sequence[Charge]) -> list[set[int]]:
    """Which devices read what each makes in the forward pass."""
    homes: list[list[int]] = [[] for _ in range(graph.count)]
    for d, charge in enumerate(charges):
        for v in charge.nodes:
            homes[v].append(d)
    after: list[set[int]] = [set() for _ in charges]
    for u, readers in enumerate(graph.readers):
        for v in readers:
            if not graph.backward[u] and not graph.backward[v]:
                for a in homes[u]:
                    after[a].update(b for b in homes[v] if b != a)
    return after


def _shape(graph: PlacementGraph, charges: Sequence[Charge], flows: bool) -> list[Finding]:
    found = []
    for charge in charges:
        back = _returns(graph, set(charge.nodes))
        if back is not None:
            text = f"a path of the forward pass leaves {_name(charge)} and comes back to it at "
            found.append(
                Finding(
                    "contiguous", text + graph.shown(back),
                    ("dp.cpp -expert", "ip.py noncontig", GREEDY), refused=False,
                )
            )  # fmt: skip
    if not flows:
        text = "devices wait for each other in a circle: no order runs each once per sample"
        found.append(Finding("one order of devices", text, ("dp.cpp -expert", IP), refused=False))
    return found


def _returns(graph: PlacementGraph, inside: set[int]) -> int | None:
    """A forward node of the set that is reached from it through one outside, None without."""
    todo = [
        w
        for v in inside
        if not graph.backward[v]
        for w in graph.readers[v]
        if w not in inside and not graph.backward[w]
    ]
    left: set[int] = set()
    while todo:
        v = todo.pop()
        if v in left:
            continue
        if v in inside:
            return v
        left.add(v)
        todo += [w for w in graph.readers[v] if not graph.backward[w]]
    return None
