"""An independent meter (every heap block of the process) against onnxremat's own figures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.offline import optimise
from onnxremat.ort.profile import profile
from onnxremat.ort.session import Options
from onnxremat.rewrite.emit import rewrite
from onnxremat.schedule.plan import Plan
from onnxremat.session.measure import weight_bytes
from tests.conftest import ROOT
from tests.toolbox import ONE, PLAIN, random_sequence, training_chain

HERE = Path(__file__).parent
LIMIT = 0.01
# What a session holds besides: the graph, kernels, its plan.
BOOKKEEPING = 400_000


@pytest.fixture(scope="module")
def meter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the heap meter needs gcc and glibc")
    library = tmp_path_factory.mktemp("meter") / "heap_meter.so"
    built = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", library, HERE / "heap_meter.c"],
        capture_output=True,
        text=True,
    )
    if built.returncode:
        pytest.skip(f"the heap meter does not compile here: {built.stderr[:200]}")
    return library


def metered(
    meter: Path, folder: Path, graph: Graph, options: Options, *, external: bool = False
) -> dict[str, int]:
    path = folder / "model.onnx"
    onnx.save(
        to_model(graph), path, save_as_external_data=external, location="weights", size_threshold=64
    )
    np.savez(folder / "feeds.npz", **seeded_feeds(graph))
    bare = replace(options, arena=False, pattern=False).to_json()
    done = subprocess.run(
        [sys.executable, HERE / "heap_run.py", path, folder / "feeds.npz", json.dumps(bare)],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(meter), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ready(name: str, target: str, **arguments: object) -> Graph:
    graph = without_dead_ops(build_graph(bind(models.build(name, **arguments))))
    return without_dead_ops(build_graph(optimise(to_model(graph), target, None)))


MODELS = {
    "resnet18": {"size": 96, "width": 32, "batch": 4},
    "unet": {"size": 96, "width": 8, "batch": 2},
    "bert": {"sequence": 128, "hidden": 128, "layers": 2, "heads": 4, "vocab": 200, "batch": 4},
    "squeezenet": {"size": 128, "batch": 2},
}


@pytest.mark.parametrize("options", [ONE, PLAIN], ids=["tuned", "reuse"])
@pytest.mark.parametrize("name", MODELS)
def test_peak_of_a_run(meter: Path, tmp_path: Path, name: str, options: Options) -> None:
    graph = ready(name, "portable", **MODELS[name])
    counted = profile(to_model(graph), seeded_feeds(graph), options).live_peak
    assert counted == pytest.approx(metered(meter, tmp_path, graph, options)["run"], rel=LIMIT)


def test_peak_of_a_plan_with_recomputation(meter: Path, tmp_path: Path) -> None:
    graph = training_chain(layers=8, width=128, batch=1024)
    sequence = random_sequence(graph, Random(3), 0.3)
    made = rewrite(graph, Plan.of(graph, sequence)).graph
    counted = profile(to_model(made), seeded_feeds(made), ONE).live_peak
    assert counted == pytest.approx(metered(meter, tmp_path, made, ONE)["run"], rel=LIMIT)


# Weights


def weighted(*uses: str, count: int = 4, side: int = 512) -> Graph:
    """``count`` square weights, each read by every op of ``uses`` (written over ``w``)."""
    rng = np.random.default_rng(0)
    nodes, weights, ends = [], [], []
    for i in range(count):
        value = (rng.standard_normal((side, side)) / side).astype(np.float32)
        if "Conv" in uses:
            value = value.reshape(side, side // 4, 2, 2)
        weights.append(numpy_helper.from_array(value, f"w{i}"))
        for use in uses:
            out = f"{use}{i}"
            if use == "Transpose":
                nodes.append(helper.make_node("Transpose", [f"w{i}"], [out], perm=[1, 0]))
            else:
                nodes.append(helper.make_node(use.rstrip("0123456789"), ["x", f"w{i}"], [out]))
            nodes.append(helper.make_node("ReduceMax", [out], [f"{out}m"], keepdims=0))
            ends.append(f"{out}m")
    shape = (4, side) if "Conv" not in uses else (1, side // 4, 8, 8)
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ()) for name in ends],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    return build_graph(helper.make_model(graph, opset_imports=opsets, ir_version=9))


@pytest.mark.parametrize(
    ("uses", "copies"),
    [
        (("MatMul",), 1),  # packed, the original given back
        (("MatMul1", "MatMul2"), 1),  # one packed copy for both
        (("Gemm",), 1),
        (("Transpose",), 1),
        (("Conv",), 1),
        (("MatMul", "Transpose"), 2),  # packed, and as it was
        (("MatMul", "Gemm"), 2),  # packed by each
        (("MatMul1", "MatMul2", "Gemm", "Transpose"), 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("external", [False, True], ids=["inline", "external"])
def test_resident_weights(
    meter: Path, tmp_path: Path, uses: tuple[str, ...], copies: int, external: bool
) -> None:
    graph = weighted(*uses)
    found = metered(meter, tmp_path, graph, ONE, external=external)
    counted = weight_bytes(graph, profile(to_model(graph), seeded_feeds(graph), ONE))
    assert counted == pytest.approx(copies * graph.weight_bytes, rel=LIMIT)
    if external:  # what is not packed is mapped from the file: on the heap it is less
        assert found["held"] < counted + BOOKKEEPING
    else:
        assert found["held"] == pytest.approx(counted, rel=LIMIT, abs=BOOKKEEPING)
