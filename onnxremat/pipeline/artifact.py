"""A plan made ready to run, whatever it runs on: one session, or partitions over devices.

:class:`~onnxremat.pipeline.in_session.InOneSession` and
:class:`~onnxremat.pipeline.devices.over_devices.OverDevices` are the two kinds; the closed loop,
``verify`` and the result know neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self

import onnx

from onnxremat.errors import OverBudgetError, VerificationError
from onnxremat.ort.profile import Feeds
from onnxremat.pipeline.bench import Contender
from onnxremat.pipeline.prepared import Prepared
from onnxremat.schedule.plan import Plan
from onnxremat.session.compare import Difference

CPU = "cpu"  # the device of plans for one session
NEAR = 0.02  # share by which a predicted peak may differ from the measured one
FEW = 1 << 10  # bytes that are no matter beside the megabytes that any session takes
Arrays = Mapping[str, Any]


class Kind(StrEnum):
    """What a check is about."""

    OUTPUTS = "outputs"
    ORDER = "order"
    PLACEMENT = "placement"
    PREDICTION = "prediction"
    BUDGET = "budget"


@dataclass(frozen=True)
class Check:
    """One thing verified."""

    kind: Kind
    name: str
    ok: bool
    text: str


@dataclass(frozen=True)
class Verified:
    """What a candidate's own run shows of it.

    Attributes:
        same: the worst of its outputs against the same graph in one session, nothing recomputed.
        changing: what changes from run to run in that graph already, "" for nothing; such outputs
            may differ as much as between two runs.
    """

    same: Difference
    checks: tuple[Check, ...]
    changing: str = ""


class Measured(Protocol):
    """A run on given inputs; parts of it may be run when they are first asked for."""

    @property
    def peaks(self) -> Mapping[str, int]:
        """Bytes per device."""

    @property
    def unknowable(self) -> frozenset[str]:
        """Devices whose bytes cannot be predicted as they can on the processor."""

    @property
    def in_order(self) -> bool:
        """Ops ran in the order that was planned."""

    @property
    def outputs(self) -> Mapping[str, Arrays]:
        """Outputs of every way it can be run, by the name of the way."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """What ran against what was planned: order, placement."""

    @property
    def words(self) -> tuple[str, ...]:
        """Further figures, for people."""

    def figures(self) -> dict[str, Any]:
        """The same as plain data."""


class Artifact(Protocol):
    """A plan made ready to run."""

    @property
    def plan(self) -> Plan:
        """What it carries out."""

    @property
    def seconds(self) -> float:
        """Of a run, as far as is known: planned, or told by a trial."""

    @property
    def times(self) -> Mapping[str, float]:
        """Seconds of one run per op."""

    @property
    def beside(self) -> int:
        """Bytes beside weights and values that its budget counts (:mod:`.session.process`)."""

    def predict(self) -> Mapping[str, int]:
        """Bytes per device, by the simulator; empty where it was read from a file."""

    def measure(self, feeds: Feeds) -> Measured:
        """Run it under the meter.

        Raises:
            ModelError, MissingComponentError: it cannot be run.
        """

    def verified(self, prepared: Prepared, run: Any) -> Verified:
        """Whether a run of it gave what the model gives when nothing is recomputed or moved.

        Args:
            run: what :meth:`measure` gave.
        """

    def contenders(self, prepared: Prepared) -> list[Contender]:
        """What to time it against, itself among them."""

    def allows(self, difference: Difference) -> bool:
        """Whether outputs this far from the original's can be its own rounding."""

    def model(self, facts: Mapping[str, Any] | None = None) -> onnx.ModelProto:
        """The model to write, plan and ``facts`` in its metadata."""

    def told(self, **facts: Any) -> Self:
        """The same with other provenance."""


def excess(found: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, int]:
    """Bytes by which each device that is over its limit is over it."""
    return {
        name: found[name] - limit
        for name, limit in limits.items()
        if name in found and found[name] > limit
    }


def require(checks: tuple[Check, ...], what: str, hint: str = "") -> None:
    """Raises:
    OverBudgetError: a device is over its budget.
    VerificationError: another check did not pass.
    """
    failed = [check for check in checks if not check.ok]
    why = "; ".join(f"{check.name}: {check.text}" for check in failed)
    if any(check.kind is Kind.BUDGET for check in failed):
        raise OverBudgetError("the measured peak misses the budget", why=why, hint=hint)
    if failed:
        raise VerificationError(what, why=why, hint=hint)
