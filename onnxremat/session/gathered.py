"""What a trainer takes for the update of a step that gathers gradients (``--accumulate``).

The update is a graph of its own, which a second session runs after so many steps: the optimizer's
state is its input alone, and onnxruntime keeps its nodes and values beside those of the step.
"""

from __future__ import annotations

from functools import lru_cache

import onnx

from onnxremat.grad import updated_inputs
from onnxremat.grad.description import training_of
from onnxremat.grad.update import KEY, update_of
from onnxremat.graph.ir import Graph
from onnxremat.ort.infer import build_graph
from onnxremat.schedule.simulate import simulate
from onnxremat.session.process import Beside, beside, session_bytes


def beside_step(graph: Graph, step: onnx.ModelProto) -> Beside:
    """What a process takes beside weights and values of a session of ``graph``.

    Args:
        step: what it was made of, a training step or any other model.
    """
    return beside(graph, updated_inputs(step), update_bytes(step))


def update_bytes(step: onnx.ModelProto) -> int:
    """Bytes of the optimizer's state that the step does not read, of the session of its update,
    and of that one's values, all results among them; 0 for other models.

    Raises:
        ModelError: the metadata is damaged.
    """
    packed = next((entry.value for entry in step.metadata_props if entry.key == KEY), "")
    return _bytes(packed, frozenset(value.name for value in step.graph.input)) if packed else 0


@lru_cache(maxsize=4)
def _bytes(packed: str, known: frozenset[str]) -> int:
    step = onnx.ModelProto()
    step.metadata_props.add(key=KEY, value=packed)
    update = update_of(step)
    assert update is not None
    graph = build_graph(update)
    states = {variable.input for variable in training_of(update).states} - known
    held = sum(graph.tensors[name].bytes for name in states)
    return held + session_bytes(graph) + simulate(graph).peak
