"""A training step that updates by itself, cut in two: one that adds up gradients, and its update.

Between the two the sums are there for others to add theirs. The result is what ``differentiate``
makes for steps that accumulate, so a trainer takes it as one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx
from onnx import TensorProto as T
from onnx import helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad.description import KEY, StepSignature, Variable, training_of
from onnxremat.grad.roles import roles_of
from onnxremat.grad.update import KEY as UPDATE
from onnxremat.grad.update import SHARE, Gathered, pack, update_of
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_ops

FLOATS = frozenset({T.FLOAT, T.DOUBLE, T.FLOAT16, T.BFLOAT16})


def gathering(model: onnx.ModelProto, each: bool = False) -> onnx.ModelProto:
    """The step as one that gathers; a step that does already comes back as it is.

    What the update reads of the rest of the step (gradients, statistics of a batch) is added to
    sums in place; the update, in the step's metadata, takes the sums times ``gradient_share``.

    Args:
        each: running statistics move with every batch, as in steps that ``differentiate`` makes for
            several per update; else once, with the mean of all batches.

    Raises:
        UnsupportedError: a planned step, or an update that reads something else than numbers.
    """
    if update_of(model) is not None:
        return model
    if any(entry.key == "onnxremat.plan" for entry in model.metadata_props):
        raise UnsupportedError(
            "a planned step that updates by itself cannot be shared by several processes",
            why="its plan holds for the step in one piece",
            hint="make it with: onnxremat differentiate --accumulate 2, optimize, and train with "
            "--accumulate 1",
        )
    return _Cut(model, each).made()


def _moving(graph: Graph, roles: Mapping[str, str], about: StepSignature) -> frozenset[str]:
    """Ops of the update that move statistics: made of the forward pass, and of no gradient."""
    found = set[str]()
    for state in about.states:
        waiting, cone = [state.output] if state.output else [], dict[str, str]()
        while waiting:
            at = graph.producer.get(waiting.pop())
            if at is not None and graph.ops[at].name not in cone:
                op = graph.ops[at]
                cone[op.name] = roles[op.name]
                if roles[op.name] == "update":
                    waiting += op.reads
        kinds = set(cone.values())
        if kinds == {"update", "forward"}:
            found.update(name for name, role in cone.items() if role == "update")
    return frozenset(found)


class _Cut:
    """The two halves of a step."""

    def __init__(self, model: onnx.ModelProto, each: bool) -> None:
        self.model, self.about = model, training_of(model)
        graph = Graph(to_ops(model), {}, (), (), model)
        roles, self.late = roles_of(graph), set[str]()
        early = _moving(graph, roles, self.about) if each else frozenset[str]()
        for op in graph.ops:  # what reads from the update belongs to it
            if op.name in early:
                continue
            read = {graph.ops[graph.producer[n]].name for n in op.reads if n in graph.producer}
            if roles[op.name] == "update" or not self.late.isdisjoint(read):
                self.late.add(op.name)
        self.makers = {name: op.name for op in graph.ops for name in op.writes}
        self.graph = graph
        infos = (*model.graph.value_info, *model.graph.output, *model.graph.input)
        self.infos = {info.name: info for info in infos}

    def made(self) -> onnx.ModelProto:
        """The step that gathers, its update inside."""
        sums = {name: self._sum(name) for name in self._crossing()}
        update = self._update(sums)
        about, written = self.about, {v.output for v in self.about.variables if self._is_late(v)}
        nodes, states = [], list[Variable]()
        for op in self.graph.ops:
            if op.name not in self.late:
                nodes.append(op.node)
        outputs = [o for o in self.model.graph.output if o.name not in written]
        inputs: list[onnx.ValueInfoProto] = []
        for name, each in sums.items():
            nodes += self._added(name, each)
            inputs.append(helper.make_tensor_value_info(each.input, each.kept, each.shape))
            outputs.append(
                helper.make_tensor_value_info(f"{each.input}.next", each.kept, each.shape)
            )
            states.append(Variable(each.input, f"{each.input}.next", "zeros"))
        read = {name for node in nodes for name in node.input}
        mine = [v for v in about.states if not self._is_late(v)]
        mine += [
            replace(v, output="") for v in about.states if self._is_late(v) and v.input in read
        ]
        parameters = tuple(replace(v, output="") for v in about.parameters)
        rate = about.rate if about.rate in read else ""
        told = replace(about, parameters=parameters, states=(*mine, *states), rate=rate)
        step = self._model("training", nodes, outputs, told)
        step.graph.input.extend(inputs)
        step.metadata_props.add(key=UPDATE, value=pack(update))
        return step

    def _is_late(self, variable: Variable) -> bool:
        return self.makers.get(variable.output, "") in self.late

    def _crossing(self) -> list[str]:
        """What the update reads of the rest, but for sizes, which only say what comes before."""
        found = dict[str, None]()
        for op in self.graph.ops:
            if op.name in self.late and op.op_type != "Size":
                found.update(
                    (n, None) for n in op.reads if self.makers.get(n, op.name) not in self.late
                )
        odd = [n for n in found if n not in self.infos or self._type(n).elem_type not in FLOATS]
        if odd:
            raise UnsupportedError(
                f"the update reads '{odd[0]}', which cannot be averaged over processes",
                why="it holds no floating-point numbers, or its size is not known",
            )
        return list(found)

    def _type(self, name: str) -> onnx.TypeProto.Tensor:
        return self.infos[name].type.tensor_type

    def _sum(self, name: str) -> Gathered:
        kind = self._type(name)
        return Gathered(f"{name}.sum", kind.elem_type, tuple(d.dim_value for d in kind.shape.dim))

    def _added(self, name: str, each: Gathered) -> Sequence[onnx.NodeProto]:
        """The sum so far and what this batch adds."""
        ready, nodes = name, []
        if each.kept != each.dtype:
            ready = f"{each.input}/wide"
            nodes.append(
                helper.make_node("Cast", [name], [ready], f"{each.input}/Cast", to=each.kept)
            )
        target = f"{each.input}.next"
        nodes.append(helper.make_node("Add", [each.input, ready], [target], f"{each.input}/Add"))
        return nodes

    def _update(self, sums: dict[str, Gathered]) -> onnx.ModelProto:
        """The update as a model of its own, of sums and their share."""
        nodes = []
        for name, each in sums.items():
            mean, share = f"{each.input}/mean", SHARE
            if each.kept != T.FLOAT:
                share = f"{each.input}/share"
                nodes.append(
                    helper.make_node("Cast", [SHARE], [share], f"{share}/Cast", to=each.kept)
                )
            product = mean if each.kept != each.dtype else name
            nodes.append(helper.make_node("Mul", [each.input, share], [product], f"{mean}/Mul"))
            if product != name:
                nodes.append(
                    helper.make_node("Cast", [mean], [name], f"{mean}/Cast", to=each.dtype)
                )
        zero = "gradient_share/size"
        for op in self.graph.ops:
            if op.name not in self.late:
                continue
            node = onnx.NodeProto()
            node.CopyFrom(op.node)
            if op.op_type == "Size" and self.makers.get(op.inputs[0], op.name) not in self.late:
                # It held the update back until something was made: it all is.
                node = helper.make_node("Identity", [zero], op.outputs, op.name)
            nodes.append(node)
        about = self.about
        mine = [v for v in about.variables if self._is_late(v)]
        told = StepSignature(
            parameters=tuple(v for v in mine if v in about.parameters),
            states=tuple(v for v in mine if v in about.states),
            gradients=tuple((name, each.input) for name, each in sums.items()),
            rate=about.rate,
            share=SHARE,
            optimizer=about.optimizer,
        )
        wanted = {v.output for v in mine}
        outputs = [o for o in self.model.graph.output if o.name in wanted]
        update = self._model("update", nodes, outputs, told)
        update.graph.initializer.append(helper.make_tensor(zero, T.INT64, [], [0]))
        for each in sums.values():
            update.graph.input.append(
                helper.make_tensor_value_info(each.input, each.kept, each.shape)
            )
        update.graph.input.append(helper.make_tensor_value_info(SHARE, T.FLOAT, []))
        return update

    def _model(
        self,
        name: str,
        nodes: Sequence[onnx.NodeProto],
        outputs: Collection[onnx.ValueInfoProto],
        about: StepSignature,
    ) -> onnx.ModelProto:
        """Some of the nodes with what they read of the step's inputs and constants."""
        source = self.model
        read = {n for node in nodes for n in node.input} | {o.name for o in outputs}
        read |= {n for op in self.graph.ops for n in op.captures}
        asked = {about.rate, *about.fed}  # by who feeds it, whether any node reads it or not
        made = onnx.ModelProto(ir_version=source.ir_version, producer_name=source.producer_name)
        made.opset_import.extend(source.opset_import)
        made.graph.name = name
        made.graph.node.extend(nodes)
        made.graph.input.extend(i for i in source.graph.input if i.name in read | asked)
        made.graph.output.extend(outputs)
        first = {i.name for i in source.graph.input}  # values that a trainer begins with
        made.graph.initializer.extend(
            tensor
            for tensor in source.graph.initializer
            if (tensor.name in read - first if about.share else tensor.name in read | first)
        )
        written = {n for node in nodes for n in node.output} - {o.name for o in outputs}
        made.graph.value_info.extend(v for v in source.graph.value_info if v.name in written)
        for entry in source.metadata_props:
            if entry.key != KEY:
                made.metadata_props.add(key=entry.key, value=entry.value)
        made.metadata_props.add(key=KEY, value=about.to_json())
        return made
