"""What exporters do to parameters, undone.

Exporters of inference models keep equal tensors once, write one tensor of the framework twice
(once as it is, once transposed), and store what an expanded or indexed parameter comes to. None of
that changes an inference. A training step needs each parameter once, by itself:

copy      an Identity of a tensor that the exporter merged with an equal one: a tensor of its own
use       one reader of a merged tensor, told apart by the module it belongs to
tie       a copy of another tensor, perhaps transposed: made from it
expand    equal slices: made from one of them
share     elements that repeat, in one tensor or several: made from the distinct ones
pick      a tensor whose elements are those of another: made from it
mask      a tensor some of whose elements are zeros: these stay
bias      a bias of zeros that was left out: a tensor of zeros
fill      a block of zeros among learned numbers, where a bias was joined with a buffer: made from
          the rest
part      a slice of another tensor: made from it
computed  one less another tensor, or the like: made from it

:func:`find_restored` decides from the file alone, :func:`apply_restored` carries it out on any
model of that structure, so that first values are found and trained ones are written back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.grad.exported.computed import computed_among
from onnxremat.grad.exported.copied import copied_tensors
from onnxremat.grad.exported.detached import is_stop
from onnxremat.grad.exported.elements import (
    are_copies,
    are_masked,
    are_shared,
    are_triangles,
    share,
    shared_among,
)
from onnxremat.grad.exported.layers import calls, homes, in_copied_layers, placed
from onnxremat.grad.exported.left_out import BIAS, left_out, zeros
from onnxremat.grad.exported.makers import MADE, MAKERS, on_the_way, read_by_makers, stored_again
from onnxremat.grad.exported.marks import Marks, Reading, is_nameless, parameters_among, reading_of
from onnxremat.grad.exported.merged import (
    Place,
    constants_of_code,
    folded_apart,
    made_by_call,
    made_by_calls,
    merged,
    reads_no_other,
)
from onnxremat.grad.exported.parts import SMALLEST, parts_among
from onnxremat.grad.exported.patterns import (
    LIMIT,
    is_constant,
    made_by_code,
    permutation,
    repeated_axes,
    rotations,
    zero_block,
)
from onnxremat.grad.exported.restored import Restored
from onnxremat.grad.exported.running import own_statistics
from onnxremat.grad.exported.stored import Stored, named
from onnxremat.grad.exported.twins import readied
from onnxremat.grad.tape import FLOATS
from onnxremat.graph.ir import captures
from onnxremat.ort.infer import constants_only


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


# ---- find --------------------------------------------------------------------------------------


def find_restored(
    model: onnx.ModelProto, folder: Path | None, marks: Marks, tie: bool = True
) -> tuple[list[Restored], Marks]:
    """What exporters did to the parameters of a model; and the marks, with those of tensors that
    are told apart again.

    Args:
        model: as :func:`readied` gives it.
        folder: where external weights lie.
        marks: what the file says about its initializers.
        tie: whether equal tensors of irregular numbers are one parameter.
    """
    finder = _Finder(model, folder, marks)
    return finder.run(tie), marks.told_apart(finder.tokens, finder.folded, finder.equal)


class _Finder:
    def __init__(self, model: onnx.ModelProto, folder: Path | None, marks: Marks) -> None:
        self.model, self.marks, self.stored = model, marks, Stored(model, folder)
        self.floats = [t.name for t in model.graph.initializer if t.data_type in FLOATS]
        self.taken = set(self.stored.tensors)
        self.taken |= {name for node in model.graph.node for name in (*node.input, *node.output)}
        self.found: list[Restored] = []
        self.tokens: dict[str, str] = {}
        self.folded: dict[str, tuple[str, ...]] = {}
        self.equal: dict[str, str] = {}  # what each of these was merged with
        self.placed, self.homes = placed(model, marks), homes(model)
        self.statistics = {
            name
            for node in model.graph.node
            if node.op_type == "BatchNormalization"
            for name in node.input[3:5]
        }

    def run(self, tie: bool) -> list[Restored]:
        if self.marks.trained is not None:
            return []  # onnxremat.export keeps every parameter by itself
        self._copies(tie)
        self._uses()
        self._biases()
        if tie:
            self._ties()
            self._parts()
            self._shared()
        self._computed()
        roots = {entry.parameter for entry in self.found if entry.how == "pick"}
        folded = [
            name
            for name in self._left()
            if self.stored.size(name) > 1
            and name not in roots
            and (self.marks.nameless(name) or name in self.marks.folded)
        ]
        turned = rotations(folded, self.stored.value)
        for name in folded:
            if name not in turned:
                self._smaller(name)
        return self.found

    def _left(self) -> list[str]:
        """Tensors that nothing was done to, small enough to be looked at."""
        done = {entry.tensor for entry in self.found if entry.how != "bias"}
        return [
            name
            for name in self.floats
            if name not in done and self.stored.size(name) <= LIMIT and self.stored.readable(name)
        ]

    def _shared(self) -> None:
        """Tensors made from elements of one parameter."""
        roots = {entry.parameter for entry in self.found}
        left = sorted(self._left(), key=self._moved)  # what a label is taken from is last
        sources = {
            name: found[0]
            for name in left
            if name not in roots
            and len(found := parameters_among(self.marks.folded.get(name, ()), self.marks.kinds))
            == 1
        }
        self.found += shared_among(
            left,
            self.stored,
            sources,
            lambda name: self.marks.nameless(name) and name not in roots,
            self._fresh,
        )

    def _constant(self, name: str) -> bool:
        """All elements of an initializer are equal."""
        ends = self.stored.ends(name)
        if ends is None or ends[0] != ends[1] or self.stored.size(name) > LIMIT:
            return False
        return is_constant(self.stored.value(name))

    def _copies(self, tie: bool) -> None:
        """Identity nodes of initializers, as PyTorch's older exporter writes for merged ones.

        Irregular numbers are equal because a layer was copied, or because what was folded of them
        has no name; zeros and ones are equal by chance, and running statistics are always a tensor
        of their own. What a module reads when it is called again is not another tensor.
        """
        own = self.statistics | copied_tensors(self.model, tie)
        source = {name: name for name in self.floats}
        read = calls(self.model)
        first = {(name, *read[name][1:]): name for name in self.floats if name in read}
        for node in self.model.graph.node:
            if node.op_type != "Identity" or node.input[0] not in source or is_stop(node):
                continue
            name = source[node.output[0]] = source[node.input[0]]
            made = node.output[0]
            named = not is_nameless(made) or made in self.placed
            by_chance = named and self._constant(name)
            if by_chance and made in read:
                known = first.setdefault((name, *read[made][1:]), made)
                if known != made:
                    self.found.append(Restored("use", known, name, *_place(*read[made][:2])))
                    continue
            if made in own or by_chance or self._apart(name, made):
                self.found.append(Restored("copy", made, name))

    def _uses(self) -> None:
        """Readers of tensors that the exporter merged: of zeros and ones, by what PyTorch's
        exporter says each reader reads; of running statistics, always."""
        copied = {entry.parameter for entry in self.found}
        constant = {name for name in self.floats if self._constant(name)}
        calls: dict[str, list[Place]] = {}
        nodes: dict[str, list[onnx.NodeProto]] = {}
        readers: dict[str, list[Place]] = {}
        for node in self.model.graph.node:
            if node.output and node.output[0] in copied:
                continue  # an Identity that becomes a tensor of its own
            about = reading_of(node)
            if about is not None:
                nodes.setdefault(about.call, []).append(node)
            for position, name in enumerate(node.input):
                if name in self.stored.tensors or name in copied:
                    readers.setdefault(name, []).append((node, position))
                    if about is not None and name in self.floats:
                        calls.setdefault(about.call, []).append((node, position))
        alone = {call for call in calls if reads_no_other(nodes[call], self.stored.tensors)}
        self._told_apart(calls, constant, alone)
        self._folded_apart(readers, constant)
        used = {(e.node, e.position): e.parameter for e in self.found if e.how == "use"}
        left = {
            name: [r for r in readers[name] if _place(*r) not in used]
            for name in self.floats
            if name in readers
        }
        self.found += own_statistics(self.model, left, used, self._fresh)

    def _told_apart(
        self, calls: Mapping[str, list[Place]], constant: set[str], alone: Collection[str]
    ) -> None:
        names: dict[str, str] = {}  # PyTorch's name to the tensor made for it
        there = made_by_calls(self.model, self.marks)
        for places in calls.values():
            about = reading_of(places[0][0])
            assert about is not None
            plain = constants_of_code(self.marks, about, places) if about.call in alone else []
            for (node, position), token in merged(self.marks, places, about.tensors) + plain:
                name = node.input[position]
                known = self.marks.signature.keys() >= {*token.split()}
                if name not in constant and not (token and known):
                    continue  # equal irregular numbers are one parameter, as far as one can tell
                if not token and about.call not in alone and not made_by_call(about, there):
                    continue  # the parameter, through what changed nothing (``w.clone()``)
                key = token or f"{name}, a constant"
                if key not in names:
                    names[key] = self._own(name, token, about)
                where = _place(node, position)
                self.found.append(Restored("use", names[key], name, *where))

    def _folded_apart(self, readers: Mapping[str, list[Place]], constant: set[str]) -> None:
        names: dict[str, str] = {}  # the module's name to the tensor made for it
        for name in filter(constant.__contains__, self.floats):
            for place, parameter in folded_apart(self.marks, name, readers.get(name, [])):
                if parameter not in names:
                    names[parameter] = self._folded_as(name, (parameter,))
                self.found.append(Restored("use", names[parameter], name, *_place(*place)))

    def _own(self, name: str, token: str, about: Reading) -> str:
        """A tensor of its own for what ``name`` was merged with, not called as the parameter is
        where that was folded: it may be laid out otherwise."""
        if not token:
            return self._fresh("merged_constant")
        known = tuple(self.marks.name_of(each, about) for each in token.split())
        if name in self.marks.placeholders:
            made = self._fresh(known[0])
            self.tokens[made] = token
        else:
            made = self._folded_as(name, known)
        return made

    def _folded_as(self, name: str, sources: tuple[str, ...]) -> str:
        """A tensor folded from other parameters just as ``name`` was, and merged with it."""
        made = self._fresh(name)
        self.folded[made], self.equal[made] = sources, name
        return made

    def _biases(self) -> None:
        """Biases of zeros that PyTorch's exporter left out."""
        known = {token: name for name, token in self.marks.placeholders.items()}
        known |= {token: name for name, token in self.tokens.items()}
        for node in self.model.graph.node:
            about = reading_of(node)
            token = left_out(node, about) if about is not None else ""
            if not token or zeros(node, token, self.stored) is None:
                continue
            assert about is not None
            if token not in known:
                known[token] = self._fresh(self.marks.name_of(token, about))
                self.tokens[known[token]] = token
            self.found.append(Restored("bias", known[token], node.input[1], *_place(node, BIAS)))

    def _fresh(self, stem: str) -> str:
        name, count = stem, 1
        while name in self.taken:
            name, count = f"{stem}_{count}", count + 1
        self.taken.add(name)
        return name

    def _ties(self) -> None:
        """Initializers with the numbers of another, perhaps transposed. The one that kept its name
        is the parameter; of two, the first."""
        groups: dict[Any, list[str]] = {}
        for name in self.floats:
            size = self.stored.size(name)
            ends = self.stored.ends(name) if size >= SMALLEST else None
            if ends is not None and ends[0] != ends[1]:
                kind = self.stored.tensors[name].data_type
                dims = tuple(sorted(self.stored.shape(name)))
                groups.setdefault((kind, dims, ends), []).append(name)
        for names in groups.values():
            if len(names) > 1:
                names.sort(key=is_nameless)  # stable: named ones first
                self._tie_among(names)

    def _tie_among(self, names: Sequence[str]) -> None:
        free: list[tuple[str, np.ndarray]] = []
        for name in names:
            value = self.stored.value(name)
            match = next(
                (
                    (other, perm)
                    for other, known in free
                    if (perm := permutation(known, value)) and not self._apart(other, name)
                ),
                None,
            )
            if match is None:
                if value.size > LIMIT or not made_by_code(value):
                    free.append((name, value))
            else:
                self.found.append(Restored("tie", match[0], name, axes=match[1]))

    def _parts(self) -> None:
        """Folded slices of a longer tensor."""
        self.found += parts_among(self._left(), self.stored, self.marks.nameless, self.marks)

    def _computed(self) -> None:
        """What was computed of another tensor and a number. In front of all else that is made: a
        tie or a part may be of it."""
        done = {entry.tensor for entry in self.found if entry.how != "bias"}
        free = [name for name in self.floats if name not in done]
        self.found[:0] = computed_among(self.model, free, self.stored, self.marks)

    def _apart(self, one: str, other: str) -> bool:
        """Two tensors are different parameters, equal as copies of a fresh layer are: the file
        names them, or their names say so."""
        tokens = {self.marks.token_of(one), self.marks.token_of(other)}
        if "" not in tokens and tokens <= self.marks.signature.keys():
            return len(tokens) == 2
        return in_copied_layers(self.homes.get(one, ""), self.homes.get(other, ""))

    def _smaller(self, name: str) -> None:
        """A folded tensor that was made from a smaller one."""
        value = self.stored.value(name)
        if self.marks.filled.get(name) and are_triangles(value):
            self.found.append(Restored("mask", self._core(name, "learned"), name))
            return
        if made_by_code(value):
            return
        axes = repeated_axes(value)
        if axes:
            self.found.append(Restored("expand", self._core(name, "slice"), name, axes=axes))
        elif are_shared(value) or (name in self.marks.copied and are_copies(value)):
            self.found.append(Restored("share", self._core(name, "elements"), name))
        elif block := zero_block(value):
            self.found.append(Restored("fill", self._core(name, "learned"), name, axes=block))
        elif are_masked(value) and not self._moved(name):
            self.found.append(Restored("mask", self._core(name, "learned"), name))

    def _moved(self, name: str) -> bool:
        """The file says that nothing was done to the numbers of a folded tensor."""
        marks = self.marks
        return name in marks.folded and name not in marks.computed and name not in marks.filled

    def _core(self, name: str, suffix: str) -> str:
        sources = parameters_among(self.marks.folded.get(name, ()), self.marks.kinds)
        return self._fresh(f"{sources[0] if len(sources) == 1 else name}.{suffix}")


def _place(node: onnx.NodeProto, position: int) -> tuple[str, int]:
    return node.output[0], position


# ---- carry out ---------------------------------------------------------------------------------


def apply_restored(
    model: onnx.ModelProto, restored: Sequence[Restored], folder: Path | None = None
) -> onnx.ModelProto:
    """The model with its parameters as they are trained: the same function, other initializers.

    Entries about tensors that the model does not have are passed over (it has the parameters
    already, having been written by a trainer, say).
    """
    model = readied(model)
    if not restored:
        return model
    result = constants_only(model)
    stored = Stored(result, folder)
    nodes: list[onnx.NodeProto] = []  # that make what the file stored
    added: list[onnx.TensorProto] = []
    dropped: set[str] = set()
    readers = {node.output[0]: node for node in result.graph.node if node.output}
    for entry in restored:
        if entry.tensor not in stored.tensors:
            continue
        maker = readers.get(entry.parameter)
        if entry.how == "copy" and maker is not None and maker.op_type == "Identity":
            maker.op_type = "onnxremat.dropped"
            added.append(named(stored.tensors[entry.tensor], entry.parameter))
        elif entry.how == "use" and entry.node in readers:
            readers[entry.node].input[entry.position] = entry.parameter
            if entry.parameter not in stored.tensors:  # another call's, it may be there already
                added.append(named(stored.tensors[entry.tensor], entry.parameter))
                stored.add(added[-1:])
        elif entry.how == "bias" and entry.node in readers:
            node = readers[entry.node]
            made = zeros(node, entry.parameter, stored)
            if made is not None and not any(node.input[BIAS:]):
                node.input[BIAS:] = [entry.parameter]
                added += [made] if entry.parameter not in stored.tensors else []
        elif entry.how in MAKERS:
            dropped.add(entry.tensor)
            MAKERS[entry.how](entry, stored, nodes, added)
    for parameter, tensors in _shares(restored, stored).items():
        dropped.update(tensors)
        share(parameter, tensors, stored, nodes, added)
    nodes += [_copy(n) for n in result.graph.node if n.op_type != "onnxremat.dropped"]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    names = {tensor.name: tensor for tensor in added}
    read = {name for node in nodes for name in (*node.input, *captures(node))}
    read |= {value.name for value in result.graph.output}
    kept = [
        named(t, t.name)
        for t in result.graph.initializer
        if t.name not in dropped and (t.name in read or not _was_merged(t.name, restored))
    ]
    gone = {tensor.name for tensor in result.graph.initializer}
    del result.graph.initializer[:]
    result.graph.initializer.extend([*kept, *names.values()])
    gone.difference_update(tensor.name for tensor in result.graph.initializer)
    # Files may list what they store as inputs, too; what is made now is none.
    listed = [value for value in result.graph.input if value.name not in gone]
    del result.graph.input[:]
    result.graph.input.extend(listed)
    return result


def _shares(restored: Sequence[Restored], stored: Stored) -> dict[str, list[str]]:
    """Parameters, each with the tensors that hold its elements."""
    found: dict[str, list[str]] = {}
    for entry in restored:
        if entry.how == "share" and entry.tensor in stored.tensors:
            found.setdefault(entry.parameter, []).append(entry.tensor)
    return found


def fold_restored(model: onnx.ModelProto, restored: Sequence[Restored]) -> onnx.ModelProto:
    """The reverse of ties, expansions and shared elements in a model of inline weights: what the
    file held is stored again, with the values the parameters have now."""
    stored = Stored(model)
    undone = {e.tensor: e for e in restored if e.how in MADE and e.tensor not in stored.tensors}
    kept, parts = [], {name for tensor in undone for name in on_the_way(tensor)}
    for node in model.graph.node:
        if parts.intersection(node.output):
            continue
        entry = undone.get(node.output[0] if node.output else "")
        if entry is None or entry.parameter not in stored.tensors:
            kept.append(_copy(node))
            continue
        value = stored_again(entry, stored.value(entry.parameter), node, stored)
        made = numpy_helper.from_array(np.ascontiguousarray(value), entry.tensor)
        model.graph.initializer.append(made)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    read = {name for node in kept for name in (*node.input, *captures(node))}
    helpers = {name for tensor in undone for name in read_by_makers(tensor)}
    helpers |= {entry.parameter for entry in undone.values()}
    left = [
        named(t, t.name) for t in model.graph.initializer if t.name in read or t.name not in helpers
    ]
    del model.graph.initializer[:]
    model.graph.initializer.extend(left)
    return model


def _was_merged(name: str, restored: Sequence[Restored]) -> bool:
    return any(entry.tensor == name and entry.how in ("copy", "use") for entry in restored)
