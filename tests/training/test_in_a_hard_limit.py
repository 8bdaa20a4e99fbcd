"""A training step trains in what its budget counts: parameters, gradients, state, activations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from models import build
from onnxremat import PlanOptions, optimize, verify
from onnxremat.errors import InfeasibleError
from onnxremat.grad import Settings, differentiate
from onnxremat.pipeline.settings import Settings as Prepared
from onnxremat.session.process import SLACK, UPDATES
from onnxremat.session.resident import NO_LIMIT

MIB = 1 << 20
ROWS = 256
# Imports, and what onnxruntime takes once per process, are there before the limit is set. So is the
# stack (8 MiB) of the command's thread: it is taken again once the kernel lets it go, which on a
# busy machine may be later than the thread was joined.
TRAIN = """
import json, mmap, resource, sys, threading, time
from pathlib import Path
from onnxremat.cli.app import main

def train(step, weights, data, *more):
    sys.argv = ["onnxremat", "train", step, "--weights", weights, "--data", data, "--epochs", "2",
                "--threads", "1", "--quiet", *more]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code

class Noted(threading.Thread):
    started = []

    def start(self):
        super().start()
        self.started.append(Path(f"/proc/self/task/{self.native_id}"))

tiny, large, room = sys.argv[1:4], sys.argv[4:7], int(sys.argv[7])
threading.Thread = Noted
train(*tiny)
while any(task.exists() for task in Noted.started):
    time.sleep(0.01)
assert Noted.started
status = Path("/proc/self/status").read_text().splitlines()
now = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
resource.setrlimit(resource.RLIMIT_DATA, (now + room, now + room))
try:
    mmap.mmap(-1, room + (64 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    sys.exit("this system does not limit the data of a process")
except OSError:
    pass
train(*large, "--json")
"""


def _files(folder: Path, width: int) -> tuple[Path, Path, Path]:
    """An inference model, its AdamW step, data."""
    net, step, data = (folder / f"{width}{name}" for name in ("net.onnx", "step.onnx", "data.npz"))
    model = build("mlp", batch=ROWS, features=64, width=width, layers=3, classes=10)
    made = differentiate(model, settings=Settings(optimizer="adamw"))
    onnx.save(model, net)
    onnx.save(made, step)
    draw = np.random.default_rng(0)
    names = [value.name for value in model.graph.input]
    rows = {name: draw.standard_normal((2 * ROWS, 64)).astype(np.float32) for name in names}
    np.savez(data, labels=draw.integers(0, 10, 2 * ROWS), **rows)
    return net, step, data


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_adamw_in_a_hard_limit(tmp_path: Path, warm: None) -> None:
    net, step, data = _files(tmp_path, 512)
    tiny, tiny_step, tiny_data = _files(tmp_path, 16)
    # A trainer writes new parameters and state over the old ones: they count once.
    settings, options = Prepared(threads=1, not_counted=(UPDATES,)), PlanOptions(work=40)
    made = optimize(step, budget="min", settings=settings, options=options, bench_seconds=0)
    out = tmp_path / "out.onnx"
    made.save(out)
    facts = made.facts()
    assert facts["state_bytes"] > 6 * MIB
    assert facts["beside_bytes"] > facts["state_bytes"]
    assert facts["peak_measured_bytes"] < facts["state_bytes"]
    assert facts["peak_predicted_bytes"] == pytest.approx(facts["peak_measured_bytes"], rel=1e-3)
    found = verify(step, out, settings=Prepared(threads=1), seeds=1)
    assert found.ok, found.checks
    words = [tiny_step, tiny, tiny_data, out, net, data, facts["budget_bytes"] + SLACK]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, *map(str, words)], capture_output=True, text=True, check=False
    )
    if NO_LIMIT in done.stderr:
        pytest.skip(NO_LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert np.isfinite(json.loads(done.stdout)["losses"]).all()
    less = facts["budget_bytes"] * 3 // 4
    with pytest.raises(InfeasibleError) as refused:
        optimize(step, budget=less, settings=settings, options=options, bench_seconds=0)
    assert refused.value.why
    assert less < refused.value.lower_bound <= facts["budget_bytes"]
