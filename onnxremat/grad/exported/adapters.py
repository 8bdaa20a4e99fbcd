"""Adapters of a frozen model (LoRA and the like), which a file does not tell from a trained one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import onnx

from onnxremat.grad.description import Weight
from onnxremat.grad.exported.marks import first_of

# What peft, diffusers and loralib call the tensors that they add.
_ADDED = re.compile(
    r"(^|[._])(lora_\w+|hada_w\d\w*|lokr_w\d\w*|ia3_l|vera_lambda\w*|b?oft_[rRs])([._]|$)"
)
_SAVED = re.compile(r"(^|\.)modules_to_save(\.|$)")  # peft trains these too
_DECIDED = ("in the list given", "a parameter, says the file", "asked for")


# Ops that what is multiplied, or was, may go through.
_PASSING = frozenset({"Cast", "Dropout", "Identity", "Mul", "Div", "Reshape", "Add"})


def low_rank(model: onnx.ModelProto) -> set[str]:
    """Pairs of matrices A and B in x W + x A B or x (W + A B), as adapters are whatever they are
    called, where A B has less than half the rank of W."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    stored = {name: name for name in shapes}  # by what it is turned or copied to
    source: dict[str, str] = {}  # of a value, what it is but for scales, biases and copies
    products: dict[str, tuple[str, str]] = {}  # of a product, the value and the stored matrix
    both: dict[str, tuple[str, str]] = {}  # of a product of two stored matrices, these
    found: set[str] = set()
    for node in model.graph.node:
        names = [source.get(name, name) for name in node.input]
        computed = [name for name in names if name and stored.get(name) is None]
        if node.op_type in ("Transpose", "Identity", "Cast") and node.input[0] in stored:
            stored[node.output[0]] = stored[node.input[0]]
        elif node.op_type == "MatMul" and {*node.input} <= stored.keys():
            both[node.output[0]] = stored[node.input[0]], stored[node.input[1]]
        elif node.op_type in ("MatMul", "Gemm") and node.input[1] in stored:
            products[node.output[0]] = names[0], stored[node.input[1]]
        elif node.op_type == "Add" and len(computed) == 2:
            found |= _added(computed, products, shapes)
        elif node.op_type == "Add" and computed and computed[0] in both:
            matrix = next(stored[name] for name in node.input if name in stored)
            found |= _if_narrow(both[computed[0]], matrix, shapes)
        elif node.op_type in _PASSING and len(computed) >= 1 and node.output:
            source[node.output[0]] = computed[0]
    return found


def _added(
    terms: Sequence[str],
    products: Mapping[str, tuple[str, str]],
    shapes: Mapping[str, tuple[int, ...]],
) -> set[str]:
    """The two matrices of one term, where the other term is a product of the same value."""
    for whole, other in (terms, terms[::-1]):
        x, matrix = products.get(whole, ("", ""))
        inner, last = products.get(other, ("", ""))
        before, first = products.get(inner, ("", ""))
        if x and before == x:
            return _if_narrow((first, last), matrix, shapes)
    return set()


def _if_narrow(
    pair: tuple[str, str], matrix: str, shapes: Mapping[str, tuple[int, ...]]
) -> set[str]:
    rank = min(size for name in pair for size in shapes[name])
    whole = shapes[matrix]
    return {*pair} if len(whole) == 2 and 2 * rank < min(whole) else set()


def beside_adapters(rows: Sequence[Weight], pairs: Collection[str] = ()) -> list[str]:
    """A warning where adapters are trained together with what they are added to, and nobody said
    so: libraries freeze the latter, which a file does not say.

    Args:
        pairs: adapters by what they do (:func:`low_rank`).
    """
    trained = [row for row in rows if row.status == "trained"]
    added = [
        row.label or row.name
        for row in trained
        if _ADDED.search(row.label or row.name) or not {row.name, *row.tied}.isdisjoint(pairs)
    ]
    names = {row.label or row.name: row.why for row in trained}
    called = [row.name for row in trained if (row.label or row.name) in added]
    others = [name for name in names if name not in added and not _SAVED.search(name)]
    decided = any(names[name] in _DECIDED for name in others)
    if not added or not others or decided or any(row.status == "frozen" for row in rows):
        return []
    return [
        f"{len(added)} tensors are those of adapters ({first_of(added, 2)}), and {len(others)} "
        f"others are trained with them ({first_of(others, 2)}), which the module may have frozen, "
        f"as the file does not say: {_options(called)} (or what the adapters are called) trains "
        "them alone; --parameters and onnxremat.export take the module's word"
    ]


def _options(names: Sequence[str]) -> str:
    if any("lora_" in name for name in names):
        return "--trainable '*lora_*'"
    more = " ..." * (len(names) > 2)
    return " ".join(f"--trainable '{name}'" for name in names[:2]) + more
