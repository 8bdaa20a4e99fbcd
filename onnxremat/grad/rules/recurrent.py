"""RNN, GRU and LSTM: what their rules share, and the RNN.

Forward stays the one fused op. Backward, what the op did not write is made again for all steps at
once: the hidden state of every step is the op's own output, so the gates are two Gemms over all
rows of all steps. Only what really is a recurrence goes step by step: one Gemm and a few products
of [batch, hidden] tensors. The cotangents of weights, biases and data are again one Gemm each
over all steps (Appleyard et al. 2016, "Optimizing Performance of Recurrent Neural Networks on
GPUs", section 3.2).

Rows: a tensor over all steps is a matrix [steps * batch, width], ordered by time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.tape import Tape

# Activation to (number of parameters taken from activation_alpha, activation_beta).
ACTIVATIONS = {"Sigmoid": (0, 0), "Tanh": (0, 0), "Relu": (0, 0), "HardSigmoid": (1, 1)}


@dataclass(frozen=True)
class Activation:
    """A function of a gate, with its slope as a function of its value."""

    name: str
    alpha: float
    beta: float

    def __call__(self, t: Tape, a: str) -> str:
        if self.name == "HardSigmoid":
            return t.op("HardSigmoid", a, alpha=self.alpha, beta=self.beta)
        return t.op(self.name, a)

    def slope(self, t: Tape, y: str) -> str:
        """Its derivative where it has the value ``y``."""
        if self.name == "Sigmoid":
            return t.mul(y, t.sub(1.0, y))
        if self.name == "Tanh":
            return t.sub(1.0, t.mul(y, y))
        inside = t.compare("Greater", y, 0.0)
        if self.name == "Relu":
            return t.cast(inside, t.dtype(y))
        inside = t.op("And", inside, t.compare("Less", y, 1.0))
        return t.mul(t.cast(inside, t.dtype(y)), self.alpha)


def activations_of(call: Call, defaults: list[str], directions: int) -> list[Activation]:
    """The activations of all gates of all directions.

    Raises:
        UnsupportedError: one without a slope here.
    """
    names = call.attribute("activations") or defaults * directions
    alphas = list(call.attribute("activation_alpha") or ())
    betas = list(call.attribute("activation_beta") or ())
    known = {name.lower(): name for name in ACTIVATIONS}
    found = []
    for name in (n.decode() if isinstance(n, bytes) else n for n in names):
        if name.lower() not in known:
            raise call.unsupported(
                f"its attribute 'activations' has {name}, of which the slope is not known here"
            )
        takes = ACTIVATIONS[known[name.lower()]]
        alpha = alphas.pop(0) if takes[0] and alphas else 0.2
        beta = betas.pop(0) if takes[1] and betas else 0.5
        found.append(Activation(known[name.lower()], float(alpha), float(beta)))
    return found


def refuse_settings(call: Call, *names: str) -> None:
    """Raises:
    UnsupportedError: an attribute that changes what the op computes in a way unknown here.
    """
    for name in names:
        if call.attribute(name):
            raise call.unsupported(
                f"its attribute '{name}' = {call.attribute(name)} is not differentiated"
            )


class Direction:
    """One direction of a recurrent node, as matrices.

    Args:
        call: the node.
        index: which direction.
        reverse: whether it runs from the last step to the first.
        activations: of its gates.
    """

    def __init__(
        self, call: Call, index: int, reverse: bool, activations: list[Activation]
    ) -> None:
        self.call, self.t, self.index, self.reverse = call, call.tape, index, reverse
        self.activations = activations
        self.steps, self.batch, self.width = call.shape(0)
        self.directions, self.rows, self.hidden = call.shape(2)  # rows: gates * hidden
        self.all = self.steps * self.batch

    # ---- what enters ---------------------------------------------------------------------

    def part(self, name: str, axis: int, rows: int) -> str:
        """This direction's part of a tensor, as a matrix of so many rows."""
        t = self.t
        mine = t.slice(name, [axis], [self.index], [self.index + 1])
        return t.reshape(mine, (rows, t.size(mine) // rows))

    @cached_property
    def x(self) -> str:
        """Data, [steps * batch, width]."""
        return self.t.reshape(self.call.x, (self.all, self.width))

    @cached_property
    def w(self) -> str:
        """Weights of the data, [gates * hidden, width]."""
        return self.part(self.call.op.inputs[1], 0, self.rows)

    @cached_property
    def r(self) -> str:
        """Weights of the hidden state, [gates * hidden, hidden]."""
        return self.part(self.call.op.inputs[2], 0, self.rows)

    @cached_property
    def biases(self) -> tuple[str, str] | None:
        """Biases of both, [1, gates * hidden] each."""
        if self.call.input(3) is None:
            return None
        both = self.part(self.call.op.inputs[3], 0, 2)
        return self.t.slice(both, [0], [0], [1]), self.t.slice(both, [0], [1], [2])

    def first(self, position: int) -> str:
        """A state before the first step, [batch, hidden]; zeros when the node has none."""
        if self.call.input(position) is None:
            return self.t.filled(0.0, (self.batch, self.hidden), self.t.dtype(self.call.x))
        return self.part(self.call.op.inputs[position], 0, self.batch)

    @cached_property
    def y(self) -> str:
        """The hidden state after every step, [steps * batch, hidden]."""
        shape = (self.steps, self.directions, self.batch, self.hidden)
        return self.part(self.call.extra(0, self.t.dtype(self.call.x), shape), 1, self.all)

    @cached_property
    def valid(self) -> str | None:
        """1 for steps within the length of their sequence, else 0, [steps * batch, 1]; None when
        all are."""
        name, t = self.call.input(4), self.t
        if name is None:
            return None
        known = self.call.optional_value(4)
        if known is not None and (known == self.steps).all():
            return None
        times = t.constant(np.arange(self.steps).reshape(-1, 1), T.INT64)
        lengths = t.reshape(t.cast(name, T.INT64), (1, self.batch))
        hit = t.cast(t.compare("Less", times, lengths), t.dtype(self.call.x))
        return t.reshape(hit, (self.all, 1))

    def shifted(self, rows: str, first: str) -> str:
        """A state before every step, from the state after every step and before all."""
        t, n = self.t, self.batch
        if not self.reverse:
            return t.concat([first, t.slice(rows, [0], [0], [self.all - n])], 0)
        moved = t.concat([t.slice(rows, [0], [n], [self.all]), first], 0)
        if self.valid is None:
            return moved
        # A sequence that is shorter starts at its own last step.
        after = t.pad(t.slice(self.valid, [0], [n], [self.all]), [0, 0], [n, 0])
        starts = t.sub(self.valid, after)
        repeated = t.concat([first] * self.steps, 0)
        return t.where(t.compare("Greater", starts, 0.5), repeated, moved)

    @cached_property
    def before(self) -> str:
        """The hidden state before every step, [steps * batch, hidden]."""
        return self.shifted(self.y, self.first(5))

    def masked(self, rows: str) -> str:
        """Rows with 0 where the sequence is over."""
        return rows if self.valid is None else self.t.mul(rows, self.valid)

    def passing(self, rows: str) -> str:
        """Rows with 1 where the sequence is over: the state goes through unchanged."""
        if self.valid is None:
            return rows
        return self.t.add(self.masked(rows), self.t.sub(1.0, self.valid))

    # ---- products ------------------------------------------------------------------------

    def gemm(self, a: str, b: str, c: str | None) -> str:
        """a @ b.T + c."""
        shape = (self.t.shape(a)[0], self.t.shape(b)[0])
        return self.t.op("Gemm", *([a, b] if c is None else [a, b, c]), shape=shape, transB=1)

    def from_data(self, bias: bool = True) -> str:
        """What the data adds to every gate, [steps * batch, gates * hidden]."""
        return self.gemm(self.x, self.w, self.biases[0] if self.biases and bias else None)

    def from_state(self, added: str | None = None) -> str:
        """What the hidden state before adds to every gate, and ``added``."""
        made = self.gemm(self.before, self.r, added)
        return self.t.add(made, self.biases[1]) if self.biases else made

    def columns(self, rows: str, start: int, end: int) -> str:
        """Gates ``start`` to ``end`` of a matrix of gates."""
        return self.t.slice(rows, [1], [start * self.hidden], [end * self.hidden])

    # ---- steps ---------------------------------------------------------------------------

    @property
    def forward(self) -> range:
        """Times in the order in which the node runs them."""
        return range(self.steps)[:: -1 if self.reverse else 1]

    @property
    def backward(self) -> range:
        """Times from the last that the node runs to the first."""
        return self.forward[::-1]

    def by_step(self, rows: str) -> tuple[str, ...]:
        """A matrix cut into one of [batch, width] per time."""
        if self.steps == 1:
            return (rows,)
        piece = (self.t.dtype(rows), (self.batch, self.t.shape(rows)[1]))
        return self.t.multi("Split", [rows], [piece] * self.steps, axis=0, num_outputs=self.steps)

    def whole(self, made: dict[int, str]) -> str:
        """The reverse of :meth:`by_step`."""
        return self.t.concat([made[time] for time in range(self.steps)], 0)

    def cotangents_of_y(self) -> tuple[str, ...] | None:
        """Cotangent of the hidden state after every step, as an output."""
        cotangent = self.call.cotangents[0]
        if cotangent is None:
            return None
        return self.by_step(self.masked(self.part(cotangent, 1, self.all)))

    def cotangent_of_last(self, output: int) -> str | None:
        """Cotangent of a state after the last step, [batch, hidden]; 0 for sequences without any
        step, where onnxruntime gives zeros and not the state before."""
        cotangents = self.call.cotangents
        cotangent = cotangents[output] if output < len(cotangents) else None
        if cotangent is None:
            return None
        mine = self.part(cotangent, 0, self.batch)
        if self.valid is None:
            return mine
        return self.t.mul(mine, self.t.slice(self.valid, [0], [0], [self.batch]))

    def added(self, a: str | None, b: str | None) -> str | None:
        """a + b, either of which may be missing."""
        if a is None or b is None:
            return b if a is None else a
        return self.t.add(a, b)

    # ---- what leaves ---------------------------------------------------------------------

    def weight(self, gates: str, rows: str) -> str:
        """Cotangent of weights that met ``rows`` in gates whose cotangents are given."""
        return self.t.gemm(gates, rows, ta=True)

    def bias(self, data: str, state: str) -> str:
        """Cotangent of both biases, [1, 2 * gates * hidden]."""
        one = self.t.sum(data, [0])
        two = one if state == data else self.t.sum(state, [0])
        return self.t.reshape(self.t.concat([one, two], 0), (1, 2 * self.rows))


def per_direction(
    call: Call, gates: int, defaults: list[str], rule: Callable[[Direction], dict[int, str]]
) -> Cotangents:
    """Cotangents of all inputs; ``rule`` gives those of one direction by position, as matrices.

    Raises:
        UnsupportedError: a setting that is not differentiated.
    """
    refuse_settings(call, "clip", "layout")
    _, rows, columns = call.shape(2)
    states = [k for k in (5, 6) if k < len(call.op.inputs) and call.input(k) is not None]
    if rows != gates * columns or any(call.shape(k)[-1] != columns for k in states):
        raise call.unsupported(
            "its hidden state is projected (proj_size), which ONNX does not have"
        )
    t, kind = call.tape, call.attribute("direction", "forward")
    reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[kind]
    functions = activations_of(call, defaults, len(reverse))
    each = len(defaults)
    parts = [
        rule(Direction(call, k, back, functions[each * k : each * (k + 1)]))
        for k, back in enumerate(reverse)
    ]
    result: list[str | None] = [None] * len(call.op.inputs)
    for position in range(len(call.op.inputs)):
        made = [part[position] for part in parts if position in part]
        if not made or not call.need(position):
            continue
        if position == 0:
            total = made[0] if len(made) == 1 else t.add(*made)
            result[0] = t.reshape(total, call.shape())
            continue
        shape = call.shape(position)
        result[position] = t.concat([t.reshape(one, (1, *shape[1:])) for one in made], 0)
    return result


@vjp("RNN", since=7, reads="x0 x1 x2 x3 x4 x5 y0")
def rnn(call: Call) -> Cotangents:
    """h' = f(W x + R h + b). da = f'(h') dh' with f' from h' itself, dh = da R; dW, dR, db and dx
    over all steps at once.

    Raises:
        UnsupportedError: clipping, or an activation without a slope here.
    """
    return per_direction(call, 1, ["Tanh"], _rnn)


def _rnn(d: Direction) -> dict[int, str]:
    t = d.t
    slopes = d.by_step(d.masked(d.activations[0].slope(t, d.y)))
    over = None if d.valid is None else d.by_step(t.sub(1.0, d.valid))
    outputs, dh = d.cotangents_of_y(), d.cotangent_of_last(1)
    gates: dict[int, str] = {}
    for time in d.backward:
        dh = d.added(dh, outputs[time] if outputs else None)
        assert dh is not None
        gates[time] = t.mul(dh, slopes[time])
        passed = None if over is None else t.mul(dh, over[time])
        dh = d.added(t.gemm(gates[time], d.r), passed)
    da = d.whole(gates)
    assert dh is not None
    return {
        0: t.gemm(da, d.w), 1: d.weight(da, d.x), 2: d.weight(da, d.before), 3: d.bias(da, da),
        5: dh,
    }  # fmt: skip
