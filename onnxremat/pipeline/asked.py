"""What a rewrite asks onnxruntime about a graph, and what is not asked for want of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from onnxremat.errors import ModelError
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.unforeseen import SHOWN
from onnxremat.ort.offline import lasting_tensors
from onnxremat.ort.profile import Profile
from onnxremat.ort.session import Options
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.time_left import no_time
from onnxremat.schedule.updates import given_memory
from onnxremat.session.measure import profiled

SLOW = 20.0  # seconds of a run from which the default order is predicted, not tried
# Seconds, times the square of its ops, that a session with default options takes to look for
# buffers to take over where it does not know shapes: 1 s for 3,000 ops, 10 s for 6,000.
UNFORESEEN = 2e-7
BRIEF, LONGEST = 1.0, 10.0  # seconds of it that do not matter, and from which shapes stay known


def opening(graph: Graph) -> float:
    """Seconds that a session with default options takes to look for buffers to take over."""
    return UNFORESEEN * len(graph.ops) ** 2 if SHOWN in graph.tensors else 0.0


@dataclass
class Asked:
    """Answers from onnxruntime itself, on the model's inputs.

    Attributes:
        last: the graph that was run last as a session with default options runs it, and its run.
    """

    prepared: Prepared
    log: Phases
    last: tuple[Graph, Profile] | None = None

    def lasting(self, graph: Graph) -> set[str]:
        """Tensors left after fusion; in which order ops are listed does not matter to it.

        Without time those of the graph that nothing was added to, as far as they have no fewer
        readers here: what has more of them is fused no sooner.

        Raises:
            ModelError: a session with default options would take too long to open it, or it hides
                shapes and there is no time to see what is fused then.
        """
        known, whole = self.prepared.lasting, self.prepared.graph
        shown = SHOWN in graph.tensors
        if known is not None and not shown and not any(op.origin for op in graph.ops):
            return set(known)
        if opening(graph) > LONGEST:
            raise ModelError("a session with default options takes too long to open it")
        if no_time(self.prepared, self.log):
            if shown:  # without shapes other ops may be fused, which nothing here tells
                raise ModelError("there is no time to see what is fused of it")
            here, before = graph.readers, whole.readers
            return {n for n in known or () if len(here.get(n, ())) >= len(before.get(n, ()))}
        model, folder = to_model(graph), self.prepared.folder
        return set(self.prepared.answers.left_of(model, lambda: lasting_tensors(model, folder)))

    def executed(self, graph: Graph) -> Sequence[str]:
        """Executed order; the listed one for models too slow to try out, and without time. Which
        buffers are taken over does not change it."""
        slow = self.prepared.costs.total > SLOW or no_time(self.prepared, self.log)
        if self.prepared.feeds is None or slow:
            return [op.name for op in graph.ops]
        brief = opening(graph) <= BRIEF
        default = self.prepared.default
        options = default if brief else replace(default, reuse=False)
        model = to_model(graph)
        order, ran = self.prepared.answers.run_of(model, lambda: self._ran(graph, model, options))
        if brief and ran is not None:
            self.last = graph, ran
        return order

    def _ran(self, graph: Graph, model: onnx.ModelProto, options: Options) -> Profile:
        prepared = self.prepared
        assert prepared.feeds is not None
        return profiled(model, prepared.feeds, options, prepared.folder, given_memory(graph))
