"""What a training graph's inputs and outputs mean, kept in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx

from onnxremat import plain_json
from onnxremat.errors import ModelError
from onnxremat.grad.exported.restored import Restored

KEY = "onnxremat.training"


@dataclass(frozen=True)
class Variable:
    """A tensor that is kept from step to step.

    Attributes:
        input: name of the graph input with the old value.
        output: name of the graph output with the new one, "" where the step only reads.
        initial: ``model`` when the first value is the model's own, else ``zeros``.
    """

    input: str
    output: str
    initial: str


@dataclass(frozen=True)
class Weight:
    """A floating-point initializer of the model, and what the step does with it.

    Attributes:
        name: in the file, or of the tensor it is trained as.
        label: its name in the framework, where the exporter made another one up.
        shape: dimensions.
        status: ``trained``, ``frozen`` (on request), ``unreached`` (nothing leads from it to the
            loss), or what it is instead of a parameter: ``buffer``, ``statistic``, ``setting``,
            ``constant``.
        why: the reason.
        tied: tensors of the file that are made from it, and further names of the module for it.
        mark: by which its value is known again where it stays as it is and the loss depends on it
            (:func:`onnxremat.grad.exported.frozen.mark`), "" of others.
    """

    name: str
    label: str
    shape: tuple[int, ...]
    status: str
    why: str
    tied: tuple[str, ...] = ()
    mark: str = ""


@dataclass(frozen=True)
class StepSignature:
    """The signature of a training graph.

    Attributes:
        loss: output with the loss, a scalar; "" in an update graph, which has no data either.
        data: inputs of the original model.
        target: input with labels or targets, "" when the model takes them among its own inputs.
        parameters: what is trained, in the order of the model's initializers.
        states: optimizer state, sums of gradients, running statistics, the counter of dropout.
        gradients: output per parameter, for graphs without an optimizer; in an update graph the
            input with the sum.
        rate: learning-rate input, "" where nothing is updated.
        share: input of an update graph that the sums are multiplied with, "" elsewhere.
        accumulate: batches whose gradients are averaged before an update. Above 1 the step only
            adds up; see :func:`onnxremat.grad.update_of`.
        loss_scale: input that multiplies the loss before the backward pass, "" without.
        outputs: outputs of the original model that the step returns too.
        optimizer: its class, for reports; "" for a graph that returns gradients.
        loss_kind, loss_settings: class of the loss and its fields.
        prediction: tensor of the original model that the loss compares with the target.
        classes: labels are below this number, 0 where the target is no class.
        weights: every floating-point initializer of the model, and what became of it.
        warnings: what may not be as the user thinks.
        restored: what was undone of the exporter's work, see :mod:`onnxremat.grad.exported.unfold`.
        unsaid: which of several outputs the loss is of, where nobody said; "" elsewhere.
    """

    loss: str = ""
    data: tuple[str, ...] = ()
    target: str = ""
    parameters: tuple[Variable, ...] = ()
    states: tuple[Variable, ...] = ()
    gradients: tuple[tuple[str, str], ...] = ()
    rate: str = ""
    share: str = ""
    accumulate: int = 1
    loss_scale: str = ""
    outputs: tuple[str, ...] = ()
    optimizer: str = ""
    loss_kind: str = ""
    loss_settings: Mapping[str, Any] = field(default_factory=dict)
    prediction: str = ""
    classes: int = 0
    weights: tuple[Weight, ...] = ()
    warnings: tuple[str, ...] = ()
    restored: tuple[Restored, ...] = ()
    unsaid: str = ""

    @property
    def fed(self) -> tuple[str, ...]:
        """Inputs that a batch has arrays for."""
        return (*self.data, self.target) if self.target else self.data

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Everything that is kept from step to step."""
        return self.parameters + self.states

    @property
    def of_model(self) -> tuple[str, ...]:
        """Inputs that begin with values of the model: parameters and running statistics."""
        return tuple(v.input for v in self.variables if v.initial == "model")

    @property
    def updates(self) -> dict[str, str]:
        """Old to new value of everything that a step writes."""
        return {v.input: v.output for v in self.variables if v.output}

    def facts(self) -> dict[str, Any]:
        """What is reported of it."""
        return {
            "parameters": len(self.parameters or self.gradients),
            "states": len(self.states),
            "loss": self.loss,
            "target": self.target,
            "learning_rate": self.rate,
            "optimizer": self.optimizer,
            "weights": [asdict(weight) for weight in self.weights],
            "warnings": list(self.warnings),
            "restored": [entry.to_dict() for entry in self.restored],
        }

    def to_json(self) -> str:
        """For the metadata of the model."""
        return json.dumps({"version": 1, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> StepSignature:
        """The reverse of :meth:`to_json`.

        Raises:
            ModelError: not such a text, or of a later version.
        """
        try:
            data = plain_json.loads(text)
            if data.pop("version") != 1:
                raise ModelError("the training graph was made by a later onnxremat")
            for key in ("parameters", "states"):
                data[key] = tuple(Variable(**entry) for entry in data[key])
            for key in ("data", "outputs", "warnings"):
                data[key] = tuple(data.get(key, ()))
            data["weights"] = tuple(_weight(entry) for entry in data.get("weights", ()))
            data["restored"] = tuple(Restored.from_dict(e) for e in data.get("restored", ()))
            data["gradients"] = tuple((a, b) for a, b in data["gradients"])
            return cls(**data)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"unreadable training description: {error}") from error


def _weight(data: Mapping[str, Any]) -> Weight:
    shape, tied = tuple(data["shape"]), tuple(data["tied"])
    return Weight(**{**data, "shape": shape, "tied": tied})


def is_step(model: onnx.ModelProto) -> bool:
    """Whether a model is a training graph of ours."""
    return any(entry.key == KEY for entry in model.metadata_props)


def training_of(model: onnx.ModelProto) -> StepSignature:
    """The description in a model's metadata.

    Raises:
        ModelError: the model is no training graph of ours.
    """
    for entry in model.metadata_props:
        if entry.key == KEY:
            return StepSignature.from_json(entry.value)
    raise ModelError(
        "the model is not a training graph",
        why=f"its metadata has no '{KEY}'",
        hint="make one with onnxremat differentiate",
    )


def updated_inputs(model: onnx.ModelProto) -> Mapping[str, str]:
    """Inputs of a training graph to the outputs with their new values; empty of other models."""
    try:
        return training_of(model).updates
    except ModelError:
        return {}
