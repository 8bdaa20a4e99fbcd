"""Keeps small exported files of the zoo beside the tests, with the gradients PyTorch has for them:
``python -m tests.zoo.keep``. Tests that have no PyTorch read them (tests/grad/test_kept.py).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch

from onnxremat.grad import differentiate, training_of
from onnxremat.graph.ir import subgraphs
from tests.zoo import autograd
from tests.zoo.architectures import ARCHITECTURES
from tests.zoo.comparison import Exported, _first_values
from tests.zoo.export import cache_folder, exported, silence
from tests.zoo.fresh import wanted
from tests.zoo.provenance import Index
from tests.zoo.rewrites import REWRITES

FOLDER = Path(__file__).resolve().parent.parent / "grad" / "exported"
KEPT = (
    ("graph_attention", "dynamo"), ("graph_attention", "legacy"), ("embedding_bags", "dynamo"),
    ("embedding_bags", "legacy"), ("offset_bags", "legacy"), ("padded_bags", "dynamo"),
    ("gru", "dynamo"), ("gru", "legacy"), ("gru", "legacy-train"),
    ("lstm", "dynamo"), ("transformer_encoder", "dynamo"), ("transformer_encoder", "legacy"),
    ("regnet", "legacy-train"), ("deit_distilled", "legacy"), ("routed", "dynamo"),
    ("routed", "legacy"),
)  # fmt: skip
FRESH = (
    "times-1", "bias-gemm", "norm-conv", "norm-gemm", "merged-group-norms", "merged-slopes",
    "merged-zero-weights", "merged-identities", "copied-layers", "copied-modules",
    "merged-clone", "merged-clones", "one-of-two-branches", "one-of-two-norms",
    "one-of-two-heads", "one-of-two-cuts", "one-of-two-tables", "one-of-two-calls",
    "one-of-two-splits", "tied-four-names",
    "merged-with-constants", "merged-views", "folded-views",
    "folded-transposes", "folded-softplus", "folded-standardization", "folded-parts",
    "folded-expand-zeros", "folded-state", "folded-mask", "folded-small-table",
    "folded-overlaps", "folded-complex", "folded-triangles", "folded-choice",
    "folded-blocks", "stopped-transposed",
    "merged-zero-scales", "merged-norm-called-twice", "merged-states",
    "folded-slices", "folded-exponent", "stopped-gate", "folded-coordinates",
    "folded-gates-of-two", "one-of-two-sums", "merged-with-numbers", "folded-with-number",
    "plus-small",
)  # fmt: skip
FRESH_LEGACY = (
    "merged-group-norms", "copied-layers", "copied-modules", "merged-layer-norms",
    "merged-norm-called-twice",
    "one-of-two-cuts", "folded-mask", "folded-small-table", "folded-overlaps",
)  # fmt: skip
# Metadata of nodes that names files of the machine it was exported on.
LOCAL = ("pkg.torch.onnx.stack_trace",)


def main() -> None:
    """Write a file, and its inputs and gradients, for each."""
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name, exporter in KEPT:
            keep(name, exporter, cache_folder(Path(temporary)))
    for name in FRESH:
        keep_fresh(name, f"{name}.onnx", dynamo=True)
    for name in FRESH_LEGACY:
        keep_fresh(name, f"{name}-legacy.onnx", dynamo=False)


def keep(name: str, exporter: str, folder: Path) -> None:
    """Write one net."""
    net = ARCHITECTURES[name]
    module = net.module()
    model = exported(net, module, exporter, folder)
    case = Exported(net, module, model, Index(module))
    step = differentiate(model, optimizer=None, loss=net.loss)
    about = training_of(step)
    names = [parameter for parameter, _ in about.gradients]
    want = autograd.gradients(net, module, case.norms)
    every = np.zeros(case.index.size)
    for parameter, gradient in want.of.items():
        start, end = case.index.ranges[parameter]
        every[start:end] = gradient.reshape(-1)
    arrays: dict[str, np.ndarray] = {f"feed:{n}": a for n, a in case.feeds(about, step).items()}
    arrays["loss"] = np.array(want.loss)
    for tensor, value in _first_values(step, model, names).items():
        places = case.index.source(value).places
        assert (places >= 0).all(), f"{tensor} is no parameter"
        arrays[f"gradient:{tensor}"] = every[places].reshape(value.shape).astype(np.float32)
    _without_paths(model.graph)
    onnx.save(model, str(FOLDER / f"{name}-{exporter}.onnx"))
    np.savez_compressed(FOLDER / f"{name}-{exporter}.npz", kind=net.loss, **arrays)
    print(f"{name} {exporter}: {len(names)} tensors trained, loss {want.loss:.4f}")


def keep_fresh(name: str, file: str, dynamo: bool) -> None:
    """Write one fresh module, as one of the exporters has it by default."""
    about, path = REWRITES[name], FOLDER.parent / "exported_fresh" / file
    module, data = about.make()
    path.parent.mkdir(exist_ok=True)
    with silence():
        names = [f"input{k}" for k in range(len(data))]
        torch.onnx.export(
            module, data, str(path), input_names=names, dynamo=dynamo, external_data=False
        )
    model = onnx.load(path)
    want = wanted(model, module, data)
    _without_paths(model.graph)
    onnx.save(model, str(path))
    arrays = {f"feed:{n}": a for n, a in want.data.items()}
    arrays |= {f"gradient:{n}": a for n, a in want.gradients.items()}
    np.savez_compressed(
        path.with_suffix(".npz"), target=want.target, loss=want.loss, lost=about.lost, **arrays
    )
    print(f"{name}: {len(want.gradients)} parameters, loss {want.loss:.4f}")


def _without_paths(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for body in subgraphs(node):
            _without_paths(body)
        kept = [(entry.key, entry.value) for entry in node.metadata_props if entry.key not in LOCAL]
        del node.metadata_props[:]
        node.doc_string = ""
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)


if __name__ == "__main__":
    main()
