"""One of several processes that train as a pipeline and tell what came out: ``mpiexec -n 2 python
-m tests.workers.pipeline_run WHAT.json``, a list of what to train and how."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from onnxremat.grad.dropout import COUNTER
from onnxremat.workers.mpi import Ranks, join
from onnxremat.workers.pipelines.pipelined import PipelineParallel
from onnxremat.workers.pipelines.staged import Wanted


def main(path: Path) -> None:
    """Train each, and write what came out."""
    ranks = join()
    with ranks.together():
        train(ranks, path)


def train(ranks: Ranks, path: Path) -> None:
    """One rank's share."""
    for row in json.loads(path.read_text()):
        folder = Path(row["folder"])
        batch = dict(np.load(folder / "data.npz"))
        wanted = Wanted(**row["wanted"])
        before = _anonymous()
        trainer = PipelineParallel(
            folder / "step.onnx", ranks=ranks, wanted=wanted, rate=row["rate"], threads=1
        )
        across = trainer.mesh.across
        mine = {name: np.split(a, across.size)[across.rank] for name, a in batch.items()}
        losses = [trainer.step(mine) for _ in range(row["steps"])]
        grew = ranks.gathered(_anonymous() - before)
        held = ranks.gathered(trainer.values())
        trainer.collect()
        alive = ranks.gathered(trainer.alive)
        peak = ranks.gathered(trainer.pool.peak)
        if ranks.first:
            np.savez(folder / f"{row['name']}.npz", losses=np.array(losses), **trainer.state)
            facts = {
                "alive": {k: v for part in alive for k, v in part.items()},
                "simulated": trainer.staged.replay.peak,
                "peak": peak,
                "grew": grew,
                "planned": [each.values + each.crossing for each in trainer.staged.fitted.memory],
                "budgets": [each.total for each in trainer.staged.fitted.memory],
                "again": [len(each.ops) for each in trainer.staged.fitted.again],
                "alike": _alike(held, trainer.mesh.pipeline.size),
                "cuts": trainer.staged.cuts,
            }
            (folder / f"{row['name']}.json").write_text(json.dumps(facts))


def _anonymous() -> int:
    """Bytes of memory of no file that this process has (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


def _alike(held: list[dict[str, np.ndarray]], length: int) -> bool:
    """Whether the same stages hold the same bits in all pipelines, which only draw apart."""
    return all(
        values.keys() == held[k % length].keys()
        and all(np.array_equal(a, held[k % length][n]) for n, a in values.items() if n != COUNTER)
        for k, values in enumerate(held)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
