"""From an inference model to a training step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import TensorProto as T
from onnx import helper

import onnxremat.grad.rules  # noqa: F401  (registers the rules)
from onnxremat.errors import UnsupportedError, UsageError
from onnxremat.grad.blocked import DOMAIN as BLOCKED
from onnxremat.grad.blocked import with_blocked_convolutions
from onnxremat.grad.constants import Constants
from onnxremat.grad.description import KEY, Training, Variable
from onnxremat.grad.engine import Backward, Walk, dependents
from onnxremat.grad.forward import Statistic, read_forward, train_dropout, train_statistics
from onnxremat.grad.losses import Loss, find_loss
from onnxremat.grad.optimizers import Optimizer, Update, find_optimizer
from onnxremat.grad.ordering import Readers
from onnxremat.grad.parameters import choose_parameters
from onnxremat.grad.portable import without_training_kernels
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.onnx_io import to_model

LOSS, TARGET, RATE = "loss", "labels", "learning_rate"
APPLY, SCALE = "apply_update", "loss_scale"
# Operators whose outputs from the second on may be left out.
OPTIONAL = frozenset(
    {"BatchNormalization", "Dropout", "LayerNormalization", "MaxPool", "SoftmaxCrossEntropyLoss"}
)
IR_VERSION = 10  # the first with metadata of nodes


@dataclass(frozen=True)
class Settings:
    """How a training step is made.

    Attributes:
        loss: name, or a Loss with its own settings; ignored with ``loss_output``.
        prediction: output the loss compares with the target; the first by default.
        loss_output: output of a model that computes its loss itself.
        optimizer: name, or an Optimizer with its own settings; None returns gradients.
        trainable, freeze: patterns of parameter names.
        batch_norm: ``train`` normalises by the batch where a scale or bias is trained, ``frozen``
            uses the running statistics.
        dropout: whether Dropout drops; without, it passes everything.
        clip_norm: largest norm of all gradients together.
        clip_value: largest magnitude of a gradient's elements.
        accumulate: steps whose gradients are averaged before an update; the caller says when.
        loss_scale: take a factor for the loss as an input, for float16.
        outputs: outputs of the model that the step returns as well.
        initializers: keep first values in the file, as initializers that inputs override.
        in_place: order updates after the last reader of the old value.
        variants: rule variant per operator type.
        portable: avoid what only the CPU provider runs (training-mode BatchNormalization).
        blocked: channels per block of this machine's blocked convolutions (``block_size()``), 0
            for a file that runs anywhere; see :mod:`onnxremat.grad.blocked`.
    """

    loss: str | Loss = "cross-entropy"
    prediction: str | None = None
    loss_output: str | None = None
    optimizer: str | Optimizer | None = "sgd"
    trainable: Sequence[str] | None = None
    freeze: Sequence[str] = ()
    batch_norm: str = "train"
    dropout: bool = True
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    loss_scale: bool = False
    outputs: Sequence[str] = ()
    initializers: bool = False
    in_place: bool = True
    variants: Mapping[str, str] | None = None
    portable: bool = False
    blocked: int = 0


def differentiate(
    model: onnx.ModelProto | Graph,
    *,
    folder: str | Path | None = None,
    settings: Settings | None = None,
    **options: object,
) -> onnx.ModelProto:
    """One training step of a model, in standard ONNX operators.

    Inputs are the model's own, the target, parameters, state and the learning rate; outputs the
    loss and every new parameter and state (or, without an optimizer, the gradients). What is what
    is told by ``training_of(result)``.

    Args:
        model: an inference model with all input sizes bound.
        folder: where its external weights lie.
        settings: how; or give the fields of :class:`Settings` as keywords.

    Raises:
        ModelError: the model is not valid, or a size in it is not known.
        UnsupportedError: an operator on the way to a trained parameter has no gradient rule.
        UsageError: an unknown option, name or pattern.
    """
    if settings is None:
        settings = Settings(**options)  # type: ignore[arg-type]
    elif options:
        raise UsageError("give either settings or options")
    source = to_model(model) if isinstance(model, Graph) else model
    return _Builder(source, settings, Path(folder) if folder else None).build()


class _Builder:
    """Collects a training step piece by piece."""

    def __init__(self, model: onnx.ModelProto, settings: Settings, folder: Path | None) -> None:
        self.settings = settings
        if settings.batch_norm not in ("train", "frozen"):
            raise UsageError(
                f"unknown batch_norm '{settings.batch_norm}'", hint="it is train or frozen"
            )
        self.optimizer = find_optimizer(settings.optimizer) if settings.optimizer else None
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        graph = read_forward(model, folder)
        self.parameters = choose_parameters(
            graph, list(self.weights), settings.trainable, settings.freeze
        )
        self.original = graph
        self.statistics: tuple[Statistic, ...] = ()
        norms = self._trained_norms(graph) if settings.batch_norm == "train" else set()
        graph, self.statistics = train_statistics(graph, norms)
        if settings.dropout:
            graph = train_dropout(graph)
        self.graph = graph
        taken = [op.name for op in graph.ops] + list(self.weights)
        self.tape = Tape(graph.tensors, graph.opsets[""], taken)
        self.inputs: list[str] = []
        self.outputs: dict[str, str] = {}  # name in the signature to tensor

    def _trained_norms(self, graph: Graph) -> set[str]:
        trained = set(self.parameters)
        return {
            op.name
            for op in graph.ops
            if op.op_type == "BatchNormalization"
            and op.standard
            and trained.intersection(op.inputs[1:3])
            and all(name in self.weights for name in op.inputs[3:5])
        }

    def build(self) -> onnx.ModelProto:
        """The whole step."""
        seeds = self._loss()
        walked = self._walk(seeds)
        if self.optimizer is None:
            self._gradient_outputs(walked)
        else:
            self._updates(walked)
        for name in self.settings.outputs:
            if name not in self.graph.outputs:
                raise UsageError(f"the model has no output '{name}'")
            self.outputs[name] = name
        return self._assemble(walked)

    # ---- loss ----------------------------------------------------------------------------

    def _loss(self) -> dict[str, str]:
        """Emit the loss; returns the cotangents the walk starts from."""
        t, name = self.tape, self.settings.loss_output
        self.target, self.loss_kind = "", "model"
        if name is not None:
            if name not in self.graph.outputs:
                raise UsageError(
                    f"the model has no output '{name}'",
                    hint="outputs are " + ", ".join(self.graph.outputs),
                )
            if t.size(name) != 1:
                raise UsageError(f"output '{name}' has shape {t.shape(name)}, a loss is a scalar")
            self.outputs[LOSS] = name
            with t.scope("grad/loss", "backward"):
                seed = t.constant([1.0], t.dtype(name))
                return {name: self._scaled(t.reshape(seed, t.shape(name)))}
        loss = find_loss(self.settings.loss)
        self.loss_kind = type(loss).__name__
        prediction = self._prediction(loss)
        dtype, shape = loss.target(t.shape(prediction), t.dtype(prediction))
        self.target = t.declare(t.fresh(TARGET), dtype, shape)
        self.inputs.append(self.target)
        with t.scope("loss", "loss"):
            self.outputs[LOSS] = loss.value(t, prediction, self.target)
        with t.scope("grad/loss", "backward"):
            return {prediction: self._scaled(loss.cotangent(t, prediction, self.target))}

    def _prediction(self, loss: Loss) -> str:
        name = self.settings.prediction or self.graph.outputs[0]
        if name not in self.graph.outputs:
            raise UsageError(
                f"the model has no output '{name}'",
                hint="outputs are " + ", ".join(self.graph.outputs),
            )
        # A final activation belongs to the loss; look for it through reshapes.
        while name in self.graph.producer:
            op = self.graph.ops[self.graph.producer[name]]
            if op.op_type in loss.activations:
                return op.inputs[0]
            if op.op_type not in ("Identity", "Squeeze", "Flatten", "Reshape"):
                break
            if self.tape.shape(op.inputs[0]) != self.tape.shape(name):
                break
            name = op.inputs[0]
        return self.settings.prediction or self.graph.outputs[0]

    def _scaled(self, cotangent: str) -> str:
        if not self.settings.loss_scale:
            return cotangent
        t = self.tape
        self.inputs.append(t.declare(SCALE, T.FLOAT, ()))
        return t.mul(cotangent, t.cast(SCALE, t.dtype(cotangent)))

    # ---- backward ------------------------------------------------------------------------

    def _walk(self, seeds: Mapping[str, str]) -> Backward:
        constant_of = Constants(self.graph, self.parameters)
        walk = Walk(self.graph.ops, self.tape, self.graph.opsets, constant_of, self._variants())
        walked = walk.run(seeds, self.parameters)
        if not walked.gradients:
            reach = dependents(self.graph.ops, self.parameters, self.tape)
            why = "no operator leads from a parameter to the loss"
            if not reach.isdisjoint(seeds):
                why = "the cotangents stop before any parameter"
            raise UnsupportedError("no parameter gets a gradient", why=why)
        self.parameters = tuple(name for name in self.parameters if name in walked.gradients)
        return walked

    def _variants(self) -> dict[str, str]:
        chosen = {"LayerNormalization": "portable"} if self.settings.portable else {}
        if self.settings.blocked:
            chosen["Conv"] = "correlated"
        return {**chosen, **(self.settings.variants or {})}

    def _gradient_outputs(self, walked: Backward) -> None:
        with self.tape.scope("grad/result", "backward"):
            for name in self.parameters:
                self.outputs[f"{name}.grad"] = self._unscaled(walked.gradients[name])

    def _unscaled(self, gradient: str) -> str:
        if not self.settings.loss_scale:
            return gradient
        t = self.tape
        return t.div(gradient, t.cast(SCALE, t.dtype(gradient)))

    # ---- update --------------------------------------------------------------------------

    def _updates(self, walked: Backward) -> None:
        assert self.optimizer is not None
        t = self.tape
        trained = {*self.parameters, *(entry.name for entry in self.statistics)}
        stored = {*self.weights, *(tensor.name for tensor in t.initializers)}
        readers = Readers((*walked.forward, *t.ops), stored - trained)
        self.inputs.append(t.declare(RATE, T.FLOAT, ()))
        up = Update(t, RATE)
        with t.scope("update", "update"):
            if self.settings.accumulate > 1:
                self.inputs.append(t.declare(APPLY, T.BOOL, ()))
            gradients = {n: self._unscaled(walked.gradients[n]) for n in self.parameters}
            gathered = self._gathered(gradients, up)
            gathered = self._clipped(gathered)
            self.optimizer.begin(up)
            made: dict[str, str] = {}
            for name in self.parameters:
                if self.settings.in_place:
                    up.after = readers.late(name, walked.gradients[name])
                made[name] = self.optimizer.update(up, name, gathered[name])
            self._new_values(made, up)
            self._statistics()

    def _gathered(self, gradients: dict[str, str], up: Update) -> dict[str, str]:
        """Gradients averaged over steps; the sums are state, emptied by an update."""
        if self.settings.accumulate <= 1:
            return gradients
        t, part = self.tape, 1.0 / self.settings.accumulate
        self._sums: dict[str, str] = {}
        for name, gradient in gradients.items():
            old = up.state(f"{name}.grad_sum", name)
            total = t.add(old, t.mul(gradient, part))
            self._sums[old] = t.where(APPLY, 0.0, total)
            gradients[name] = total
        return gradients

    def _clipped(self, gradients: dict[str, str]) -> dict[str, str]:
        t, limit = self.tape, self.settings.clip_value
        if limit is not None:
            gradients = {
                name: t.op("Clip", g, t.like(-limit, g), t.like(limit, g), shape=t.shape(g))
                for name, g in gradients.items()
            }
        if self.settings.clip_norm is None:
            return gradients
        squares = [
            t.reduce("SumSquare", t.cast(g, T.FLOAT), range(t.rank(g)))
            if t.rank(g)
            else t.mul(g, g)
            for g in gradients.values()
        ]
        total = squares[0] if len(squares) == 1 else t.op("Sum", *squares)
        norm = t.op("Sqrt", total)
        ratio = t.div(t.like(self.settings.clip_norm, norm), t.add(norm, 1e-6))
        factor = t.op("Min", ratio, 1.0)
        return {n: t.mul(g, t.cast(factor, t.dtype(g))) for n, g in gradients.items()}

    def _new_values(self, made: Mapping[str, str], up: Update) -> None:
        t, gathers = self.tape, self.settings.accumulate > 1
        self.variables: list[Variable] = []
        self.states: list[Variable] = []
        for name, value in made.items():
            self._variable(self.variables, name, t.where(APPLY, value, name) if gathers else value)
        for name, value in up.states.items():
            value = t.where(APPLY, value, name) if gathers else value
            self._variable(self.states, name, value, "zeros")
        if gathers:
            for name, value in self._sums.items():
                self._variable(self.states, name, value, "zeros")

    def _variable(
        self, kind: list[Variable], name: str, value: str, initial: str = "model"
    ) -> None:
        output = f"{name}.next"
        self.inputs.append(name)
        self.outputs[output] = value
        kind.append(Variable(name, output, initial))

    def _statistics(self) -> None:
        """Running statistics move towards those of the batch."""
        t = self.tape
        for entry in self.statistics:
            kept = t.mul(entry.name, entry.keep)
            value = t.add(kept, t.mul(entry.batch, entry.rest))
            self._variable(self.states, entry.name, value)

    # ---- assembly ------------------------------------------------------------------------

    def _assemble(self, walked: Backward) -> onnx.ModelProto:
        if self.optimizer is None:
            self.variables, self.states = [], []
            self.inputs += list(self.parameters)
        ops, outputs = _named(self.tape, (*walked.forward, *self.tape.ops), self.outputs)
        if self.settings.portable:
            ops = without_training_kernels(self.tape, ops)
        if self.settings.blocked:
            ops = with_blocked_convolutions(self.tape, ops, self.settings.blocked)
        ops = _needed(ops, outputs)
        read = {name for op in ops for name in op.reads} | set(outputs)
        data = [n for n in self.graph.inputs if n not in self.weights and n not in self.inputs]
        inputs = [*data, *dict.fromkeys(self.inputs)]
        frame = self._frame(ops, inputs, outputs, read)
        known = {n: self.tape.tensors[n] for n in read | {o for op in ops for o in op.writes}}
        return to_model(Graph(tuple(ops), known, tuple(inputs), tuple(outputs), frame))

    def _frame(
        self, ops: Sequence[Op], inputs: Sequence[str], outputs: Sequence[str], read: set[str]
    ) -> onnx.ModelProto:
        t, source, s = self.tape, self.graph.model, self.settings
        frame = onnx.ModelProto(ir_version=max(IR_VERSION, source.ir_version))
        frame.producer_name = "onnxremat"
        frame.opset_import.extend(source.opset_import)
        if s.blocked:
            frame.opset_import.append(helper.make_opsetid(BLOCKED, 1))
        frame.graph.name = f"{source.graph.name or 'model'}_training"
        for field, names in ((frame.graph.input, inputs), (frame.graph.output, outputs)):
            field.extend(helper.make_tensor_value_info(n, t.dtype(n), t.shape(n)) for n in names)
        trained = set(inputs)
        stored = {tensor.name: tensor for tensor in source.graph.initializer}
        stored.update(self.weights)
        stored.update((tensor.name, tensor) for tensor in t.initializers)
        keep = s.initializers
        frame.graph.initializer.extend(
            tensor
            for name, tensor in stored.items()
            if name in read and (keep or name not in trained)
        )
        if keep:
            self._zero_states(frame)
        entry = frame.metadata_props.add()
        entry.key, entry.value = KEY, self._description(inputs).to_json()
        return frame

    def _zero_states(self, frame: onnx.ModelProto) -> None:
        t = self.tape
        for variable in self.states:
            if variable.initial == "zeros":
                kind = helper.tensor_dtype_to_np_dtype(t.dtype(variable.input))
                zeros = onnx.numpy_helper.np.zeros(t.shape(variable.input), kind)
                frame.graph.initializer.append(onnx.numpy_helper.from_array(zeros, variable.input))

    def _description(self, inputs: Sequence[str]) -> Training:
        s, present = self.settings, set(inputs)
        ours = {*self.inputs}
        gradients = () if self.optimizer else tuple((n, f"{n}.grad") for n in self.parameters)
        return Training(
            loss=LOSS,
            data=tuple(name for name in inputs if name not in ours),
            target=self.target,
            parameters=tuple(self.variables),
            states=tuple(self.states),
            gradients=gradients,
            rate=RATE if self.optimizer else "",
            apply=APPLY if APPLY in present else "",
            accumulate=s.accumulate,
            loss_scale=SCALE if s.loss_scale else "",
            outputs=tuple(s.outputs),
            optimizer=type(self.optimizer).__name__ if self.optimizer else "",
            loss_kind=self.loss_kind,
        )


def _named(t: Tape, ops: Sequence[Op], outputs: Mapping[str, str]) -> tuple[list[Op], list[str]]:
    """Outputs under their names in the signature: the tensor is renamed, or copied by an
    Identity where it has two names or is an input."""
    made = {name for op in ops for name in op.writes}
    renames: dict[str, str] = {}
    copies: list[tuple[str, str]] = []
    for name, tensor in outputs.items():
        t.declare(name, t.dtype(tensor), t.shape(tensor))
        if name == tensor:
            continue
        if tensor in made and tensor not in renames and tensor not in outputs:
            renames[tensor] = name
        else:
            copies.append((name, tensor))
    result = [
        op.renamed(op.name, renames, op.origin) if _touches(op, renames) else op for op in ops
    ]
    for name, tensor in copies:
        source = renames.get(tensor, tensor)
        node = helper.make_node("Identity", [source], [name])
        result.append(Op(t.fresh(f"{name}/Identity"), "Identity", "", (source,), (name,), (), node))
    return result, list(outputs)


def _touches(op: Op, names: Mapping[str, str]) -> bool:
    return any(name in names for name in (*op.inputs, *op.outputs, *op.captures))


def _without_idle_outputs(op: Op, wanted: Collection[str]) -> Op:
    """An output that is named but not read would be held until the end of the run."""
    used = [op.outputs[0], *(name if name in wanted else "" for name in op.outputs[1:])]
    while not used[-1]:
        used.pop()
    return replace(op, outputs=tuple(used))


def _needed(ops: Sequence[Op], outputs: Sequence[str]) -> list[Op]:
    """Ops that an output depends on, without the outputs nobody reads."""
    wanted, kept = set(outputs), []
    for op in reversed(ops):
        if wanted.isdisjoint(op.writes):
            continue
        wanted.update(op.reads)
        kept.append(_without_idle_outputs(op, wanted) if op.op_type in OPTIONAL else op)
    return kept[::-1]
