"""The largest batch: what it answers fits, one more does not, and it says what is proven."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxremat
from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.scaled import scaled_costs
from onnxremat.errors import InfeasibleError, StoppedError, UsageError
from onnxremat.ort.infer import bind, build_graph
from onnxremat.planner import peak
from onnxremat.session.process import PARTS
from onnxremat.studies.max_batch import MaxBatch
from tests.limits import LONG
from tests.planner.graphs import graph_file, ones
from tests.toolbox import parse

DEPTH = 8
PLANNED = {"not_counted": PARTS}  # budgets of weights and values alone: they are small here
ESTIMATED = onnxremat.Settings(measure=False, **PLANNED)
PATIENT = onnxremat.PlanOptions(time_limit=LONG)


def there_and_back(dims: str = "batch, 256", depth: int = DEPTH) -> onnx.ModelProto:
    """Sines that are all read again on the way back, so that recomputation pays."""
    lines = ["t0 = Sin(x)", *(f"t{i} = Sin(t{i - 1})" for i in range(1, depth))]
    last = f"t{depth - 1}"
    for i in reversed(range(depth - 1)):
        lines.append(f"g{i} = Mul({last}, t{i})")
        last = f"g{i}"
    body = " ".join([*lines, f"y = Neg({last})"])
    return parse(f"g (float[{dims}] x) => (float[{dims}] y) {{ {body} }}")


@pytest.fixture(scope="module")
def found(warm: None) -> MaxBatch:
    return onnxremat.max_batch(there_and_back(), budget=65536, settings=ESTIMATED, options=PATIENT)


def test_the_answer_fits_and_one_more_does_not(found: MaxBatch) -> None:
    best = found.best
    assert found.dimension == "batch"
    assert found.proven
    assert best.peak is not None
    assert best.peak <= 65536 < best.store_all_peak
    dims = {"batch": best.batch}
    made = api.plan(
        there_and_back(), budget=65536, options=PATIENT,
        settings=onnxremat.Settings(measure=False, dims=dims, **PLANNED),
    )  # fmt: skip
    assert made.peak <= 65536
    assert made.plan.provenance.overhead == pytest.approx(best.overhead, abs=1e-3)
    dims = {"batch": best.batch + 1}
    whole = onnxremat.Settings(measure=False, dims=dims, fission=(), **PLANNED)
    with pytest.raises(InfeasibleError):
        api.plan(there_and_back(), budget=65536, options=PATIENT, settings=whole)


def test_every_trial_is_told(found: MaxBatch) -> None:
    batches = [trial.batch for trial in found.trials]
    assert batches == sorted(set(batches))
    for trial in found.trials:
        assert trial.fits == (trial.batch <= found.best.batch)
        assert trial.fits or trial.verdict == "infeasible"
        assert trial.throughput is None or trial.throughput > 0
    assert found.facts()["batch"] == found.best.batch


def test_a_limit_on_extra_time(found: MaxBatch) -> None:
    tight = onnxremat.max_batch(
        there_and_back(), budget=65536, max_overhead=0.2, settings=ESTIMATED, options=PATIENT
    )
    assert tight.best.batch < found.best.batch
    assert tight.best.overhead is not None
    assert tight.best.overhead <= 0.2
    above = next(trial for trial in tight.trials if trial.batch == tight.best.batch + 1)
    assert tight.proven == (above.verdict == "too slow")
    if tight.proven:
        assert "no plan takes less than" in above.why


def test_what_recomputes_nothing_has_fewer_nodes() -> None:
    """Its process takes as much less beside weights and values."""
    settings = onnxremat.Settings(measure=False)
    found = onnxremat.max_batch(
        there_and_back(), budget=9 << 18, settings=settings, options=PATIENT
    )
    best = found.best
    assert best.overhead
    assert 0 < best.store_all_beside < best.beside
    assert best.store_all_process == best.store_all_peak + best.store_all_beside > found.budget


def test_why_a_batch_is_too_large_names_the_op() -> None:
    body = "a = MatMul(x, w)  b = Sin(a)  y = MatMul(b, v)"
    ends = "g (float[batch, 1] x, float[1, 64] w, float[64, 1] v) => (float[batch, 1] y)"
    model = parse(f"{ends} {{ {body} }}")
    found = onnxremat.max_batch(model, budget=65536, settings=ESTIMATED, options=PATIENT)
    above = next(trial for trial in found.trials if trial.batch == found.best.batch + 1)
    assert above.verdict == "infeasible"
    assert "(Sin) needs" in above.why


def test_nothing_larger_is_tried_than_asked() -> None:
    found = onnxremat.max_batch(
        there_and_back(), budget="1MiB", most=8, settings=ESTIMATED, options=PATIENT
    )
    assert found.best.batch == 8
    assert not found.proven


def test_not_even_one() -> None:
    with pytest.raises(InfeasibleError, match="batch 1 "):
        onnxremat.max_batch(there_and_back(), budget=2000, settings=ESTIMATED, options=PATIENT)


def test_stopped_before_anything_fitted() -> None:
    options = onnxremat.PlanOptions(time_limit=3, stop=lambda: True)
    with pytest.raises(StoppedError):
        onnxremat.max_batch(there_and_back(), budget=65536, settings=ESTIMATED, options=options)


def test_stopping_keeps_what_fitted() -> None:
    seen: list[str] = []
    options = onnxremat.PlanOptions(time_limit=LONG, stop=lambda: len(seen) > 3)
    found = onnxremat.max_batch(
        there_and_back(), budget=65536, settings=ESTIMATED, options=options, say=seen.append
    )
    assert found.best.batch >= 1
    assert len(seen) <= 5  # nothing is begun once it was asked to stop


@pytest.mark.parametrize(
    ("dims", "options", "words"),
    [
        ("4, 256", {}, "no open dimension to grow"),
        ("batch, wide", {}, "several open dimensions"),
        ("batch, 256", {"dimension": "seq"}, "no open dimension 'seq'"),
        ("batch, 256", {"budget": "0.6x"}, "depends on the batch"),
        ("batch, 256", {"budget": "min"}, "depends on the batch"),
    ],
)
def test_wrong_questions(dims: str, options: dict, words: str) -> None:
    given = {"budget": 65536, **options}
    with pytest.raises(UsageError, match=words):
        onnxremat.max_batch(there_and_back(dims), settings=ESTIMATED, **given)


def test_other_dimensions_are_bound() -> None:
    settings = onnxremat.Settings(measure=False, dims={"wide": 256}, **PLANNED)
    found = onnxremat.max_batch(
        there_and_back("batch, wide"), budget=65536, most=16, settings=settings, options=PATIENT
    )
    assert found.dimension == "batch"


def test_graph_files_are_scaled(tmp_path: Path, warm: None) -> None:
    """A plan for k times the batch within B is one for the file within B / k."""
    # The first value waits for the last op, or is made again: 30 kB or 21, which its reader needs.
    problem = replace(ones([[], [0], [1], [2, 0]]), size=np.asarray([[10, 10, 10, 1]]) * 1000)
    path = graph_file(problem, tmp_path / "graph.json")
    assert peak(problem, problem.store_all()) == 30_000
    found = onnxremat.max_batch(path, budget=90_000, options=PATIENT)
    assert (found.best.batch, found.proven) == (90_000 // 21_000, True)
    assert found.best.overhead == pytest.approx(1 / 4)
    whole = onnxremat.max_batch(path, budget=90_000, file_batch=2, options=PATIENT)
    assert (whole.best.batch, whole.proven) == (2 * 90_000 // 21_000, True)


def test_measured_costs_are_scaled() -> None:
    small, large = (
        build_graph(bind(there_and_back("batch, 65536"), None, {"batch": batch}), None)
        for batch in (1, 4)
    )
    estimated = analytic_costs(small)
    costs = scaled_costs(estimated, small, large)
    assert costs.seconds == pytest.approx(analytic_costs(large).seconds)
    twice = type(estimated)({k: 2 * v for k, v in estimated.seconds.items()}, {}, "measured")
    assert scaled_costs(twice, small, large).total == pytest.approx(2 * costs.total)
    assert scaled_costs(twice, small, small).seconds == twice.seconds


def test_costs_are_measured_at_a_batch_that_fits_unplanned() -> None:
    said: list[str] = []
    found = onnxremat.max_batch(
        there_and_back(depth=4),
        budget=65536,
        most=16,
        say=said.append,
        options=PATIENT,
        settings=onnxremat.Settings(**PLANNED),
    )
    (measured,) = [words for words in said if "measuring" in words]
    assert int(measured.split()[-1]) <= found.best.batch
