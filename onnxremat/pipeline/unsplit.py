"""A model read, run once and optimised: what comes before order, prices and parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import onnx

from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.ort.infer import require_shapes, with_shapes
from onnxremat.ort.offline import HOST, Optimised, optimised_for
from onnxremat.ort.profile import Feeds, Profile
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.in_place import in_place
from onnxremat.pipeline.lean_weights import Lean, lean_weights
from onnxremat.pipeline.original.as_loaded import Loaded, as_loaded
from onnxremat.pipeline.original.sizes import known_sizes, seen_sizes, with_measured_shapes
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.time_left import is_slow
from onnxremat.rewrite.added_zeros import without_added_zeros
from onnxremat.schedule.updates import written_over
from onnxremat.session.measure import weight_bytes, weights_foreseen

if TYPE_CHECKING:
    from onnxremat.pipeline.settings import Settings


@dataclass(frozen=True)
class AsRead:
    """A model read and run.

    Attributes:
        name: file name, for people.
        home: where external weights of ``source`` are.
        source: bound, not optimised.
        plain: the same with known sequences as plain tensors, no size of it from a run.
        feeds: inputs for measuring, None when nothing is measured.
        baseline: a run of the original under default options, None when nothing is measured.
        came: bytes of the file as it came under default options, where what is planned is not that
            (:mod:`onnxremat.pipeline.original.lost_sums`); None where it is, or nothing is
            measured.
        files: that it and its weights were read from.
    """

    name: str
    home: Path | None
    source: Graph
    plain: Graph
    feeds: Feeds | None
    baseline: Profile | None
    came: int | None
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Unsplit(AsRead):
    """A model read, run and optimised: what planning begins with, its batch whole or in parts.

    Attributes:
        made: optimised for the target.
        graph: the same, every size known.
        listed: ``plain`` with the sizes that a run has shown, in the file's order.
        measured: bytes of the original under default options; None where it was not run.
        forward: the model that a training step was made of here, None for what was read.
        unforeseen: bytes of weights that the original's session held beyond what is known of its
            kernels; 0 where it was not run.
        lean: what was done to the weights of ``graph`` for the budget.
    """

    made: Optimised
    graph: Graph
    listed: Graph
    measured: int | None
    forward: onnx.ModelProto | None = None
    unforeseen: int = 0
    lean: Lean | None = None

    @cached_property
    def peak(self) -> int:
        """Bytes of the original under default options, measured where possible."""
        return self.loaded.run().peak if self.measured is None else self.measured

    @cached_property
    def loaded(self) -> Loaded:
        """What a session without any options runs of it."""
        graph = self.lean.before if self.lean else self.graph
        return as_loaded(self.listed, self.home, self.made, graph)

    def leaner(self, lean: Lean) -> Unsplit:
        """The same with other weights; what is known of the original is."""
        made = replace(self.made, folder=lean.folder)
        return known_of(self, replace(self, graph=lean.graph, made=made, lean=lean))

    @cached_property
    def original(self) -> onnx.ModelProto:
        """The bound model, not optimised."""
        return to_model(self.source)


def optimised(read: AsRead, settings: Settings, log: Phases) -> Unsplit:
    """The original optimised for its target.

    Args:
        read: what its run has saved of it is changed.
    """
    log("optimising the graph as onnxruntime does at load")
    original, home, feeds, baseline = read.source, read.home, read.feeds, read.baseline
    listed = with_shapes(read.plain, known_sizes(original), seen_sizes(original))
    peak, saved, unforeseen = None, None, 0
    if baseline is not None:
        known = weights_foreseen(original, baseline, level=DEFAULT.level, folder=home)
        peak = max(known, baseline.weight_bytes) + baseline.live_peak
        unforeseen = max(0, baseline.weight_bytes - known)
        saved = baseline.fused if settings.target == HOST and read.plain is original else None
        baseline = replace(baseline, fused=None)
    made = optimised_for(
        to_model(listed), settings.target, home,
        to_write=settings.to_write and not is_slow(log), saved=saved,
    )  # fmt: skip
    graph = without_dead_ops(made.graph)
    if settings.target != "none":
        graph = without_added_zeros(graph, made.folder)
    sizes = {n: found for n, found in known_sizes(listed).items() if found[1]}
    graph = with_shapes(graph, sizes, seen_sizes(listed))
    if feeds is not None:
        graph = with_measured_shapes(graph, to_model(graph), feeds, made.folder)
    require_shapes(graph)
    updates = in_place(original.model, settings.not_counted).values()
    graph, listed = written_over(graph, updates), written_over(listed, updates)
    original = written_over(original, updates)
    whole = Unsplit(
        read.name, home, original, read.plain, feeds, baseline, read.came, read.files,
        made, graph, listed, peak, unforeseen=unforeseen,
    )  # fmt: skip
    return whole.leaner(lean_weights(whole, settings))


K = TypeVar("K")


def known_of(made: K, same: K) -> K:
    """What was worked out of the one, known of the other, too, of which it is as true."""
    for name, value in vars(made).items():
        vars(same).setdefault(name, value)
    return same


def peak_of(original: Graph, run: Profile, home: Path | None) -> int:
    """Bytes of weights and values in a run of the original under default options."""
    return weight_bytes(original, run, level=DEFAULT.level, folder=home) + run.live_peak
