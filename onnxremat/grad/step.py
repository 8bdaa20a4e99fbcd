"""From an inference model to a training step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import TensorProto as T
from onnx import helper

import onnxremat.grad.rules  # noqa: F401  (registers the rules)
from onnxremat.errors import TrainingWarning, UsageError
from onnxremat.grad.assembly import IR_VERSION, named, needed, require_free, zeros_of
from onnxremat.grad.constants import Constants
from onnxremat.grad.control.run_sizes import RunSizes, same_for_all
from onnxremat.grad.control.sized_at_run import sized_at_run
from onnxremat.grad.description import KEY, StepSignature, Variable
from onnxremat.grad.dropout import COUNTER, is_dropping, with_counted_masks, without_dropout
from onnxremat.grad.engine import Backward, Walk, dependents
from onnxremat.grad.exported.parameters import (
    choose_parameters,
    in_training,
    take_inventory,
    weights_of,
)
from onnxremat.grad.finished import finished
from onnxremat.grad.forward import read_forward
from onnxremat.grad.labels import without_labels
from onnxremat.grad.losses import find_loss, settings_of
from onnxremat.grad.moving import moved_statistics
from onnxremat.grad.optimizers import find_optimizer
from onnxremat.grad.ordering import Readers
from onnxremat.grad.parted import Parting, ahead, due_back, in_turn, with_loss, with_pieces
from onnxremat.grad.precision import OPSETS, autocast
from onnxremat.grad.prediction import Compared, compared
from onnxremat.grad.roles import mark_gradients, varying
from onnxremat.grad.scaling import EXPONENT, dynamic_scale
from onnxremat.grad.settings import Settings, check_settings, unsaid_prediction
from onnxremat.grad.sharing import require_early_reads
from onnxremat.grad.tape import Tape
from onnxremat.grad.training_mode import Statistic, train_dropout, train_statistics, trained_norms
from onnxremat.grad.update import KEY as UPDATE
from onnxremat.grad.update import RATE, Clip, Gathered, emit_updates, pack, update_graph, wide_of
from onnxremat.grad.variants import least_kept
from onnxremat.grad.warned import nothing_trained, of_bodies, of_statistics, warnings_of
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.weights import check_sizes
from onnxremat.ort import blocks

LOSS, TARGET, SCALE = "loss", "labels", "loss_scale"


def differentiate(
    model: onnx.ModelProto | Graph,
    *,
    folder: str | Path | None = None,
    settings: Settings | None = None,
    parting: Parting | None = None,
    **options: object,
) -> onnx.ModelProto:
    """One training step of a model, in standard ONNX operators.

    Inputs are the model's own, the target, parameters, state and the learning rate; outputs the
    loss and every new parameter and state (or, without an optimizer, the gradients). What is what
    is told by ``training_of(result)``, also what became of each initializer (``weights``).

    Warns:
        TrainingWarning: initializers taken for constants, or without a gradient; batch
            normalizations that cannot be trained; parameters that the exporter may have merged.

    Args:
        model: an inference model with all input sizes bound.
        folder: where its external weights lie.
        settings: how; or give the fields of :class:`Settings` as keywords.
        parting: computes some of the forward pass and its loss in parts.

    Raises:
        ModelError: the model is not valid, or a size in it is not known.
        UnsupportedError: an operator on the way to a trained parameter has no gradient rule.
        UsageError: an unknown option, name or pattern; a warning, with ``strict``.
    """
    if settings is None:
        settings = Settings(**options)  # type: ignore[arg-type]
    elif options:
        raise UsageError("give either settings or options")
    source = to_model(model) if isinstance(model, Graph) else model
    check_sizes(source)
    builders: list[_Builder] = []

    def build(sizes: RunSizes) -> onnx.ModelProto:
        home = Path(folder) if folder else None
        builders.append(_Builder(source, settings, home, parting, sizes))
        return sized_at_run(builders[-1].build(), sizes, builders[-1].weights)

    made, builder = same_for_all(build), builders[0]
    if settings.in_place:
        require_early_reads(made)
    if builder.warnings and settings.strict:
        raise UsageError(
            f"{len(builder.warnings)} things may not be as you think, with --strict an error",
            why="; ".join(builder.warnings),
            hint="say what is trained: --parameters, --trainable, --freeze",
        )
    for text in builder.warnings:
        warnings.warn(text, TrainingWarning, stacklevel=2)
    return made


class _Builder:
    """Collects a training step piece by piece."""

    def __init__(
        self,
        model: onnx.ModelProto,
        settings: Settings,
        folder: Path | None,
        parting: Parting | None,
        sizes: RunSizes,
    ) -> None:
        self.settings, self.parting, self.sizes = settings, parting, sizes
        self.turns: list[str] = []  # ops of a forward pass in parts, with the loss, part by part
        self.due: dict[str, int] | None = None  # when these go back
        check_settings(model, settings)
        self.unsaid = unsaid_prediction(model, settings)
        self.optimizer = find_optimizer(settings.optimizer) if settings.optimizer else None
        trains, precision = self.optimizer is not None, settings.precision
        self.dynamic = dynamic_scale(settings.loss_scale, precision, trains)
        self.stock = take_inventory(model, folder, settings.parameters, settings.tie)
        model = self.stock.model
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        variable = {*self.stock.learned, *(settings.trainable or ())}
        compared = settings.prediction or settings.loss_output or model.graph.output[0].name
        model = without_labels(model, {compared, *settings.outputs})
        graph = read_forward(model, folder, OPSETS[settings.precision], variable, sizes)
        self.chosen = self.parameters = choose_parameters(
            graph, self.stock, settings.trainable, settings.freeze
        )
        self.warnings: tuple[str, ...] = ()
        self.statistics: tuple[Statistic, ...] = ()
        norms, self.resting = self._trained_norms(graph)
        graph, self.statistics = train_statistics(graph, norms)
        graph = train_dropout(graph) if settings.dropout else without_dropout(graph)
        parameters = {*self.parameters, *self.stock.learned}
        self.compared = self._compared(graph)
        graph = self.compared.graph if self.compared else graph
        read = [self.compared.name] if self.compared else []
        self.cast = autocast(graph, settings.precision, self.weights, parameters, read)
        self.graph = self.cast.graph
        self.named = {*self.graph.tensors, *self.weights}
        taken = [op.name for op in self.graph.ops] + list(self.weights)
        self.tape = Tape(self.graph.tensors, graph.opsets[""], taken, settings.blocked)
        self.tape.varies = sizes.varies
        self.inputs: list[str] = []
        self.outputs: dict[str, str] = {}  # name in the signature to tensor
        self.variables: list[Variable] = []
        self.states: list[Variable] = []
        self.update: onnx.ModelProto | None = None

    def _trained_norms(self, graph: Graph) -> tuple[set[str], list[str]]:
        if self.settings.batch_norm != "train":
            return set(), []
        s, stock = self.settings, self.stock
        going = in_training(stock, self.parameters, s.trainable, s.freeze)
        return trained_norms(graph, going, stock.learned, self.weights, stock.resting)

    def _compared(self, graph: Graph) -> Compared | None:
        """What the loss compares; None where the model computes it."""
        if self.settings.loss_output is not None:
            return None
        loss, output = find_loss(self.settings.loss), self.settings.prediction or graph.outputs[0]
        return compared(graph, output, loss)

    def build(self) -> onnx.ModelProto:
        """The whole step."""
        seeds = self._loss()
        if self.parting is not None:
            seeds = self._in_parts(self.parting, seeds)
        walked = self._walk(seeds)
        if self.optimizer is None:
            self._gradient_outputs(walked)
        elif self.settings.accumulate > 1:
            self._sums(walked)
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
        self.loss = LOSS if name == LOSS else t.fresh(LOSS)
        self.target, self.loss_kind, self.prediction, self.classes = "", "model", name or "", 0
        self.loss_settings: dict[str, object] = {}
        if name is not None:
            if name not in self.graph.outputs:
                raise UsageError(
                    f"the model has no output '{name}'",
                    hint="outputs are " + ", ".join(self.graph.outputs),
                )
            if t.size(name) != 1:
                raise UsageError(f"output '{name}' has shape {t.shape(name)}, a loss is a scalar")
            self.outputs[self.loss] = name
            with t.scope("grad/loss", "backward"):
                seed = t.constant([1.0], t.dtype(name))
                return {name: self._scaled(t.reshape(seed, t.shape(name)))}
        assert self.compared is not None
        loss, prediction = self.compared.loss, self.compared.name
        self.prediction = prediction
        self.loss_kind, self.loss_settings = type(loss).__name__, settings_of(loss)
        dtype, shape = loss.target(t.shape(prediction), t.dtype(prediction))
        self.classes = loss.classes(t.shape(prediction))
        self.target = t.declare(t.fresh(TARGET), dtype, shape)
        self.inputs.append(self.target)
        with t.scope("loss", "loss"):
            pair = [t.cast(name, wide_of(t.dtype(name))) for name in (prediction, self.target)]
            self.outputs[self.loss] = loss.value(t, *pair)
        with t.scope("grad/loss", "backward"):
            made = self._scaled(loss.cotangent(t, *pair))
            return {prediction: t.cast(made, t.dtype(prediction))}

    def _scaled(self, cotangent: str) -> str:
        self.scale, t = "", self.tape
        if self.dynamic is not None:
            self.scale = self.dynamic.value(t)
        elif self.settings.loss_scale:
            self.scale = t.declare(SCALE, T.FLOAT, ())
            self.inputs.append(SCALE)
        return t.mul(cotangent, t.cast(self.scale, t.dtype(cotangent))) if self.scale else cotangent

    def _in_parts(self, parting: Parting, seeds: Mapping[str, str]) -> dict[str, str]:
        """Split the forward pass and the loss; returns the cotangents the walk starts from."""
        self.sizes.require_none("the forward pass does not go in parts")
        (prediction, cotangent), t = *seeds.items(), self.tape
        wanted = (*self.settings.outputs, self.outputs[self.loss], prediction, cotangent)
        given = [*self.inputs, EXPONENT] if self.dynamic else self.inputs
        whole = with_loss(self.graph, t, given, self.weights, wanted)
        parted = parting(whole, prediction, cotangent)
        made = parted.graph
        self.turns = [op.name for op in made.ops]
        first = ahead(parted, self.settings.outputs)
        t.learn(made)
        t.ops[:] = [op for op in made.ops if op.name not in first]
        self.roots = parted.pairs.values()
        self.due = due_back([op for op in made.ops if op.name in first], list(parted.pairs))
        forward = tuple(op for op in made.ops if op.name in first)
        self.cast = replace(self.cast, sources=with_pieces(self.cast.sources, made.ops))
        tensors = {**self.graph.tensors, **made.tensors}
        self.graph = replace(self.graph, ops=forward, tensors=tensors, model=made.model)
        return dict(parted.pairs)

    # ---- backward ------------------------------------------------------------------------

    def _walk(self, seeds: Mapping[str, str]) -> Backward:
        walk = self._walker(self.tape, self._chosen(seeds))
        walked = walk.run(seeds, self.parameters)
        data = {*self.graph.inputs}.difference(self.weights, self.parameters)
        layers = varying(self.graph.ops, data) & walk.gradient_of.keys()
        mark_gradients(self.tape.ops, [walk.gradient_of[name] for name in layers])
        if not walked.gradients:
            reach = dependents(self.graph.ops, self.parameters, self.tape)
            raise nothing_trained(self.graph.ops, reach, seeds, self.unsaid)
        self.parameters = tuple(name for name in self.parameters if name in walked.gradients)
        return walked

    def _walker(self, tape: Tape, variant_of: Callable[[Op], str | None]) -> Walk:
        graph, known = self.graph, Constants(self.graph, self.parameters)
        walk = Walk(graph, tape, known, variant_of, self.cast.sources, self.due)
        walk.data = {*graph.inputs}.difference(self.weights)
        return walk

    def _chosen(self, seeds: Mapping[str, str]) -> Callable[[Op], str | None]:
        """The variant of each op's rule: as asked for, else the one that keeps least."""
        asked = self._variants()

        def told(picked: Mapping[str, str]) -> Callable[[Op], str | None]:
            return lambda op: asked.get(op.op_type) or picked.get(op.name)

        def tried(picked: Mapping[str, str]) -> tuple[Walk, Tape, Collection[str]]:
            tape = self.tape.scratch()
            walk = self._walker(tape, told(picked))
            return walk, tape, walk.run(seeds, self.parameters).gradients.values()

        return told(least_kept(self.graph.ops, self.graph.opsets, asked, tried))

    def _variants(self) -> dict[str, str]:
        portable = self.settings.portable
        chosen = dict.fromkeys(("Conv", "LayerNormalization"), "portable") if portable else {}
        if self.settings.blocked:
            chosen["Conv"] = "correlated"
        return {**chosen, **(self.settings.variants or {})}

    def _gradient_outputs(self, walked: Backward) -> None:
        with self.tape.scope("grad/result", "backward"):
            for name in self.parameters:
                made = self._unscaled(walked.gradients[name])
                self.outputs[f"{name}.grad"] = self.tape.cast(made, self.tape.dtype(name))

    def _unscaled(self, gradient: str) -> str:
        t, wide = self.tape, wide_of(self.tape.dtype(gradient))  # float16 may not hold the scale
        return t.div(t.cast(gradient, wide), t.cast(self.scale, wide)) if self.scale else gradient

    # ---- update --------------------------------------------------------------------------

    def _updates(self, walked: Backward) -> None:
        assert self.optimizer is not None
        t = self.tape
        trained = {*self.parameters, *(entry.name for entry in self.statistics)}
        known = (*self.graph.model.graph.initializer, *t.initializers)
        stored = {*self.weights, *(tensor.name for tensor in known)}
        # A product whose transpose was made in its place is left out later: none waits for it.
        read = {name for op in walked.forward for name in op.reads}
        results = {*walked.gradients.values(), *self.outputs.values(), *read}
        readers = Readers((*walked.forward, *needed(t.ops, results)), stored - trained)

        def late(name: str) -> Sequence[str]:
            return readers.late(name, walked.gradients[name]) if self.settings.in_place else ()

        self.inputs.append(t.declare(RATE, T.FLOAT, ()))
        with t.scope("update", "update"):
            gradients = {n: self._unscaled(walked.gradients[n]) for n in self.parameters}
            made, states = emit_updates(
                t, self.optimizer, gradients, self._clip(), late, self.dynamic
            )
            for name, value in made.items():
                self._variable(self.variables, name, value)
            for name, value in states.items():
                self._variable(self.states, name, value, "zeros")
            self._statistics()

    def _clip(self) -> Clip:
        return Clip(self.settings.clip_norm, self.settings.clip_value)

    def _sums(self, walked: Backward) -> None:
        """Gradients added up in place; the update, which empties the sums, is a graph of its own:
        most runs of the step do not update."""
        assert self.optimizer is not None
        t, sums = self.tape, {}
        with t.scope("update", "update"):
            for name in self.parameters:
                gradient = self._unscaled(walked.gradients[name])
                sums[name] = Gathered(f"{name}.grad_sum", t.dtype(name), t.shape(name))
                old = t.declare(sums[name].input, sums[name].kept, t.shape(name))
                total = t.add(old, t.cast(gradient, t.dtype(old)))
                self.inputs.append(name)
                self.variables.append(Variable(name, "", "model"))
                self._variable(self.states, old, total, "zeros")
            self._statistics()
        if self.dynamic is not None:
            self.inputs.append(EXPONENT)
            self.states.append(Variable(EXPONENT, "", "zeros"))
        self.update = update_graph(
            sums, self.optimizer, self._clip(), self.graph.opsets[""], self.dynamic
        )

    def _variable(
        self, kind: list[Variable], name: str, value: str, initial: str = "model"
    ) -> None:
        output = f"{name}.next"
        self.inputs.append(name)
        self.outputs[output] = value
        kind.append(Variable(name, output, initial))

    def _statistics(self) -> None:
        for name, value in moved_statistics(self.tape, self.statistics, self.dynamic).items():
            self._variable(self.states, name, value)

    def _dropped(self, ops: Sequence[Op]) -> Sequence[Op]:
        """Dropouts drawn from a counter that each run raises by one."""
        if not any(is_dropping(op) for op in ops):
            return ops
        t, start = self.tape, len(self.tape.ops)
        with t.scope("dropout", "forward"):
            # All else reads the new value, so that the old one may be overwritten at once.
            count = t.add(t.declare(COUNTER, T.INT64, ()), 1)
        made, t.ops[start:] = t.ops[start:], []
        self._variable(self.states, COUNTER, count, "zeros")
        return made + with_counted_masks(t, ops, Constants(self.graph), count)

    # ---- assembly ------------------------------------------------------------------------

    def _assemble(self, walked: Backward) -> onnx.ModelProto:
        self.inputs += list(self.parameters) if self.optimizer is None else []
        self._look_at_weights(walked)
        every = self._dropped((*walked.forward, *self.tape.ops))
        held = {v.input for v in (*self.variables, *self.states) if v.initial == "model"}
        own = {*self.inputs}.difference(held, self.parameters)
        own |= {v.input for v in self.states if v.initial == "zeros"}
        own |= {*self.outputs}.difference(self.settings.outputs, [self.loss])
        require_free(own, self.named)
        ops, outputs = named(self.tape, every, self.outputs)
        known = Constants(self.graph, self.chosen)
        ops = finished(self.tape, ops, outputs, self.settings, known, {*self.inputs})
        if self.turns:
            ops = in_turn(ops, self.turns, self.roots, self.tape.tensors)
        read = {name for op in ops for name in op.reads} | set(outputs)
        taken = {*self.weights, *self.inputs}
        inputs = [*(n for n in self.graph.inputs if n not in taken), *dict.fromkeys(self.inputs)]
        frame = self._frame(ops, inputs, outputs, read)
        tensors = {n: self.tape.tensors[n] for n in read | {o for op in ops for o in op.writes}}
        made = Graph(tuple(ops), tensors, tuple(inputs), tuple(outputs), frame)
        return to_model(blocks.add_guard(made, self.settings.blocked))

    def _look_at_weights(self, walked: Backward) -> None:
        """Say what became of each initializer."""
        read: set[str] = {self.outputs[self.loss]}
        for op in reversed((*walked.forward, *self.tape.ops)):
            if not read.isdisjoint(op.writes):
                read.update(op.reads)
        named = [n for n in self.settings.trainable or () if n in self.chosen]
        lost = [n for n in named if n not in self.parameters]
        if lost:
            why = "only through operators without a gradient" if lost[0] in read else "not at all"
            raise UsageError(
                f"--trainable '{lost[0]}' cannot be trained",
                why=f"the loss depends on it {why}",
                hint=self.unsaid or "name what leads to the loss by operators that have a gradient",
            )
        kept = {entry.name for entry in self.statistics}
        self.rows = weights_of(self.stock, self.chosen, self.parameters, read, kept)
        asked = self.settings.trainable is not None
        stock = replace(self.stock, regular=()) if asked else self.stock
        found = warnings_of(stock, self.rows, self.resting)
        found += tuple(of_statistics(self.statistics, self.optimizer is not None))
        found += tuple(of_bodies(self.graph.ops, self.parameters, self.settings))
        doubts = [self.compared.doubt] if self.compared and self.compared.doubt else []
        self.warnings = (*found, *doubts, *self.sizes.fixed.values())

    def _frame(
        self, ops: Sequence[Op], inputs: Sequence[str], outputs: Sequence[str], read: set[str]
    ) -> onnx.ModelProto:
        t, source, s = self.tape, self.graph.model, self.settings
        frame = onnx.ModelProto(ir_version=max(IR_VERSION, source.ir_version))
        frame.producer_name = "onnxremat"
        frame.opset_import.extend(source.opset_import)
        if s.blocked:
            frame.opset_import.append(helper.make_opsetid(blocks.DOMAIN, 1))
        frame.graph.name = f"{source.graph.name or 'model'}_training"
        for field, names in ((frame.graph.input, inputs), (frame.graph.output, outputs)):
            field.extend(helper.make_tensor_value_info(n, t.dtype(n), t.shape(n)) for n in names)
        made = (*source.graph.initializer, *self.weights.values(), *t.initializers)
        stored, trained = {tensor.name: tensor for tensor in made}, set(inputs)
        frame.graph.initializer.extend(
            tensor
            for name, tensor in stored.items()
            if name in read and (s.initializers or name not in trained)
        )
        if s.initializers:
            empty = [each.input for each in self.states if each.initial == "zeros"]
            frame.graph.initializer.extend(zeros_of(t, empty))
        frame.metadata_props.add(key=KEY, value=self._description(inputs).to_json())
        if s.blocked:
            frame.metadata_props.add(key=blocks.KEY, value=str(s.blocked))
        if self.update is not None:
            frame.metadata_props.add(key=UPDATE, value=pack(self.update))
        return frame

    def _description(self, inputs: Sequence[str]) -> StepSignature:
        s, ours = self.settings, {*self.inputs}
        gradients = () if self.optimizer else tuple((n, f"{n}.grad") for n in self.parameters)
        return StepSignature(
            loss=self.loss,
            data=tuple(name for name in inputs if name not in ours),
            target=self.target,
            parameters=tuple(self.variables),
            states=tuple(self.states),
            gradients=gradients,
            rate=RATE if self.optimizer and self.update is None else "",
            accumulate=s.accumulate,
            loss_scale=SCALE if s.loss_scale is True else "",
            outputs=tuple(s.outputs),
            optimizer=type(self.optimizer).__name__ if self.optimizer else "",
            loss_kind=self.loss_kind,
            loss_settings=self.loss_settings,
            prediction=self.prediction,
            classes=self.classes,
            weights=self.rows,
            warnings=self.warnings,
            restored=self.stock.restored,
            unsaid=self.unsaid,
        )
