"""What each floating-point initializer of a file is: a parameter, or something else, and why.

An ONNX file does not say which initializers a framework trains. In this order, the first that
knows decides:

1. names, a state dict or a module given by the user (``parameters=``);
2. the list that :func:`onnxremat.export` writes;
3. how operators use it: settings (the ratio of a Dropout), running statistics;
4. PyTorch's exporter: kinds PARAMETER and BUFFER, and the names a folded constant was made from;
5. its name, where that is one libraries give to buffers (``inv_freq``, ``attn_mask``, ...);
6. its values: masks, progressions, tables of sines and cosines are made by code. Where an exporter
   made the name up, so are equal elements, whole numbers, and values of two kinds;
7. anything else is a parameter; single numbers only where they have a module's name (in files of
   PyTorch's older exporter, any name that it did not make up).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import onnx

from onnxremat.grad.exported.layers import placed
from onnxremat.grad.exported.marks import (
    Marks,
    is_buffer_name,
    is_nameless,
    module_of,
    of_rewritten,
    parameters_among,
)
from onnxremat.grad.exported.patterns import (
    LIMIT,
    MASK,
    is_constant,
    made_by_code,
    regular,
    rotations,
)
from onnxremat.grad.exported.signature import PARAMETER
from onnxremat.grad.exported.stored import Stored
from onnxremat.grad.tape import FLOATS
from onnxremat.graph.ir import captures
from onnxremat.graph.traits import MOVING

# Inputs that hold settings or statistics, not parameters.
SETTINGS = {
    "BatchNormalization": (3, 4), "Clip": (1, 2), "Dropout": (1,), "GRU": (5,), "LSTM": (5, 6),
    "OneHot": (2,), "Pad": (2,), "Pow": (1,), "RNN": (5,), "Resize": (1, 2), "Upsample": (1,),
    "Range": (0, 1, 2), "Sin": (0,), "Cos": (0,),
    "NegativeLogLikelihoodLoss": (2,), "SoftmaxCrossEntropyLoss": (2,),
    "QuantizeLinear": (1,), "DequantizeLinear": (1,), "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6), "MatMulNBits": (2, 3), "MatMulBnb4": (2,),
    "GatherBlockQuantized": (2,), "DynamicQuantizeMatMul": (2,), "MatMulIntegerToFloat": (2, 3),
    "QAttention": (3, 4),
}  # fmt: skip
# Of these, some are learned: first states, exponents (GeM), bounds, phases. A name tells.
LEARNED_BY_SOME = frozenset({"Clip", "Cos", "GRU", "LSTM", "Pow", "RNN", "Sin"})
# What a module calls the tensor that an operator reads at an input.
_RECURRENT = {1: "weight_ih", 2: "weight_hh", 3: "bias"}
_PARTS = {
    "MatMul": {0: "weight", 1: "weight"}, "Gemm": {1: "weight", 2: "bias"},
    "Conv": {1: "weight", 2: "bias"}, "ConvTranspose": {1: "weight", 2: "bias"},
    "Add": {0: "bias", 1: "bias"}, "Mul": {0: "scale", 1: "scale"}, "Gather": {0: "weight"},
    "LSTM": _RECURRENT, "GRU": _RECURRENT, "RNN": _RECURRENT,
}  # fmt: skip

SINGLE = "a single number"
UNSAID = "folded, the file does not say from what"
COMPUTED = "the file holds what the exporter computed with it, and that is trained in its place"
COPIED = "the file holds copies of it or its elements, and these are trained in its place, apart"
STEPPED = "made by rounding or comparing, whose derivative is 0"


class Kind(StrEnum):
    """What an initializer is."""

    PARAMETER = "parameter"
    FROZEN = "frozen"  # a parameter that the framework does not train
    BUFFER = "buffer"
    STATISTIC = "statistic"
    SETTING = "setting"
    CONSTANT = "constant"


@dataclass(frozen=True)
class Origin:
    """What an initializer is, and how that is known.

    Attributes:
        kind: see :class:`Kind`.
        why: the reason, for people.
        label: its name in the framework, where the exporter made another one up.
        told: the file or the user says so; otherwise it is judged by name or values.
        computed: the exporter computed it from parameters, so that training it is not training
            these.
    """

    kind: Kind
    why: str
    label: str = ""
    told: bool = False
    computed: bool = False


def origins_of(
    model: onnx.ModelProto,
    folder: Path | None,
    marks: Marks,
    labels: Mapping[str, str] | None = None,
    given: Mapping[str, bool] | None = None,
) -> dict[str, Origin]:
    """What each floating-point initializer of a model is, by name.

    Args:
        model: with its parameters restored (:mod:`onnxremat.grad.exported.unfold`).
        folder: where external weights lie; without, their values do not count.
        marks: what the file says.
        labels: tensors that others were made from, by the new name.
        given: names that the user lists, and whether each is trained; then nothing else is.
    """
    return _Judge(model, folder, marks, labels or {}, given).run()


class _Judge:
    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path | None,
        marks: Marks,
        labels: Mapping[str, str],
        given: Mapping[str, bool] | None,
    ) -> None:
        self.model, self.marks, self.given = model, marks, given
        self.stored = Stored(model, folder)
        self.source = labels
        self.placed = placed(model, marks)
        self.readers = _readers(model)
        self.uses = {
            name: [(node.op_type, position) for node, position in found]
            for name, found in self.readers.items()
        }
        self.at_rest = self._norms_by_hand()

    def run(self) -> dict[str, Origin]:
        names = [t.name for t in self.model.graph.initializer if t.data_type in FLOATS]
        found = {name: self._origin(name) for name in names}
        return {**found, **self._rotations(found)}

    def _origin(self, name: str) -> Origin:
        file_name = self.source.get(name, name)
        folded = self.marks.folded.get(file_name, ())
        sources = parameters_among(folded, self.marks.kinds)
        label = "" if name in sources else ", ".join(sources) or self._by_reader(name)
        use = self._use(name)
        if use is None and sources and self._stepped(file_name):
            return Origin(Kind.CONSTANT, STEPPED, label, told=True)
        if self.given is not None and use is None:
            return self._given(name, label, folded)
        if self.marks.trained is not None and (listed := self._listed(name, file_name)):
            return listed
        if use is not None:
            return use
        told = self._told(file_name, label, sources, folded)
        named = any("." in each or self.marks.kinds.get(each) == PARAMETER for each in sources)
        return told or self._judged(name, label, named)

    def _nameless(self, name: str) -> bool:
        return self.marks.nameless(self.source.get(name, name))

    def _by_reader(self, name: str) -> str:
        """A likely name for a folded weight: that of the module that reads it."""
        if not self._nameless(name) or len(self.readers.get(name, ())) != 1:
            return ""
        node, position = self.readers[name][0]
        part = _PARTS.get(node.op_type, {}).get(position)
        scope = module_of(node)
        return f"{scope}.{part}" if scope and part else ""

    def _given(self, name: str, label: str, sources: Sequence[str]) -> Origin:
        """By the user's list. A folded tensor is trained if something that it is made of is; where
        only its reader is known, if the list has that name; the bias that a convolution got from
        a batch normalization, if the list has its weight."""
        assert self.given is not None
        if not sources and label not in self.given and label.endswith(".bias"):
            module = label.removesuffix(".bias")
            sources = (f"{module}.weight",) if module in self.marks.norms else ()
        known = [n for n in (name, *(sources or (label,))) if n in self.given]
        if any(self.given[n] for n in known):
            return Origin(Kind.PARAMETER, "in the list given", label, True)
        if known:
            return Origin(Kind.FROZEN, "the module does not train it", label, True)
        return Origin(Kind.CONSTANT, "not in the list given", label, True)

    def _listed(self, name: str, file_name: str) -> Origin | None:
        marks = self.marks
        for each in (name, file_name):
            if each in (marks.trained or ()):
                return Origin(Kind.PARAMETER, "a parameter, says the file", told=True)
            if each in marks.frozen:
                halted = each in marks.halted
                why = "the module stops its gradient" if halted else "the module did not train it"
                return Origin(Kind.FROZEN, why, told=True)
            if each in marks.buffers and self._use(name) is None:
                return Origin(Kind.BUFFER, "a buffer, says the file", told=True)
        if self._use(name) is None:
            return Origin(Kind.CONSTANT, "not among the parameters that the file lists", told=True)
        return None

    def _use(self, name: str) -> Origin | None:
        places = self.uses.get(name, [])
        if not places or any(k not in SETTINGS.get(kind, ()) for kind, k in places):
            return None
        if all(kind == "BatchNormalization" for kind, _ in places):
            return Origin(Kind.STATISTIC, "running statistics", told=True)
        kinds = {kind for kind, _ in places}
        if kinds <= LEARNED_BY_SOME and self._named(name):
            return None
        if self._may_be_learned(name, kinds):
            why = "a bound whose name PyTorch's exporter made up: it may be a parameter"
            return Origin(Kind.SETTING, why, computed=True)
        return Origin(Kind.SETTING, f"a setting of {', '.join(sorted(kinds))}", told=True)

    def _may_be_learned(self, name: str, kinds: set[str]) -> bool:
        """PyTorch's older exporter writes bounds that the code gives as Constant nodes, and stores
        those that it made from a parameter; but tools that simplify files store any: 0 and 6."""
        unnamed = kinds == {"Clip"} and self.marks.named and name.startswith("onnx::Clip")
        return unnamed and self.stored.readable(name) and self.stored.value(name) not in (0, 6)

    def _named(self, name: str) -> bool:
        """The file says that it is a parameter, or, where it says nothing of any, names it."""
        if self.given is not None:
            return name in self.given
        file_name = self.source.get(name, name)
        sources = parameters_among(self.marks.folded.get(file_name, ()), self.marks.kinds)
        if self.marks.kinds:
            return PARAMETER in map(self.marks.kinds.get, (file_name, *sources))
        return not is_nameless(file_name)

    def _told(
        self, name: str, label: str, sources: Sequence[str], folded: Sequence[str]
    ) -> Origin | None:
        """By what PyTorch's exporter says."""
        kind = self.marks.kinds.get(name)
        if kind == "BUFFER":
            return Origin(Kind.BUFFER, "a buffer, says the exporter", told=True)
        if kind is not None and kind != "PARAMETER":
            return Origin(Kind.CONSTANT, f"{kind.lower()}, says the exporter", told=True)
        if name not in self.marks.folded:
            made = self.marks.signature and name not in self.marks.placeholders
            here = name in self.stored.tensors and self.stored.readable(name)
            if made and here and is_constant(self.stored.value(name)):
                return Origin(Kind.CONSTANT, "made by the exporter", told=True)
            return None
        if not sources:
            why = "made by code, says the exporter"
            buffers = [each for each in folded if is_buffer_name(each)]
            return Origin(Kind.CONSTANT, f"made from {buffers[0]}" if buffers else why, told=True)
        known = [self.marks.kinds.get(each) for each in sources]
        if known and all(each == "BUFFER" for each in known):
            return Origin(Kind.BUFFER, f"made from buffer {sources[0]}", label, True)
        moved = tuple(folded) == sources and name not in self.marks.copied
        moved = moved and not self._filled(name)
        if known == [PARAMETER] and moved and name not in self.marks.computed:
            if rule := self._rule(name):  # part of a table that the module has frozen
                return Origin(Kind.FROZEN, rule, label)
            return Origin(Kind.PARAMETER, "folded, says the exporter", label, True)
        return None

    def _rule(self, name: str) -> str:
        """The rule that the values follow, "" where there is none or they are not looked at."""
        here = name in self.stored.tensors and self.stored.readable(name)
        looked = here and self.stored.size(name) <= LIMIT
        return regular(self.stored.value(name)) if looked else ""

    def _judged(self, name: str, label: str, made: bool) -> Origin:
        """By name and values."""
        marked = self.marks.kinds.get(name) == "PARAMETER"
        if is_buffer_name(name) and not marked:
            return Origin(Kind.BUFFER, f"named as buffers are ('{name.rsplit('.', 1)[-1]}')")
        if (of := of_rewritten(name, self.stored.tensors)) and not marked:
            return Origin(Kind.BUFFER, f"named as PyTorch names a buffer of {of}")
        if name.rpartition(".")[0] in self.at_rest and not marked:
            why = "beside running statistics that no BatchNormalization reads: of a frozen one"
            return Origin(Kind.BUFFER, why)
        if self._of_data(name) and not marked:
            return Origin(Kind.CONSTANT, "'mean' and 'std' in one module: those of the data")
        made = made or name in self.placed
        nameless = (self._nameless(name) or bool(label)) and not made and not marked
        size = self.stored.size(name)
        own = made or "." in name or (self.marks.named and not self._nameless(name))
        if size <= 1 and not marked and (nameless or not own):
            return Origin(Kind.CONSTANT, SINGLE)
        file_name = self.source.get(name, name)
        folded = self.marks.folded.get(file_name, ())
        if size <= LIMIT and self.stored.readable(name):
            value = self.stored.value(name)
            why = made_by_code(value) if nameless else regular(value)
            if why:
                kind = Kind.FROZEN if marked else Kind.CONSTANT
                return Origin(kind, why, label, why == MASK, bool(label and folded))
        why = "a parameter, says the exporter" if marked else "a named weight"
        if (label or nameless) and not folded:
            why = UNSAID
        elif label:
            why = "folded, says the exporter"
            mixed = name not in self.source and any(map(is_buffer_name, folded))
            computed = mixed or file_name in self.marks.computed or self._filled(name)
            if computed or self._copied(name, file_name):
                why = COMPUTED if computed else COPIED
                return Origin(Kind.PARAMETER, why, label, computed=True)
        return Origin(Kind.PARAMETER, why, label, marked)

    def _of_data(self, name: str) -> bool:
        """One of two tensors by which modules standardise their inputs."""
        module, dot, part = name.rpartition(".")
        pair = [f"{module}{dot}{each}" for each in ("mean", "std")]
        there = part in ("mean", "std") and all(each in self.stored.tensors for each in pair)
        return there and self.stored.shape(pair[0]) == self.stored.shape(pair[1])

    def _norms_by_hand(self) -> set[str]:
        """Modules with running statistics that no operator takes as such: frozen normalizations of
        detection models, which are arithmetic with four buffers."""
        stored = {tensor.name for tensor in self.model.graph.initializer}
        return {
            module
            for name in stored
            for module, _, part in [name.rpartition(".")]
            if module
            and part == "running_var"
            and f"{module}.running_mean" in stored
            and not self._reaches_a_norm(name)
        }

    def _reaches_a_norm(self, name: str) -> bool:
        """A BatchNormalization reads the tensor, or what it is moved to."""
        waiting, seen = [name], {name}
        while waiting:
            for node, _ in self.readers.get(waiting.pop(), ()):
                if node.op_type == "BatchNormalization":
                    return True
                if node.op_type in MOVING or node.op_type == "Concat":
                    waiting += [made for made in node.output if made not in seen]
                    seen.update(node.output)
        return False

    def _copied(self, name: str, file_name: str) -> bool:
        """A folded tensor with equal elements may hold more of them than the parameter has."""
        if name != file_name or name not in self.marks.copied:
            return False
        value = self.stored.readable(name) and self.stored.value(name)
        return isinstance(value, np.ndarray) and len(np.unique(value)) < value.size

    def _filled(self, name: str) -> bool:
        """Zeros in a folded tensor stand, it may be, where the parameter has no numbers."""
        if name not in self.marks.filled or name not in self.stored.tensors:
            return False
        return self.stored.readable(name) and not np.all(self.stored.value(name))

    def _stepped(self, name: str) -> bool:
        """A folded tensor holds what was rounded or compared, and no number of a parameter."""
        if name not in self.marks.stepped or name not in self.stored.tensors:
            return False
        value = self.stored.value(name) if self.stored.readable(name) else np.full(1, 0.5)
        return bool((value == np.rint(value)).all())

    def _rotations(self, found: Mapping[str, Origin]) -> dict[str, Origin]:
        """Two tensors without names, one of cosines and one of sines of the same angles."""
        names = [
            name
            for name, origin in found.items()
            if origin.kind is Kind.PARAMETER
            and self._nameless(name)
            and self.stored.size(name) <= LIMIT
            and self.stored.readable(name)
        ]
        return {
            name: Origin(Kind.CONSTANT, f"sines and cosines, with '{other}'")
            for name, other in rotations(names, self.stored.value).items()
        }


def _readers(model: onnx.ModelProto) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
    """Every reader and which input it reads, by tensor; Identity is looked through."""
    alias: dict[str, str] = {}
    found: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in model.graph.node:
        if node.op_type == "Identity":
            alias[node.output[0]] = alias.get(node.input[0], node.input[0])
            continue
        for position, name in enumerate(node.input):
            found.setdefault(alias.get(name, name), []).append((node, position))
        for name in captures(node):
            found.setdefault(alias.get(name, name), []).append((node, -1))
    return found
