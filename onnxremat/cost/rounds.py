"""What several rounds of measuring say that ops take, and which of it can be believed.

What else a machine does only adds time. So of a round the least counts, and what two rounds do not
say alike was disturbed in one of them at least.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

SPREAD = 0.25  # by which two rounds may differ, as a share of the lesser
NEGLIGIBLE = 2e-5  # seconds that they may always differ by: two calls of a kernel
UNDISTURBED = 0.9  # of the time of a run, the calling thread has its core when nothing else runs


@dataclass
class Rounds:
    """Seconds of ops of one graph, round by round.

    Attributes:
        keys: what ops are known by; those of equal keys cost the same.
        least: seconds of each key in each round.
        core: the share of its time for which the calling thread had a core, in the best run.
    """

    keys: Mapping[str, str]
    least: dict[str, list[float]] = field(default_factory=dict)
    core: float = 1.0

    def add(self, samples: Sequence[tuple[str, Sequence[float]]]) -> None:
        """One round more: seconds of the runs of each op.

        The least of an op's runs, and the median of ops that are known by one key: where their
        inputs lie, in a cache or not, differs from op to op, not from run to run.
        """
        found = defaultdict(list)
        for name, seconds in samples:
            if name in self.keys:
                found[self.keys[name]].append(min(seconds))
        for key, each in found.items():
            self.least.setdefault(key, []).append(statistics.median(each))

    @property
    def seconds(self) -> dict[str, float]:
        """What each key takes."""
        return {key: min(rounds) for key, rounds in self.least.items()}

    @property
    def disagree(self) -> frozenset[str]:
        """Keys whose least two rounds are further apart than undisturbed ones are."""
        return frozenset(key for key, rounds in self.least.items() if not _agree(rounds))

    @property
    def doubtful(self) -> frozenset[str]:
        """Keys that are not to be relied on another time: all where the calling thread had to wait
        for a core in every run, for then all rounds may be wrong alike."""
        return frozenset(self.least) if self.core < UNDISTURBED else self.disagree

    def notes(self) -> tuple[str, ...]:
        """What of this somebody should know who reads a plan."""
        doubtful = self.doubtful
        if not doubtful:
            return ()
        seconds = self.seconds
        timed = [key for key in self.keys.values() if key in seconds]
        total = sum(seconds[key] for key in timed)
        share = ceil(sum(seconds[key] for key in timed if key in doubtful) / (total or 1.0) * 100)
        return (
            f"the machine was busy while ops were timed: the costs of {share}% of a run are "
            "rough, and are measured again next time, best on an idle machine",
        )


def _agree(rounds: Sequence[float]) -> bool:
    if len(rounds) < 2:
        return False
    first, second = sorted(rounds)[:2]
    return second - first <= max(SPREAD * first, NEGLIGIBLE)
