"""A model rewritten with every op recomputed, and all that a rewrite promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.graph.traits import may_recompute
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.profile import profile
from onnxremat.ort.session import Options
from onnxremat.rewrite.emit import metadata, rewrite, unpack
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.plan import Plan
from tests.toolbox import ONE

PLAIN_ORT = Options(threads=1)


def every_op_twice(graph: Graph) -> list[str]:
    """A sequence that makes everything an op reads again, right before it, where it may."""
    sequence: list[str] = []
    for op in graph.ops:
        for name in op.reads:
            made = graph.ops[graph.producer[name]] if name in graph.producer else None
            if made and may_recompute(made) and any(graph.tensors[i].dtype for i in made.reads):
                sequence.append(made.name)
        sequence.append(op.name)
    return sequence


def assert_same(model: onnx.ModelProto, *, folder: Path | None = None, exact: bool = True) -> Graph:
    """Rewrite a bound model with every op recomputed; all promises about the result hold."""
    graph = without_dead_ops(build_graph(bind(model), folder))
    plan = Plan.of(graph, every_op_twice(graph))
    made = rewrite(graph, plan)
    written = made.model()
    if folder is None:
        onnx.checker.check_model(written, full_check=True)
    else:  # external weights are looked for beside the file
        checked = folder / "checked.onnx"
        checked.write_bytes(written.SerializeToString())
        onnx.checker.check_model(str(checked), full_check=True)
    onnx.shape_inference.infer_shapes(written, strict_mode=True, data_prop=True)
    weights = [t.name for t in written.graph.initializer if not is_added(t.name)]
    assert sorted(weights) == sorted(t.name for t in graph.model.graph.initializer)
    assert unpack(metadata(written)["plan"]) == plan
    feeds = seeded_feeds(graph)
    wanted = profile(to_model(graph), feeds, PLAIN_ORT, folder=folder).outputs
    assert list(wanted) == [v.name for v in model.graph.output]
    for options in (ONE, PLAIN_ORT):
        found = profile(written, feeds, options, folder=folder).outputs
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            if exact or options is ONE:
                np.testing.assert_array_equal(found[name], value, strict=True)
            else:
                np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-5)
    ran = [k.name for k in profile(written, feeds, ONE, folder=folder).kernels]
    assert [n for n in ran if not is_added(n)] == [
        op.name for op in made.graph.ops if not is_added(op.name)
    ]
    return made.graph
