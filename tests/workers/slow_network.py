"""One of several processes whose sums travel slowly: ``mpiexec -n 2 python -m
tests.workers.slow_network FOLDER``, which has step.onnx and data.npz."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import numpy as np

from onnxremat.training.data import open_data
from onnxremat.workers.courier import Delay, Transfer
from onnxremat.workers.mpi import Ranks, join
from onnxremat.workers.spans import Spans
from onnxremat.workers.sums.data_parallel import DataParallel, Overlap, Shard


class Held(Delay):
    """No transfer ends before the weight gradients of the first layer are made."""

    made = threading.Event()

    def of(self, size: int) -> float:
        """For ever, until then."""
        return 0.0 if self.made.is_set() else 1e9


class Watched(Spans):
    """Lets transfers go on when a batch is done, and holds them when the next one begins."""

    def add(self, lane: str, name: str, begin: float, end: float) -> None:
        """A part has run."""
        super().add(lane, name, begin, end)
        if name == "W0":
            Held.made.set()
        elif name == "F0":
            Held.made.clear()


def main(folder: Path) -> None:
    """Train two epochs, and write what each rank did when, and what it holds."""
    ranks = join()
    with ranks.together():
        train(ranks, folder)


def train(ranks: Ranks, folder: Path) -> None:
    """One rank's share."""
    Held.made.set()  # while the network is measured
    trainer = DataParallel(
        folder / "step.onnx", ranks=ranks, rate=0.1, threads=1,
        overlap=Overlap(layers=8, delay=Held(), choose=False),
    )  # fmt: skip
    Held.made.clear()
    runs, sums = trainer.overlapped, list[Transfer]()
    assert runs is not None
    runs.spans = Watched(on=True)
    runs._courier.finished = sums.append
    data = open_data(str(folder / "data.npz"), trainer.batch_size, seed=3)
    trainer.fit(Shard(data, ranks), 2)
    np.savez(folder / f"rank{ranks.rank}.npz", **trainer.values())
    parts = [[s.name, s.begin, s.end] for s in runs.spans.rows if s.lane == "compute"]
    travelled = [[each.name, each.asked, each.end] for each in sums]
    (folder / f"told{ranks.rank}.json").write_text(json.dumps([parts, travelled]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
