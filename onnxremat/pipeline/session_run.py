"""A model run under the options of its plan and under default options, beside the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onnxremat.ort.profile import Feeds
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.artifact import CPU, Arrays, Check, Kind
from onnxremat.pipeline.original.shared_buffers import order_check
from onnxremat.rewrite.pins import is_added, open_ends
from onnxremat.session.measure import Measurement
from onnxremat.units import format_bytes

if TYPE_CHECKING:
    from onnxremat.pipeline.in_session import InOneSession

DEFAULT_ORDER = "executed order, default options"  # a check


@dataclass(frozen=True)
class SessionRun:
    """A model run under the options of its plan and under default options, each when it is first
    asked for.

    Attributes:
        short: there is no time for more than the run under the options of its plan: no other is
            made, and its outputs are compared with what was run already.
    """

    artifact: InOneSession
    feeds: Feeds
    short: bool = False

    @cached_property
    def tuned(self) -> Measurement:
        """Under the options of the plan."""
        return self.artifact.under(self.artifact.options, self.feeds)

    def shortened(self) -> SessionRun:
        """The same without what was not run yet."""
        made = replace(self, short=True)
        vars(made)["tuned"] = self.tuned
        return made

    @cached_property
    def plain(self) -> Measurement | None:
        """Under default options, threads aside."""
        if self.short:
            return None
        options = replace(DEFAULT, threads=self.artifact.options.threads)
        return self.artifact.under(options, self.feeds)

    @property
    def peaks(self) -> Mapping[str, int]:
        return {CPU: self.tuned.peak + self.artifact.unused}

    @property
    def unknowable(self) -> frozenset[str]:
        return frozenset()

    @property
    def in_order(self) -> bool:
        return self.tuned.order_kept  # what fusion merges is no other order

    @property
    def outputs(self) -> Mapping[str, Arrays]:
        found = {"planned options": self.tuned.outputs}
        return found if self.plain is None else {**found, "default options": self.plain.outputs}

    @property
    def checks(self) -> tuple[Check, ...]:
        """The model's order against the plan's, and both against what ran."""
        ops = [op for op in self.artifact.graph.ops if not is_added(op.name)]
        same = [op.origin or op.name for op in ops] == list(self.artifact.plan.sequence)
        return (
            Check(Kind.ORDER, "model follows its plan", same, f"{len(ops)} ops"),
            *map(self._as_loaded, (order_of("executed order", self.tuned), self._default_order())),
            *sizes_of(self.tuned),
            *order_check(self.artifact.graph),
        )

    def _as_loaded(self, check: Check) -> Check:
        """Of an original that was written as it is the order is onnxruntime's own: blocked
        convolutions side by side change places from one load to the next. That its ops are those
        of the plan is promised."""
        same = len(self.tuned.profile.kernels) == len(self.artifact.graph.ops)
        if check.ok or not self.artifact.loaded or self.tuned.missing or not same:
            return check
        text = f"{check.text}, as it may: onnxruntime chooses it anew at every load of this file"
        return replace(check, ok=True, text=text)

    def _default_order(self) -> Check:
        """Under default options the order is promised only where pins can fix it."""
        assert self.plain is not None  # what is verified is not short of time
        found = order_of(DEFAULT_ORDER, self.plain)
        ends = open_ends(self.artifact.graph)
        if found.ok or not ends or self.plain.merged:
            return found
        text = f"{found.text}, as it may: '{ends[0]}' is no tensor, which pins need; the planned "
        return replace(found, ok=True, text=text + "options keep the order")

    @property
    def words(self) -> tuple[str, ...]:
        """What was in memory, and what the arena holds."""
        assert self.plain is not None
        rows = [("the planned", self.tuned), ("default", self.plain)]
        parts = [
            f"{format_bytes(found.peak)} (arena holds {format_bytes(found.arena_bytes)}) with "
            f"{name} options"
            for name, found in rows
        ]
        return ("peak " + "; ".join(parts),)

    def figures(self) -> dict[str, Any]:
        assert self.plain is not None
        return {
            "peak_measured_bytes": self.tuned.peak,
            "peak_default_options_bytes": self.plain.peak,
            "arena_bytes": self.tuned.arena_bytes,
            "arena_default_options_bytes": self.plain.arena_bytes,
        }


def sizes_of(found: Measurement) -> list[Check]:
    """Nothing, or that a value has another shape than was inferred."""
    if not found.resized:
        return []
    return [Check(Kind.OUTPUTS, "sizes as inferred", False, found.resized)]


def order_of(name: str, found: Measurement) -> Check:
    """Whether what ran did so in the planned order."""
    text = f"{len(found.profile.kernels)} kernels as planned" if found.order_kept else "differs"
    if found.extra and not found.order_kept:
        text += f": onnxruntime adds {len(found.extra)} ops as it opens the model, casts of half "
        text += "precision say, which a target other than none has in its plan"
    if found.missing:
        text += f" ({len(found.missing)} ops fused by onnxruntime at load)"
    if found.merged:
        text += f", {len(found.merged)} recomputations merged away"
    return Check(Kind.ORDER, name, found.order_kept and not found.merged, text)
