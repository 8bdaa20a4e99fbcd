"""Optimizers as graph updates: new parameter and new state from gradient and old state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnx import TensorProto as T

from onnxremat.errors import UsageError
from onnxremat.grad.named import by_name
from onnxremat.grad.ordering import gate
from onnxremat.grad.tape import Tape
from onnxremat.limits import at_least, below

STEP = "optimizer.step"


@dataclass
class Update:
    """Where an optimizer finds its inputs and leaves its results.

    Attributes:
        tape: emits the update.
        rate: learning rate, a scalar.
        name: of the parameter at hand, for the names of its state.
        states: old tensor to new tensor, for every state tensor made.
        shared: what :meth:`Optimizer.begin` made for all parameters.
        after: tensors that must be made before the parameter at hand is overwritten.
    """

    tape: Tape
    rate: str
    name: str = ""
    states: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    after: Sequence[str] = ()

    def state(self, name: str, like: str) -> str:
        """A state input of a parameter's type and shape."""
        return self.tape.declare(name, self.tape.dtype(like), self.tape.shape(like))

    def step_size(self, parameter: str, rate: str | None = None) -> str:
        """A rate (the learning rate by default) in a parameter's element type.

        Every new value is made with it last, so it is what waits for ``after``.
        """
        size = self.tape.cast(rate or self.rate, self.tape.dtype(parameter))
        return gate(self.tape, size, self.after)


class Optimizer(ABC):
    """Makes a new parameter from a gradient; all use the definitions of their papers, with the
    constants that are customary in trainers. These, and squares of gradients, are 0 in 16 bits:
    parameters of 16 bits are updated, and their state kept, in float32."""

    @abstractmethod
    def update(self, up: Update, parameter: str, gradient: str) -> str:
        """Emit the update of one parameter and return its new value.

        Args:
            up: has the name of the parameter.
            parameter, gradient: tensors of one type, not of 16 bits.
        """

    @property
    def counts_steps(self) -> bool:
        """Whether it needs the number of the step."""
        return False

    def begin(self, up: Update) -> None:
        """Emit what all parameters share."""
        if not self.counts_steps:
            return
        t = up.tape
        old = t.declare(STEP, T.INT64, ())
        up.states[STEP] = t.add(old, 1)
        # In float64: 1 - 0.999 in float32 is off by 5e-5, and so would be every early step.
        up.shared["step"] = t.cast(up.states[STEP], T.DOUBLE)


@dataclass
class SGD(Optimizer):
    """p' = p - rate (g + decay p), with momentum: b' = momentum b + g, p' = p - rate b'.

    Raises:
        UsageError: a negative number, or ``nesterov`` without momentum.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        at_least(self.momentum, 0, "momentum")
        at_least(self.weight_decay, 0, "weight_decay")
        if self.nesterov and not self.momentum:
            raise UsageError("nesterov without momentum is plain SGD", hint="momentum=0.9, say")

    def update(self, up: Update, parameter: str, gradient: str) -> str:
        t = up.tape
        if self.weight_decay:
            gradient = t.add(gradient, t.mul(parameter, self.weight_decay))
        if self.momentum:
            name = f"{up.name}.momentum"
            old = up.state(name, parameter)
            new = t.add(t.mul(old, self.momentum), gradient)
            up.states[name] = new
            gradient = t.add(gradient, t.mul(new, self.momentum)) if self.nesterov else new
        return t.sub(parameter, t.mul(gradient, up.step_size(parameter)))


@dataclass
class Adam(Optimizer):
    """m' = b1 m + (1 - b1) g, v' = b2 v + (1 - b2) g g, both corrected for their start at 0;
    p' = p - rate m / (sqrt(v) + eps). ``decoupled`` decay shrinks p itself (AdamW).

    Raises:
        UsageError: a negative number, or a beta of 1 or more.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        # At 1 nothing is ever added, and the correction divides by 0.
        for name in ("beta1", "beta2"):
            below(getattr(self, name), 1, name)
        for name in ("epsilon", "weight_decay"):
            at_least(getattr(self, name), 0, name)

    @property
    def counts_steps(self) -> bool:
        return True

    def begin(self, up: Update) -> None:
        super().begin(up)
        t, step = up.tape, up.shared["step"]
        first = t.sub(1.0, t.op("Pow", t.constant(self.beta1, T.DOUBLE), step))
        second = t.sub(1.0, t.op("Pow", t.constant(self.beta2, T.DOUBLE), step))
        rate = t.cast(up.rate, T.DOUBLE)
        up.shared["rate"] = t.div(rate, first)
        up.shared["root"] = t.op("Reciprocal", t.op("Sqrt", second))
        up.shared["first"] = t.op("Reciprocal", first)
        if self.decoupled and self.weight_decay:
            up.shared["keep"] = t.sub(1.0, t.mul(rate, self.weight_decay))

    def moments(self, up: Update, parameter: str, gradient: str) -> tuple[str, str]:
        """New first moment and the denominator sqrt(v corrected) + eps."""
        t = up.tape
        first, second = f"{up.name}.exp_avg", f"{up.name}.exp_avg_sq"
        old_m, old_v = up.state(first, parameter), up.state(second, parameter)
        m = t.add(t.mul(old_m, self.beta1), t.mul(gradient, 1.0 - self.beta1))
        square = t.mul(t.mul(gradient, gradient), 1.0 - self.beta2)
        v = t.add(t.mul(old_v, self.beta2), square)
        up.states[first], up.states[second] = m, v
        root = t.cast(up.shared["root"], t.dtype(parameter))
        return m, t.add(t.mul(t.op("Sqrt", v), root), self.epsilon)

    def update(self, up: Update, parameter: str, gradient: str) -> str:
        t = up.tape
        start = parameter
        if self.weight_decay and not self.decoupled:
            gradient = t.add(gradient, t.mul(parameter, self.weight_decay))
        elif self.weight_decay:
            start = t.mul(parameter, t.cast(up.shared["keep"], t.dtype(parameter)))
        m, denominator = self.moments(up, parameter, gradient)
        rate = up.step_size(parameter, up.shared["rate"])
        return t.sub(start, t.mul(t.div(m, denominator), rate))


@dataclass
class Adagrad(Optimizer):
    """s' = s + g g, p' = p - rate g / (sqrt(s') + eps).

    Raises:
        UsageError: a negative number.
    """

    epsilon: float = 1e-10
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        at_least(self.epsilon, 0, "epsilon")
        at_least(self.weight_decay, 0, "weight_decay")

    def update(self, up: Update, parameter: str, gradient: str) -> str:
        t = up.tape
        if self.weight_decay:
            gradient = t.add(gradient, t.mul(parameter, self.weight_decay))
        name = f"{up.name}.sum"
        new = t.add(up.state(name, parameter), t.mul(gradient, gradient))
        up.states[name] = new
        scaled = t.div(gradient, t.add(t.op("Sqrt", new), self.epsilon))
        return t.sub(parameter, t.mul(scaled, up.step_size(parameter)))


@dataclass
class Lamb(Adam):
    """r = Adam's direction + decay p; p' = p - rate (|p| / |r|) r, the ratio 1 for a norm of 0."""

    epsilon: float = 1e-6
    weight_decay: float = 0.01

    def update(self, up: Update, parameter: str, gradient: str) -> str:
        t, axes = up.tape, range(up.tape.rank(parameter))
        m, denominator = self.moments(up, parameter, gradient)
        corrected = t.mul(m, t.cast(up.shared["first"], t.dtype(parameter)))
        direction = t.div(corrected, denominator)
        if self.weight_decay:
            direction = t.add(direction, t.mul(parameter, self.weight_decay))
        own, other = (t.op("Sqrt", t.sum(t.mul(a, a), axes)) for a in (parameter, direction))
        both = t.op("And", t.compare("Greater", own, 0.0), t.compare("Greater", other, 0.0))
        safe = t.where(t.compare("Greater", other, 0.0), other, 1.0)
        trust = t.where(both, t.div(own, safe), 1.0)
        return t.sub(parameter, t.mul(direction, t.mul(trust, up.step_size(parameter))))


OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": SGD(),
    "momentum": SGD(momentum=0.9),
    "nesterov": SGD(momentum=0.9, nesterov=True),
    "adam": Adam(),
    "adamw": Adam(weight_decay=0.01, decoupled=True),
    "adagrad": Adagrad(),
    "lamb": Lamb(),
}


def find_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """An optimizer by name, with its default settings or those behind the name
    (``adamw:weight_decay=0.1,beta2=0.95``).

    Raises:
        UsageError: unknown name or setting, or a value that is none.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    return by_name(optimizer, OPTIMIZERS, "optimizer")
