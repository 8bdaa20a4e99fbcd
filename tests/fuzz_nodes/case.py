"""What is drawn for a number, and kept where it is wrong."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tests.fuzz_nodes.attention
import tests.fuzz_nodes.elements
import tests.fuzz_nodes.moves
import tests.fuzz_nodes.norms
import tests.fuzz_nodes.products
import tests.fuzz_nodes.quantised
import tests.fuzz_nodes.windows
from onnxremat.grad import registry
from onnxremat.graph.ir import Op
from onnxremat.ort.blocks import block_size
from tests.fuzz_nodes.chains import chain
from tests.fuzz_nodes.draw import DRAWERS, Draw, Node

assert tests.fuzz_nodes  # its modules say what they draw
CHAINS = "chains"
KINDS = (*sorted(f"{domain}.{op}".removeprefix(".") for domain, op in DRAWERS), CHAINS)
DTYPES = (np.float32, np.float32, np.float32, np.float64, np.float16)
FOLDER = Path(__file__).parent / "found"


@dataclass(frozen=True)
class Case:
    """A model that is judged.

    Attributes:
        kind: the operator, or ``chains``.
        feeds: of its inputs, in their order.
        stored: whether inputs that are no floating-point numbers are constants of the step.
        options: further settings of :func:`onnxremat.grad.differentiate`.
    """

    kind: str
    model: onnx.ModelProto
    feeds: Sequence[np.ndarray]
    stored: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


def case(seed: int, number: int, kind: str = "") -> Case | None:
    """The case of a number; None where nothing could be drawn."""
    kind = kind or KINDS[number % len(KINDS)]
    d = Draw(f"{seed} {number} {kind}")
    if kind == CHAINS:
        return Case(kind, *chain(d), True, _options(d, kind))
    domain, _, op = kind.rpartition(".")
    d.dtype = d.of(DTYPES)
    node = DRAWERS[domain, op](d, op)
    if node is None:
        return None
    if not domain and d.chance(0.1):
        node = replace(node, opset=d.whole(7, node.opset))
    return Case(kind, *node.model(_constants(d, node)), d.chance(0.8), _options(d, kind))


def _constants(d: Draw, node: Node) -> list[int]:
    """Some of the inputs, as weights that are stored; never all floating-point ones."""
    given = enumerate(node.inputs)
    smooth = [k for k, x in given if x is not None and x.dtype.kind == "f" and k not in node.fixed]
    if d.chance(0.7) or len(smooth) < 2:
        return []
    return d.random.sample(smooth, d.whole(1, len(smooth) - 1))


def _options(d: Draw, kind: str) -> dict[str, Any]:
    """How it is differentiated: mostly as by default."""
    found: dict[str, Any] = {}
    if d.chance(0.15):
        found["portable"] = True
    elif d.chance(0.15):
        found["blocked"] = block_size()
    domain, _, op = kind.rpartition(".")
    probe = Op("probe", op, domain, (), (), (), onnx.NodeProto())
    ways = registry.variants(probe, {"": 18, domain or "": 1 if domain else 18})
    if len(ways) > 1 and d.chance(0.5):
        found["variants"] = {op: d.of(ways)}
    return found


def keep(made: Case, why: str, path: Path) -> None:
    """Write a case and what was wrong with it."""
    about = {"kind": made.kind, "stored": made.stored, "options": made.options, "why": why}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("case.json", json.dumps(about, indent=1))
        archive.writestr("model.onnx", made.model.SerializeToString())
        for index, array in enumerate(made.feeds):
            content = io.BytesIO()
            np.save(content, array)
            archive.writestr(f"{index}.npy", content.getvalue())


def kept(path: Path) -> Case:
    """The case of :func:`keep`'s file."""
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("case.json"))
        model = onnx.ModelProto.FromString(archive.read("model.onnx"))
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        order = sorted(names, key=lambda name: int(name.removesuffix(".npy")))
        feeds = [np.load(io.BytesIO(archive.read(name))) for name in order]
    return Case(about["kind"], model, feeds, about["stored"], about["options"])
