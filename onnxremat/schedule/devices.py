"""A plan over several devices, followed step by step: what is where, and who reads it there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph, Op, Role
from onnxremat.schedule.expand import copy_mark
from onnxremat.schedule.plan import Compute, Free, Plan, Step, Transfer


@dataclass(frozen=True, slots=True)
class Ran:
    """An op run on a device, its tensors renamed to the copies it reads and writes.

    Attributes:
        step: position in the plan.
        op: as it stands in the written-out graph.
        device: where it runs.
    """

    step: int
    op: Op
    device: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A value brought from one device to another; it keeps its name."""

    step: int
    value: str
    source: str
    target: str


@dataclass(frozen=True)
class Followed:
    """A plan written out.

    Attributes:
        graph: one op per run in plan order, recomputations with their origin.
        events: runs and moves in plan order.
        final: graph output to the device that holds it at the end.
    """

    graph: Graph
    events: tuple[Ran | Moved, ...]
    final: dict[str, str]

    @property
    def runs(self) -> list[Ran]:
        """The runs among the events."""
        return [event for event in self.events if isinstance(event, Ran)]

    @property
    def device_of(self) -> dict[str, str]:
        """Op of the written-out graph to its device."""
        return {event.op.name: event.device for event in self.runs}


def follow(graph: Graph, plan: Plan) -> Followed:
    """Walk through a plan over devices.

    A run of an op on a device makes its values there; a further run anywhere makes further copies.
    A graph output is made by the first run, and a device that holds it keeps reading that.
    Weights are there on every device; so are graph inputs, unless the plan moves them.

    Raises:
        UsageError: a step reads or moves what is not on that device, names an op the model does
            not have, or an op or output is left out.
    """
    return _Walk(graph).walk(plan)


class _Residency:
    """Which copy of each tensor is on each device."""

    def __init__(self, graph: Graph) -> None:
        self.made, self.kept = graph.producer, set(graph.outputs)
        self.held: dict[str, dict[str, int]] = {}
        self.runs: dict[str, int] = {}

    def run(self, step: int, op: Op, device: str) -> tuple[dict[str, int], dict[str, int], int]:
        """Copies an op reads and writes, and which of its runs this is."""
        held = self.held.setdefault(device, {})
        reads = {}
        for tensor in op.reads:
            if tensor in held:
                reads[tensor] = held[tensor]
            elif tensor in self.made:
                raise UsageError(
                    f"step {step} ({op.name}) reads '{tensor}', which is not on '{device}' then",
                    why="no step made it there or moved it there, or it was freed",
                )
        copy = self.runs.get(op.name, 0)
        self.runs[op.name] = copy + 1
        for tensor in op.writes:
            if not (tensor in self.kept and tensor in held):
                held[tensor] = copy
        return reads, dict.fromkeys(op.writes, copy), copy

    def move(self, step: int, action: Transfer) -> int:
        """The copy that a move brings over."""
        source = self.held.get(action.source, {})
        if action.tensor not in source and action.tensor in self.made:
            raise UsageError(
                f"step {step} moves '{action.tensor}' from '{action.source}', where it is not",
                hint="plan again: the plan does not fit the model",
            )
        copy = source.get(action.tensor, 0)
        self.held.setdefault(action.target, {})[action.tensor] = copy
        return copy

    def free(self, action: Free) -> None:
        """Forget a copy; a later one of the same tensor stays."""
        held = self.held.get(action.device, {})
        if held.get(action.tensor) == action.copy:
            del held[action.tensor]


class _Walk:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.by_name = {op.name: op for op in graph.ops}
        self.there = _Residency(graph)
        self.mark = copy_mark(graph)
        self.tensors = dict(graph.tensors)
        self.events: list[Ran | Moved] = []

    def walk(self, plan: Plan) -> Followed:
        for step, action in enumerate(plan.steps):
            if isinstance(action, Compute):
                self._run(step, action)
            elif isinstance(action, Transfer):
                copy = self.there.move(step, action)
                name = self._named(action.tensor, copy)
                self.events.append(Moved(step, name, action.source, action.target))
            else:
                self.there.free(action)
        never = [name for name in self.by_name if name not in self.there.runs]
        if never:
            raise UsageError(f"the plan never runs op '{never[0]}' ({len(never)} such ops)")
        ops = [event.op for event in self.events if isinstance(event, Ran)]
        graph = self.graph.with_ops(ops, self.tensors)
        return Followed(graph, tuple(self.events), self._final())

    def _run(self, step: int, action: Compute) -> None:
        op = _op(self.by_name, action)
        reads, writes, copy = self.there.run(step, op, action.device)
        pairs = (*reads.items(), *writes.items())
        names = {tensor: self._named(tensor, number) for tensor, number in pairs}
        name, origin = (f"{op.name}{self.mark}{copy}", op.name) if copy else (op.name, "")
        self.events.append(Ran(step, op.renamed(name, names, origin=origin), action.device))

    def _named(self, tensor: str, copy: int) -> str:
        """The name of a copy; the tensor table learns it."""
        if not copy:
            return tensor
        name = f"{tensor}{self.mark}{copy}"
        if name not in self.tensors:
            old = self.graph.tensors[tensor]
            self.tensors[name] = replace(old, name=name, role=Role.ACTIVATION)
        return name

    def _final(self) -> dict[str, str]:
        found = {}
        for tensor in self.graph.outputs:
            if tensor not in self.graph.producer:  # an input handed through
                continue
            homes = [device for device, held in self.there.held.items() if held.get(tensor) == 0]
            if not homes:
                raise UsageError(f"the plan frees output '{tensor}' on every device")
            found[tensor] = homes[0]
        return found


def _op(by_name: dict[str, Op], action: Compute) -> Op:
    if action.op not in by_name:
        raise UsageError(
            f"the plan runs op '{action.op}', which the model does not have",
            hint="plan again: the plan belongs to another model",
        )
    return by_name[action.op]


def settled(graph: Graph, plan: Plan, pairs: Sequence[tuple[str, str]] = ()) -> Plan:
    """The plan with updates in place moved behind the last reader of the value they replace, on
    whatever device, and every value freed right after its last use.

    Args:
        pairs: (input, output) tensors that share a buffer.

    Raises:
        UsageError: the plan does not fit the graph.
    """
    steps: list[Step] = [step for step in plan.steps if not isinstance(step, Free)]
    made = graph.producer
    first: dict[str, set[int]] = {}  # op that updates in place -> steps that have to come before
    for old, new in pairs:
        if new in made:
            update = graph.ops[made[new]].name
            readers = {graph.ops[index].name for index in graph.readers.get(old, ())} - {update}
            first.setdefault(update, set()).update(
                index
                for index, step in enumerate(steps)
                if (isinstance(step, Compute) and step.op in readers)
                or (isinstance(step, Transfer) and step.tensor == old)
            )
    order = _held_back(graph, steps, first)
    return replace(plan, steps=tuple(freed(graph, [steps[index] for index in order])))


def inputs_first(graph: Graph, plan: Plan, most: int) -> Plan:
    """The plan with the caller's inputs of no more than so many bytes brought over before anything
    runs: a move in the middle ends one session and begins another.

    Args:
        plan: settled.
    """
    steps: list[Step] = [step for step in plan.steps if not isinstance(step, Free)]
    small = {name for name in graph.inputs if graph.tensors[name].bytes <= most}
    begin, seen = list[int](), set[tuple[str, str]]()
    for index, step in enumerate(steps):
        if isinstance(step, Transfer) and step.tensor in small:
            if (step.tensor, step.target) not in seen and not step.copy:
                begin.append(index)
            seen.update([(step.tensor, step.target), (step.tensor, step.source)])
    if begin == list(range(len(begin))):
        return plan
    early = set(begin)
    order = [*begin, *(index for index in range(len(steps)) if index not in early)]
    return replace(plan, steps=tuple(freed(graph, [steps[index] for index in order])))


def _held_back(
    graph: Graph, steps: Sequence[Step], first: Mapping[str, Collection[int]]
) -> list[int]:
    """The steps in their order, but each op in ``first`` behind the steps it waits for, and what
    uses its results behind it."""
    by_name = {op.name: op for op in graph.ops}
    done: set[int] = set()
    order: list[int] = []
    late: list[int] = []

    def go(candidates: Sequence[int]) -> list[int]:
        """Emit what can go; the rest, in order."""
        rest: list[int] = []
        missing: set[tuple[str, str]] = set()  # (tensor, device) that held-back steps make
        for index in candidates:
            step = steps[index]
            if isinstance(step, Compute):
                op = _op(by_name, step)
                uses = {(name, step.device) for name in op.reads}
                makes = [(name, step.device) for name in op.writes]
                waits = any(i not in done for i in first.get(step.op, ()) if i != index)
            else:
                assert isinstance(step, Transfer)
                uses, makes = {(step.tensor, step.source)}, [(step.tensor, step.target)]
                waits = False
            if waits or not missing.isdisjoint(uses):
                rest.append(index)
                missing.update(makes)
            else:
                done.add(index)
                order.append(index)
        return rest

    for index in range(len(steps)):
        late = go([*late, index]) if late or _waits(steps[index], first) else late
        if index not in done and index not in late:
            done.add(index)
            order.append(index)
    return order + late


def _waits(step: Step, first: Mapping[str, Collection[int]]) -> bool:
    return isinstance(step, Compute) and step.op in first


def freed(graph: Graph, steps: Sequence[Step]) -> list[Step]:
    """Runs and moves, with a free after the last use of every copy on every device.

    Raises:
        UsageError: the steps do not fit the graph.
    """
    by_name = {op.name: op for op in graph.ops}
    there = _Residency(graph)
    last: dict[tuple[str, int, str], int] = {}  # (tensor, copy, device) -> last step to use it
    home: dict[str, str] = {}  # graph output -> the last device it came to
    for index, step in enumerate(steps):
        if isinstance(step, Compute):
            reads, writes, copy = there.run(index, _op(by_name, step), step.device)
            for tensor, number in (*reads.items(), *writes.items()):
                last[tensor, number, step.device] = index
            if not copy:
                home.update(dict.fromkeys(writes, step.device))
        elif isinstance(step, Transfer):
            copy = there.move(index, step)
            if step.tensor in graph.producer:
                last[step.tensor, copy, step.source] = index
            last[step.tensor, copy, step.target] = index
            if not copy:
                home[step.tensor] = step.target
    outputs = set(graph.outputs)
    dying: dict[int, list[Free]] = {}
    for (tensor, copy, device), index in last.items():
        if not (tensor in outputs and copy == 0 and home.get(tensor) == device):
            dying.setdefault(index, []).append(Free(tensor, copy, device))
    return [item for index, step in enumerate(steps) for item in (step, *dying.get(index, ()))]
