"""A partitioned model run under the meter: profiles, providers, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onnxremat.device.machine import Machine
from onnxremat.execute.device_memory import DeviceBytes, device_bytes
from onnxremat.execute.executor import Executor, Opening
from onnxremat.execute.inside import Inside, measured_inside, opaque_inside, structures
from onnxremat.execute.pools import pooled
from onnxremat.graph.temporary import scratch_folder
from onnxremat.ort.profile import Profile
from onnxremat.rewrite.partition import Partition, Partitioned


@dataclass(frozen=True)
class Recorded:
    """A run of a partitioned model under the meter.

    Attributes:
        profiles: per action.
        taken: node to provider, per action.
        bytes: per device.
        outputs: what it returned.
        inside: what each partition held, by action.
    """

    profiles: dict[int, Profile]
    taken: dict[int, dict[str, str]]
    bytes: dict[str, DeviceBytes]
    outputs: dict[str, np.ndarray]
    inside: dict[int, Inside]


def record(
    parts: Partitioned,
    machine: Machine,
    feeds: Mapping[str, np.ndarray],
    *,
    folder: Path | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    runs: int = 1,
) -> Recorded:
    """Run under the meter, one action after the other.

    Args:
        runs: measured runs after a first one; bytes are of the last.

    Raises:
        MissingComponentError, ModelError: see :class:`Executor`.
    """
    with (
        scratch_folder() as scratch,
        Executor(parts, machine, Opening(folder, record=Path(scratch)), state=state) as executor,
    ):
        outputs: dict[str, np.ndarray] = {}
        for _ in range(1 + runs):
            outputs.clear()  # or they would be in memory as the next run begins
            outputs = executor.run(feeds)
        taken = {index: executor.taken(index) for index in executor.stages}
        profiles = executor.profiles(warmup=1)
    inside, pool = {}, pooled(parts, machine)
    updated = [new for old, new in parts.pairs if old in (state or {})]
    for index, part in enumerate(parts.actions):
        if isinstance(part, Partition):
            device = machine.device(part.device)
            if device.opaque:
                inside[index] = opaque_inside(part, device, folder)
            else:
                session = structures(part, device, parts.counted)
                held = measured_inside(part, profiles[index], updated, pool)
                inside[index] = replace(held, session=session)
    return Recorded(profiles, taken, device_bytes(parts, machine, inside), outputs, inside)
