"""If, Scan and Loop: the backward of a body is a body, which computes of it again what it reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad.call import Call
from onnxremat.grad.control.apart import Typed, given_to_loop
from onnxremat.grad.control.bodies import Body, body_of
from onnxremat.grad.registry import Cotangents, vjp


@vjp("If", reads="x*")
def branches(call: Call) -> Cotangents:
    """An If of the same condition; each branch returns the cotangents of all that either reads.

    Raises:
        UnsupportedError: a branch draws random numbers, or something in it has no gradient.
    """
    t, wanted = call.tape, _captured(call)
    bodies = {}
    for part in ("then_branch", "else_branch"):
        body = body_of(call, part, ())
        pairs = zip(body.outputs, call.cotangents, strict=False)
        found = body.gradients({name: d for name, d in pairs if d}, wanted)
        results = [found.get(name) or body.tape.zeros(name) for name in wanted]
        bodies[part] = body.written((), results)
    kinds = [(t.dtype(name), t.shape(name)) for name in wanted]
    made = dict(zip(wanted, t.multi("If", [call.x], kinds, **bodies), strict=True))
    return [None, *(made.get(name) for name in call.op.captures)]


@vjp("Scan", since=9, reads="x* y*")
def scan(call: Call) -> Cotangents:
    """A Scan from the last run to the first, see :class:`_Back`.

    Raises:
        UnsupportedError: the body draws random numbers, or something in it has no gradient.
    """
    t, inputs, body = call.tape, call.op.inputs, _body(call)
    count = call.attribute("num_scan_inputs", 0)
    states, sliced = len(inputs) - count, list[_Sliced]()
    outputs = len(body.output) - states
    axes = call.attribute("scan_input_axes") or [0] * count
    ways = call.attribute("scan_input_directions") or [0] * count
    given = [_typed(call, name) for name in inputs]
    for position, axis, way in zip(range(states, len(inputs)), axes, ways, strict=True):
        kind, shape = given[position]
        axis %= len(shape)
        sliced.append(_Sliced(position, axis, way))
        given[position] = kind, shape[:axis] + shape[axis + 1 :]
    made_axes = call.attribute("scan_output_axes") or [0] * outputs
    made_ways = call.attribute("scan_output_directions") or [0] * outputs
    results = []
    for k, (axis, way) in enumerate(zip(made_axes, made_ways, strict=True), start=states):
        name = call.op.outputs[k] if k < len(call.op.outputs) else ""
        results.append(_Sliced(k, axis % t.rank(name) if name else axis, way))
    length = t.shape(inputs[sliced[0].position])[sliced[0].axis]
    return _Back(call, _Runs(given, 0, 0, states, sliced, results, length)).cotangents()


@vjp("Loop", reads="x* y*")
def loop(call: Call) -> Cotangents:
    """A Loop from the last run to the first, as many as there were, see :class:`_Back`.

    Raises:
        UnsupportedError: a state is no tensor or changes its size, the body draws random numbers,
            or something in it has no gradient.
    """
    body, states = _body(call), len(call.op.inputs) - 2
    try:
        given = given_to_loop(call.op, body, call.tape.tensors)
    except UnsupportedError as error:
        raise call.unsupported(error.what) from error
    results = [_Sliced(k, 0, 0) for k in range(states, len(body.output) - 1)]
    return _Back(call, _Runs(given, 2, 1, states, [], results, None)).cotangents()


@dataclass(frozen=True)
class _Sliced:
    """What a run takes or makes one slice of: the position of the input or output, the axis, and
    1 where slices are taken or laid from the end."""

    position: int
    axis: int
    way: int


@dataclass(frozen=True)
class _Runs:
    """A Scan or Loop, in one form.

    Attributes:
        given: type and shape, or value, of each input of the body: first ``lead`` of the Loop's
            own, then states, then slices.
        lead: how many inputs come before the states, of the body and of the op.
        decided: how many outputs of the body come before the states.
        states: how many there are.
        sliced: inputs of the op of which each run takes a slice.
        results: outputs of the op to which each run adds a slice.
        length: how many runs, None where only a run knows.
    """

    given: list[Typed | np.ndarray] | list[Typed]
    lead: int
    decided: int
    states: int
    sliced: list[_Sliced]
    results: list[_Sliced]
    length: int | None


@dataclass(frozen=True)
class _Emitted:
    """What goes back over all runs.

    Attributes:
        starts: states at first.
        states: what the body calls them.
        results: what it returns.
        sliced: what it takes slices of, and how, by what it calls the slices.
    """

    starts: list[str]
    states: list[str]
    results: list[str]
    sliced: Mapping[str, tuple[str, _Sliced]]


class _Back:
    """The backward of a Scan or Loop: another, from the last run to the first.

    Its states are the cotangents of the states, and the sums so far of the cotangents of what the
    body reads from outside. It takes slices of the cotangents of results, of what the runs took
    slices of and, as far as they are read, of the states before each run, which the forward op is
    made to return; and gives the cotangents of slices. Its body is a run computed again, and the
    way back over it.
    """

    def __init__(self, call: Call, runs: _Runs) -> None:
        self.call, self.runs, self.t = call, runs, call.tape
        self.body: Body = body_of(call, "body", runs.given)
        last = runs.lead + runs.states
        self.before, self.slices = self.body.inputs[runs.lead : last], self.body.inputs[last:]
        last = runs.decided + runs.states
        self.after, self.made = self.body.outputs[runs.decided : last], self.body.outputs[last:]
        for before, after in zip(self.before, self.after, strict=True):
            if self.t.shape(before) != self.t.shape(after):
                raise call.unsupported("a state changes its size from run to run")
        empty = [None] * (runs.states + len(self.made) - len(call.cotangents))
        self.given = [*call.cotangents, *empty]  # of outputs, None where there is none

    def cotangents(self) -> Cotangents:
        """One per input, then one per tensor that the body reads."""
        carried = self._carried()
        taken = [k for k, each in enumerate(self.runs.sliced) if self.call.need(each.position)]
        captured = _captured(self.call)
        seeds = {self.after[k]: self._declared(self.before[k], "carried") for k in carried}
        states = list(seeds.values())
        sliced = dict[str, tuple[str, _Sliced]]()  # by what the body calls them: the whole, how
        for name, each in zip(self.made, self.runs.results, strict=True):
            cotangent = self.given[each.position]
            if cotangent is not None:
                seeds[name] = self._declared(name, "made")
                sliced[seeds[name]] = cotangent, each
        wanted = [*(self.before[k] for k in carried), *(self.slices[k] for k in taken), *captured]
        found = self.body.gradients(seeds, wanted)
        inner = self.body.tape
        results = [found.get(self.before[k]) or inner.zeros(self.before[k]) for k in carried]
        summed = [name for name in captured if name in found]
        sums = [self._declared(name, "sum") for name in summed]
        results += [inner.add(s, found[name]) for s, name in zip(sums, summed, strict=True)]
        taken = [k for k in taken if self.slices[k] in found]
        results += [found[self.slices[k]] for k in taken]
        if not results:
            return self._in_order({}, {}, {})
        sliced.update(self._read(results))
        starts = [self.given[k] or self.t.zeros(self._state(k)) for k in carried]
        starts += [self.t.zeros(name) for name in summed]
        back = _Emitted(starts, [*states, *sums], results, sliced)
        names = iter(self._as_scan(back, taken) if self.runs.length else self._as_loop(back))
        return self._in_order(
            dict(zip(carried, names, strict=False)), dict(zip(summed, names, strict=False)),
            dict(zip(taken, names, strict=False)),
        )  # fmt: skip

    def _carried(self) -> list[int]:
        """States that vary with something wanted and lead to something with a cotangent."""
        call, runs = self.call, self.runs
        sources = {*_captured(call)}
        sources |= {
            n for n, s in zip(self.slices, runs.sliced, strict=True) if call.need(s.position)
        }
        sources |= {n for k, n in enumerate(self.before) if call.need(runs.lead + k)}
        smooth = _over_runs(sources, self.after, self.before, self.body.dependents)
        outputs = [*self.after, *self.made]
        ends = {n for n, cotangent in zip(outputs, self.given, strict=True) if cotangent}
        leading = _over_runs(ends, self.before, self.after, self.body.ancestors)
        return [
            k
            for k, (before, after) in enumerate(zip(self.before, self.after, strict=True))
            if before in smooth and after in leading
        ]

    def _declared(self, like: str, stem: str) -> str:
        t = self.t
        name = t.fresh(f"grad/{self.call.op.name}/{stem}")
        return t.declare(name, t.dtype(like), t.shape(like))

    def _state(self, k: int) -> str:
        return self.call.op.inputs[self.runs.lead + k]

    def _read(self, results: Collection[str]) -> Mapping[str, tuple[str, _Sliced]]:
        """What the body reads of what it is given, each with the whole; at least one."""
        read, runs = self.body.read_by(results), self.runs
        found: dict[str, tuple[str, _Sliced]] = {}
        for name, each in zip(self.slices, runs.sliced, strict=True):
            if name in read or not found:
                found[name] = self.call.op.inputs[each.position], each
        inputs = self.body.inputs[: runs.lead + runs.states]
        kept = [k for k, name in enumerate(inputs) if name in read and k != runs.lead - 1]
        if not found and not kept:
            kept = [0]  # the number of the run
        for k, whole in zip(kept, self._stacked(kept), strict=True):
            found[inputs[k]] = whole, _Sliced(0, 0, 0)
        return found

    def _stacked(self, kept: list[int]) -> list[str]:
        """What the body was given in each run, one run after the other: the forward op returns
        that, too."""
        call, t, node = self.call, self.t, onnx.NodeProto()
        if not kept:
            return []
        node.CopyFrom(call.op.node)
        body = next(each.g for each in node.attribute if each.name == "body")
        wholes = []
        for k in kept:
            name, inner = t.fresh(f"{call.op.name}/before{k}"), self.body.inputs[k]
            kind, shape = t.dtype(inner), t.shape(inner)
            told = [None if t.varies(d) else d for d in shape]
            body.node.add(op_type="Identity", input=[body.input[k].name], output=[name], name=name)
            place = len(body.output) - self.runs.decided
            body.output.append(helper.make_tensor_value_info(name, kind, told))
            whole = None if self.runs.length is None else (self.runs.length, *shape)
            wholes.append(call.extra(place, kind, whole))
        for each in node.attribute:
            if each.name in ("scan_output_axes", "scan_output_directions"):
                each.ints.extend([0] * len(kept))
        call.walk.give_body(call.op, node)
        return wholes

    def _as_scan(self, back: _Emitted, taken: list[int]) -> tuple[str, ...]:
        t, inputs = self.t, [whole for whole, _ in back.sliced.values()]
        kinds = [(t.dtype(name), t.shape(name)) for name in back.starts]
        ends = [self.runs.sliced[k] for k in taken]
        wholes = [self.call.op.inputs[each.position] for each in ends]
        kinds += [(t.dtype(name), t.shape(name)) for name in wholes]
        slices = back.sliced.values()
        return t.multi(
            "Scan", [*back.starts, *inputs], kinds, num_scan_inputs=len(inputs),
            body=self.body.written([*back.states, *back.sliced], back.results),
            scan_input_axes=[each.axis for _, each in slices],
            scan_input_directions=[1 - each.way for _, each in slices],
            scan_output_axes=[each.axis for each in ends] or None,
            scan_output_directions=[1 - each.way for each in ends] or None,
        )  # fmt: skip

    def _as_loop(self, back: _Emitted) -> tuple[str, ...]:
        """A Loop, for onnxruntime's Scan takes no run less than one."""
        t, first = self.t, self.t.inside()
        whole = next(whole for whole, _ in back.sliced.values())
        runs = t.reshape(t.op("Shape", whole, shape=(1,), dtype=T.INT64, start=0, end=1), ())
        last = t.sub(runs, t.constant(1, T.INT64))
        own = [t.fresh(f"grad/{self.call.op.name}/{stem}") for stem in ("run", "goes_on")]
        run, goes_on = t.declare(own[0], T.INT64, ()), t.declare(own[1], T.BOOL, ())
        index = first.sub(last, run)
        for name, (whole, each) in back.sliced.items():
            kind, shape = t.dtype(name), t.shape(name)
            made = first.op("Gather", whole, index, shape=shape, dtype=kind, axis=each.axis)
            first.ops[-1] = first.ops[-1].renamed(first.ops[-1].name, {made: name})
        inputs, outputs = [run, goes_on, *back.states], [goes_on, *back.results]
        body = self.body.written(inputs, outputs, first.ops)
        kinds = [(t.dtype(name), t.shape(name)) for name in back.starts]
        return t.multi("Loop", [runs, t.constant(True, T.BOOL), *back.starts], kinds, body=body)

    def _in_order(
        self, carried: Mapping[int, str], summed: Mapping[str, str], taken: Mapping[int, str]
    ) -> Cotangents:
        """Zeros for what is wanted and does not lead to the loss."""
        call, runs = self.call, self.runs
        found = {runs.lead + k: name for k, name in carried.items()}
        found |= {runs.sliced[k].position: name for k, name in taken.items()}
        first = len(call.op.inputs)
        captures = enumerate(call.op.captures, start=first)
        found |= {k: summed[name] for k, name in captures if name in summed}
        names = enumerate(call.op.operands)
        return [found.get(k) or (self.t.zeros(n) if call.need(k) else None) for k, n in names]


def _over_runs(
    names: set[str], met: Sequence[str], other: Sequence[str], reach: Callable[[set[str]], set[str]]
) -> set[str]:
    """Names and all that they reach from run to run: a state that is met on one side of the body
    is there on the other side of the next."""
    while True:
        reached = reach(names)
        more = {b for a, b in zip(met, other, strict=True) if a in reached} - names
        if not more:
            return reached
        names = names | more


def _captured(call: Call) -> list[str]:
    """What bodies read from outside and a cotangent is wanted of."""
    named = enumerate(call.op.captures, start=len(call.op.inputs))
    return [name for position, name in named if call.need(position)]


def _body(call: Call) -> onnx.GraphProto:
    body: onnx.GraphProto = call.attribute("body")
    return body


def _typed(call: Call, name: str) -> Typed:
    tensor = call.tape.tensors[name]
    if tensor.shape is None or not tensor.dtype:
        raise call.unsupported(f"'{name}' is no tensor of known shape")
    return tensor.dtype, tensor.shape
