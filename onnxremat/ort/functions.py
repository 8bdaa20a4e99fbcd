"""Model functions, written out where they are called, and ONNX's own operators by one name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import onnx

from onnxremat.errors import ModelError
from onnxremat.graph.ir import all_nodes, subgraphs
from onnxremat.graph.traits import DOMAINS, ONNX
from onnxremat.limits import NESTING, NODES, check

Name = tuple[str, str, str]  # domain, name, overload
LONG = ONNX - {""}
OPSET = 17  # of what is added to a model that has none of ONNX's operators


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model without model-local functions (onnxruntime inlines them with late indices,
    which would lose the planned order), ONNX's operators in the domain "" with a version.

    A function that has the name of an operator that onnxruntime knows is none: it takes the
    operator (the standard leaves it to runtimes).

    Raises:
        ModelError: a function that calls itself, or more nodes than are taken on.
    """
    model = _called_alone(_named_once(model))
    sizes = _Sizes(model)
    check(
        sizes.of(model.graph.node), NODES, "nodes in the graph, its functions written out",
        hint="split the model", kind=ModelError,
    )  # fmt: skip
    if not model.functions:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    try:
        return _written_out(made)
    except Exception as error:  # of the library, in several unrelated types
        raise ModelError(
            "the functions of the model cannot be written out",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="export the model without functions",
        ) from error


def _named_once(model: onnx.ModelProto) -> onnx.ModelProto:
    """With "" for "ai.onnx", which means the same, and with a version of it: what is rewritten has
    nodes of it, if the model has none."""
    said = [entry.domain for entry in model.opset_import]
    holders = (model.graph, *model.functions)
    if "" in said and LONG.isdisjoint(said):
        nodes = (node for holder in holders for node in all_nodes(holder))
        if all(node.domain not in LONG for node in nodes):
            return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for holder in (made.graph, *made.functions):
        for node in all_nodes(holder):
            node.domain = _home(node.domain)
    for part in (made, *made.functions):
        for entry in part.opset_import:
            entry.domain = _home(entry.domain)
    if ONNX.isdisjoint(said) and all(node.domain for node in all_nodes(made.graph)):
        made.opset_import.append(onnx.helper.make_opsetid("", OPSET))
    return made


def _called_alone(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without functions that are named as operators."""
    versions = {_home(entry.domain): entry.version for entry in model.opset_import}
    named = [i for i, f in enumerate(model.functions) if _is_operator(f, versions)]
    if not named:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for index in reversed(named):
        del made.functions[index]
    return made


def _is_operator(function: onnx.FunctionProto, versions: Mapping[str, int]) -> bool:
    domain = _home(function.domain)
    version = versions.get(domain, 0)
    if not 0 < version < 1 << 31:
        return False
    since = _operators().get((domain, function.name), version + 1)
    return since <= version or bool(onnx.defs.has(function.name, version, domain))


@cache
def _operators() -> Mapping[tuple[str, str], int]:
    """Operators of onnxruntime, and the first version of their domain that has them."""
    import onnxruntime.capi.onnxruntime_pybind11_state as ort

    schemas = getattr(ort, "get_all_operator_schema", lambda: ())()
    found: dict[tuple[str, str], int] = {}
    for schema in schemas:
        key = _home(schema.domain), schema.name
        found[key] = min(schema.since_version, found.get(key, schema.since_version))
    return found


def _home(domain: str) -> str:
    return "" if domain in ONNX else domain


def _written_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, which is changed. Callers go before what they call: what a call leaves to
    defaults, or hands on that was not given itself, is known then."""
    from onnx import inliner

    for _ in range(NESTING):
        if not any(f.attribute_proto for f in model.functions):
            break
        called = {(node.domain, node.op_type) for f in model.functions for node in all_nodes(f)}
        names = [(f.domain, f.name) for f in model.functions]
        first = [name for name in names if name not in called] or names
        model = _with_defaults(model, model.graph)
        try:
            model = inliner.inline_selected_functions(model, first)
        except RuntimeError:  # one of another version of the operators, which stays a call
            model = _with_defaults(model, *model.functions)
            break
    return inliner.inline_local_functions(model)


def _with_defaults(
    model: onnx.ModelProto, *holders: onnx.GraphProto | onnx.FunctionProto
) -> onnx.ModelProto:
    """The model, every call in a part of it with the attributes that it leaves to their defaults:
    the inliner drops what refers to these, which then are the operator's defaults."""
    defaults = {_key(f.domain, f.name, f): f.attribute_proto for f in model.functions}
    for holder in holders:
        for node in all_nodes(holder):
            given = {entry.name for entry in node.attribute}
            wanted = defaults.get(_key(node.domain, node.op_type, node), ())
            node.attribute.extend(entry for entry in wanted if entry.name not in given)
    return model


class _Sizes:
    """Nodes that calls of functions become, bodies included."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {_key(f.domain, f.name, f): f for f in model.functions}
        self._known: dict[Name, int] = {}
        self._open: list[Name] = []

    def of(self, nodes: Iterable[onnx.NodeProto]) -> int:
        """Nodes that these become."""
        total = 0
        for node in nodes:
            name = _key(node.domain, node.op_type, node)
            total += self._called(name) if name in self._functions else 1
            total += sum(self.of(body.node) for body in subgraphs(node))
        return total

    def _called(self, name: Name) -> int:
        if name in self._open:
            raise ModelError(
                f"function '{name[1]}' of domain '{name[0]}' calls itself",
                hint="ONNX has no recursion: use a Loop",
            )
        if name not in self._known:
            check(
                len(self._open) + 1, NESTING, "functions that call each other in a row",
                hint="export the model without functions", kind=ModelError,
            )  # fmt: skip
            self._open.append(name)
            self._known[name] = self.of(self._functions[name].node)
            self._open.pop()
        return self._known[name]


def _key(domain: str, name: str, said: onnx.NodeProto | onnx.FunctionProto) -> Name:
    return domain, name, getattr(said, "overload", "")


def check_domains(model: onnx.ModelProto) -> None:
    """Every operator is one that stock onnxruntime knows, in a version that the model names, or a
    function of the model.

    Raises:
        ModelError: one is not.
    """
    local = {(f.domain, f.name) for f in model.functions}
    if ONNX.isdisjoint(entry.domain for entry in model.opset_import) and any(
        node.domain in ONNX for node in model.graph.node
    ):
        raise ModelError(
            "the model does not name the version of ONNX's operators that it uses",
            where="opset_import",
            why="it has none for ONNX's own domain; onnxruntime would take the newest it knows",
            hint="model.opset_import.append(onnx.helper.make_opsetid('', 17)), with the version "
            "that it was made for, and save it again",
        )
    for node in model.graph.node:
        if node.domain not in DOMAINS and (node.domain, node.op_type) not in local:
            raise ModelError(
                f"operator {node.op_type} of domain '{node.domain}' is not known",
                where=f"node {node.name or node.op_type}",
                why="stock onnxruntime has no kernel for it",
                hint="replace it with standard operators, or export it as a model function",
            )
