"""Operations that PyTorch's exporter made one of, because they were equal: each gets its own again.

Two fresh normalizations of one tensor are equal once their scales and shifts are merged, and its
optimizer keeps one of them. The file still lists the parameters of the other, and its readers
still say which module they belong to, or that they read ``layer_norm_1``, which nothing makes. So
with parameters that were folded: the joined biases of two layers, cut apart by a Split, or two
tables of zeros that were interpolated.

What is decided here follows from the marks alone, not from values: a file that was trained since is
taken apart in the same way. Where it is no more than likely (a module called twice on one tensor
would leave the same file, if the module beside it were never called), the copies say so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import onnx

from onnxremat.grad.exported.marks import (
    FOLDED,
    READS,
    SCOPES,
    Marks,
    Reading,
    marks_of,
    reading_of,
    stem,
)
from onnxremat.grad.exported.running import in_place
from onnxremat.grad.exported.signature import PARAMETER
from onnxremat.grad.exported.stored import constants_stored
from onnxremat.graph.bodies import with_learned_outside
from onnxremat.graph.sparse import with_dense

LARGEST = 1024  # elements up to which PyTorch's exporter merges equal tensors
_LIKELY = "onnxremat.likely_parameters"
# Readers of a result that 0 was added to, or that was multiplied by 1, name what that came to.
_LEAVING = frozenset(("add", "sub", "mul", "div"))
Said: TypeAlias = tuple[onnx.NodeProto, Reading]


@dataclass(frozen=True)
class _Kept:
    """Nodes, or a tensor, that stand for others too.

    Attributes:
        nodes: of one call of PyTorch's graph, or that read nothing but ``tensor``.
        module: that the parameters belong to.
        parts: their names in there.
        tensor: the initializer that was folded from them, "" where the nodes read them as they are.
    """

    nodes: Sequence[onnx.NodeProto]
    module: str
    parts: tuple[str, ...]
    tensor: str = ""

    @property
    def results(self) -> set[str]:
        """Everything the nodes make."""
        return {name for node in self.nodes for name in node.output}


@dataclass(frozen=True)
class _Twin:
    """What was left out.

    Attributes:
        kept: what is there for it.
        module, parts: whose parameters it read.
        readers: first outputs of the nodes that read it.
        made: the tensor; or PyTorch's name of the result, "" where no reader says it.
        likely: it may be that nothing was left out, and these parameters are not used.
    """

    kept: _Kept
    module: str
    parts: tuple[str, ...]
    readers: frozenset[str]
    made: str = ""
    likely: bool = False

    @property
    def names(self) -> list[str]:
        """Its parameters."""
        return [f"{self.module}.{part}" for part in self.parts]

    @property
    def pair(self) -> str:
        """Its parameters, and those of what is there for it."""
        others = [f"{self.kept.module}.{part}" for part in self.kept.parts]
        return f"{', '.join(self.names)} beside {', '.join(others)}"


def readied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with its weights as initializers, and the operations that its exporter left out."""
    return with_twins(in_place(constants_stored(with_learned_outside(with_dense(model)))))


def with_twins(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model in which equal operations of several modules are several, and so are equal tensors
    that were folded from several parameters; the model itself where PyTorch's exporter left none
    out, or the file does not tell which."""
    if not model.graph.metadata_props:
        return model
    marks = marks_of(model)
    twins = list(_Finder(model, marks).run())
    if not twins:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for twin in twins:
        _add(made.graph, marks, twin)
    return made


def doubts_of(model: onnx.ModelProto) -> tuple[str, ...]:
    """What there is to say of copies that are no more than likely to have been left out."""
    entries = [e for part in (model.graph.node, model.graph.value_info) for item in part
               for e in item.metadata_props]  # fmt: skip
    pairs = list(dict.fromkeys(entry.value for entry in entries if entry.key == _LIKELY))
    if not pairs:
        return ()
    return (
        f"{'; '.join(pairs)}: the exporter seems to have left out what reads the first, being "
        "equal to what reads the second, and they are trained in a copy of that (were they never "
        "used, and the other called twice, the file would look the same: then freeze them, and "
        "export with optimize=False or onnxremat.export)",
    )


class _Finder:
    """Looks for twins.

    Args:
        marks: what the file says; parameters that nothing in it mentions are missing.
    """

    def __init__(self, model: onnx.ModelProto, marks: Marks) -> None:
        self.model, self.marks = model, marks
        self.said = [(node, about) for node in model.graph.node if (about := reading_of(node))]
        self.sizes = {t.name: math.prod(t.dims) for t in model.graph.initializer}
        self.there = {about.made for _, about in self.said} | self.sizes.keys()
        self.there |= {name for node in model.graph.node for name in node.output}
        self.there |= {*marks.signature, *marks.inputs, *marks.placeholders.values()}
        said = {token for _, about in self.said for token in about.taken}
        said.update(marks.placeholders.values())
        folded = {name for names in marks.folded.values() for name in names}
        self.missing = {
            each.name
            for token, each in marks.signature.items()
            if each.kind == PARAMETER and token not in said and each.name not in folded
        }

    def run(self) -> Iterator[_Twin]:
        """All there are."""
        if not self.missing:
            return
        for kept in [*self._calls(), *self._cut()]:
            for twin in list(self._twins(kept)):
                self.missing.difference_update(twin.names)
                yield twin
        for twin in self._folded():
            self.missing.difference_update(twin.names)
            yield twin

    def _calls(self) -> list[_Kept]:
        """The nodes of each call that reads parameters of one module."""
        calls: dict[str, list[Said]] = {}
        for node, about in self.said:
            calls.setdefault(about.call, []).append((node, about))
        found = []
        for group in calls.values():
            known = [self.marks.signature.get(token) for token in group[0][1].tensors]
            names = [each.name for each in known if each and each.kind == PARAMETER]
            if names:
                found.append(_Kept([node for node, _ in group], *_home(names)))
        return found

    def _cut(self) -> list[_Kept]:
        """Nodes that read nothing but a parameter or a tensor folded from parameters."""
        found = []
        for node in self.model.graph.node:
            tensor = node.input[0] if node.input else ""
            own = (tensor,) if tensor in self.marks.placeholders else ()
            names = own or self.marks.folded.get(tensor, ())
            alone = self.sizes.keys() >= {*filter(None, node.input)} and reading_of(node) is None
            if names and alone:
                found.append(_Kept([node], *_home(names), tensor))
        return found

    def _twins(self, kept: _Kept) -> Iterator[_Twin]:
        """What nodes stand for: modules in the place of theirs, whose parameters are missing, and
        the readers inside these; or those that say that they read a result which nothing makes."""
        sizes = [self.sizes.get(name, 0) for node in kept.nodes for name in node.input]
        roots = self._places(kept)
        readers = self._readers(kept.results, kept.nodes) if roots else []
        if max(sizes) > LARGEST or len(readers) < 2:
            return
        names = kept.results | {about.made for _, about in self._said_by(kept.nodes)}
        free = [(node, about) for node, about in readers if names.isdisjoint(about.taken)]
        for module, root in roots.items():
            inside = [each for each in free if _within(each[1], root)]
            outside = [each for each in readers if each not in inside]
            read = self._unmade(inside)
            if read and outside and read.isdisjoint(self._unmade(outside)):
                made = self._fresh(kept.tensor) if kept.tensor else ""
                if kept.tensor in self.marks.placeholders:
                    made = f"{module}.{kept.parts[0]}"
                yield _Twin(kept, module, kept.parts, _firsts(inside), made)
            elif not inside and len(roots) == 1 and not kept.tensor:
                kinds = {stem(name) for name in names} | _LEAVING
                asked = {name for name in self._unmade(free) if stem(name) in kinds}
                others = [each for each in free if not asked.isdisjoint(each[1].taken)]
                if len(asked) == 1 and len(others) < len(readers):
                    yield _Twin(kept, module, kept.parts, _firsts(others), asked.pop(), True)

    def _places(self, kept: _Kept) -> dict[str, str]:
        """Modules in the place of the nodes' that miss such parameters, and where they begin to
        differ."""
        found = {}
        for name in sorted(self.missing):
            module = name.removesuffix(f".{kept.parts[0]}")
            all_missing = self.missing.issuperset(f"{module}.{part}" for part in kept.parts)
            if module != name and all_missing and (root := _root(kept.module, module)):
                found[module] = root
        return found

    def _folded(self) -> Iterator[_Twin]:
        """Tensors folded from a parameter, one of whose readers says that it read another, and
        belongs to the module with the only parameter that is missing there."""
        for tensor, names in self.marks.folded.items():
            readers = self._readers({tensor}, ())
            own = [about for _, about in readers if about.takes(tensor)]
            if not names or not own or self.sizes[tensor] > LARGEST:
                continue
            module, parts = _home(names)
            for node, about in readers:
                inside = [name for name in self.missing if name.startswith(f"{about.scope}.")]
                read = self._unmade([(node, about)])
                other = not about.takes(tensor) and not f"{module}.".startswith(f"{about.scope}.")
                if other and about.scope and len(read) == len(inside) == 1:
                    twin, part = inside[0].rpartition(".")[::2]
                    kept = _Kept((), module, parts, tensor)
                    likely = (part,) != parts or not _root(module, twin)
                    said = _firsts([(node, about)])
                    yield _Twin(kept, twin, (part,), said, read.pop(), likely)

    def _fresh(self, name: str) -> str:
        """A name of the same stem that nothing has."""
        taken = self.there.union(*(about.taken for _, about in self.said))
        return next(made for k in count(1) if (made := f"{stem(name)}_{k}") not in taken)

    def _readers(self, names: Collection[str], nodes: Sequence[onnx.NodeProto]) -> list[Said]:
        own = {name for node in nodes for name in node.output}
        return [
            (node, about)
            for node, about in self.said
            if own.isdisjoint(node.output) and not own.union(names).isdisjoint(node.input)
        ]

    def _said_by(self, nodes: Sequence[onnx.NodeProto]) -> list[Said]:
        return [(node, about) for node in nodes if (about := reading_of(node))]

    def _unmade(self, readers: Sequence[Said]) -> set[str]:
        """What readers say that they read, and nothing makes."""
        return {name for _, about in readers for name in about.taken} - self.there


def _home(names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The module that parameters belong to, and their names in there."""
    paths = [name.split(".")[:-1] for name in names]
    depth = 0
    while all(len(path) > depth and path[depth] == paths[0][depth] for path in paths):
        depth += 1
    module = ".".join(paths[0][:depth])
    return module, tuple(sorted(name.removeprefix(f"{module}.") for name in names))


def _root(module: str, other: str) -> str:
    """The part of another module's name up to where it differs from a module's, "" where it does
    not stand in its place: the names differ in one part."""
    pairs = list(zip(module.split("."), other.split("."), strict=False))
    apart = [k for k, (a, b) in enumerate(pairs) if a != b]
    if module.count(".") != other.count(".") or len(apart) != 1:
        return ""
    return ".".join(other.split(".")[: apart[0] + 1])


def _within(about: Reading, root: str) -> bool:
    return f"{about.scope}.".startswith(f"{root}.")


def _firsts(readers: Sequence[Said]) -> frozenset[str]:
    return frozenset(node.output[0] for node, _ in readers)


# ---- carry out ---------------------------------------------------------------------------------


def _add(graph: onnx.GraphProto, marks: Marks, twin: _Twin) -> None:
    """Copies of the nodes, which say that they read the other module's parameters."""
    end = re.sub(r"\W", "_", twin.module)
    results = twin.kept.results
    renamed = {name: f"{name}_of_{end}" for name in results if name}
    if twin.kept.tensor:
        renamed[twin.kept.tensor] = twin.made
        _copy_tensor(graph, twin)
    copies, place = [], 0
    for k, node in enumerate(graph.node):
        if results.isdisjoint(node.output):
            if node.output and node.output[0] in twin.readers:
                node.input[:] = [renamed.get(name, name) for name in node.input]
            continue
        copy, place = onnx.NodeProto(), k + 1
        copy.CopyFrom(node)
        copy.name = f"{node.name}_of_{end}"
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        copy.output[:] = [renamed.get(name, name) for name in node.output]
        for entry in copy.metadata_props:
            if entry.key == READS:
                entry.value = _said(entry.value, marks, twin, end)
            elif entry.key == SCOPES:
                entry.value = _moved(entry.value, twin)
        if twin.likely:
            copy.metadata_props.add(key=_LIKELY, value=twin.pair)
        copies.append(copy)
    for copy in reversed(copies):
        graph.node.insert(place, copy)


def _copy_tensor(graph: onnx.GraphProto, twin: _Twin) -> None:
    """A copy of a folded tensor, folded from the other module's parameters."""
    stored = next(tensor for tensor in graph.initializer if tensor.name == twin.kept.tensor)
    copy = graph.initializer.add()
    copy.CopyFrom(stored)
    copy.name = twin.made
    if twin.names == [twin.made]:
        return  # a parameter as it is
    about = next((v for v in graph.value_info if v.name == twin.kept.tensor), None)
    said = next((e.value for e in about.metadata_props if e.key == FOLDED), "") if about else ""
    names = [each for each in re.findall(r"'([^']*)'", said) if "." not in each]
    made = graph.value_info.add()
    made.CopyFrom(onnx.helper.make_tensor_value_info(twin.made, copy.data_type, copy.dims))
    made.metadata_props.add(key=FOLDED, value=repr([*twin.names, *names]))
    if twin.likely:
        made.metadata_props.add(key=_LIKELY, value=twin.pair)


def _said(call: str, marks: Marks, twin: _Twin, end: str) -> str:
    """What PyTorch's node said, about the other module's tensors and result."""
    tokens = {each.name: token for token, each in marks.signature.items()}
    made = call.split(" ", 1)[0].lstrip("%")
    known = stem(twin.made) == stem(made)
    swapped = {made: twin.made if known else f"{made}_of_{end}"}
    for name, token in tokens.items():
        part = name.removeprefix(f"{twin.kept.module}.")
        if part != name and f"{twin.module}.{part}" in tokens:
            swapped[token] = tokens[f"{twin.module}.{part}"]
    return re.sub(r"%(\w+)", lambda found: f"%{swapped.get(found[1], found[1])}", call)


def _moved(scopes: str, twin: _Twin) -> str:
    """Names of nested modules, in the place of the other one."""
    after = _root(twin.kept.module, twin.module)
    before = ".".join(twin.kept.module.split(".")[: after.count(".") + 1])
    return re.sub(rf"(?<=['\"]){re.escape(before)}(?=[.'\"])", after, scopes)
