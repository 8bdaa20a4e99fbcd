"""A budget is what the process takes: every part is counted, and what is said is tried."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import models
import onnxremat
from onnxremat.cost import analytic
from onnxremat.errors import InfeasibleError, NoPlanError, OverBudgetError, UsageError
from onnxremat.grad import differentiate
from onnxremat.ort.session import TUNED
from onnxremat.pipeline.limits import Limit, limit_of
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.refusal import Refusal, Works
from onnxremat.rewrite.emit import rewrite
from onnxremat.schedule.plan import Plan
from onnxremat.session import resident
from onnxremat.session.process import SESSION, SLACK, Beside, beside, counted, updates_words
from onnxremat.session.resident import resident_rise
from onnxremat.units import parse_budget, share_of
from tests.limits import LONG
from tests.toolbox import graph_of, parse

MIB = 1 << 20
CHAIN = """g (float[{n}] x) => (float[{n}] y) {{
  a = Sin(x) b = Cos(a) c = Add(a, b) d = Exp(c) e = Mul(a, d) f = Add(e, b) y = Sin(f) }}"""


def _chain(n: int) -> str:
    return CHAIN.format(n=n)


def test_parts_add_up_and_can_be_left_out() -> None:
    graph = graph_of(_chain(1000))
    found = beside(graph, ())
    assert (found.inputs, found.state) == (4000, 0)
    assert found.session > SESSION
    assert beside(graph, ["x"]).state == 4000
    large = beside(graph_of(_chain(MIB)), ())
    assert found.session - large.session == 4000  # a small output lies beside its place in the slab
    assert found.without(["session"]).total == 4000
    facts = {
        "input_bytes": 10, "state_bytes": 4, "session_bytes": 100, "not_counted": ["inputs"],
    }  # fmt: skip
    assert counted(facts) == Beside(0, 4, 100)
    assert counted({"budget_bytes": 5}) == Beside()  # a file of an older version
    assert "--not-counted inputs,updates plans for that" in updates_words(5, 10, ["inputs"])


def test_the_update_of_gathered_gradients_counts(warm: None) -> None:
    """It runs in a session of its own, and alone reads the optimizer's state."""
    net = """g (float[4, 256] x) => (float[4, 256] y) <float[256, 256] w> {
      a = MatMul(x, w) b = Tanh(a) y = MatMul(b, w) }"""
    model = parse(net)
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    steps = [differentiate(model, loss="mse", optimizer="adamw", accumulate=n) for n in (1, 2)]
    settings = onnxremat.Settings(threads=1, measure=False)
    whole, gathering = (prepare(step, settings).beside for step in steps)
    assert not whole.update
    assert gathering.update > 2 * weight.nbytes + SESSION
    assert (
        gathering.total == gathering.without(["state"]).total + gathering.state + gathering.update
    )
    facts = {"input_bytes": 9, "state_bytes": 4, "session_bytes": 2, "update_bytes": 7}
    assert counted(facts).total == 9 + 2 + 7


def test_a_slab_that_does_not_pack_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Values of very different lives leave gaps, which the process takes as well."""
    source, file = parse(_chain(MIB)), tmp_path / "out.onnx"
    once = onnxremat.Settings(threads=1)
    packs = onnxremat.optimize(source, budget="min", settings=once).facts()
    monkeypatch.setattr("onnxremat.pipeline.in_session.unused", lambda *_: 3 * MIB)
    made = onnxremat.optimize(source, budget="min", settings=once)
    made.save(file)
    found = made.facts()
    assert (packs["unused_bytes"], found["unused_bytes"]) == (0, 3 * MIB)
    for name in ("process_bytes", "beside_bytes", "budget_bytes"):
        assert found[name] - packs[name] == 3 * MIB
    assert found["limit_bytes"] == packs["limit_bytes"]
    assert counted(found).total == found["beside_bytes"]
    assert "3.00 MiB gaps between values at planned addresses" in counted(found).words
    with pytest.raises((InfeasibleError, NoPlanError, OverBudgetError)):
        onnxremat.optimize(source, budget=packs["budget_bytes"] + 2 * MIB, settings=once)
    assert onnxremat.verify(source, file).ok


def test_bytes_are_for_the_process_and_shares_for_what_a_plan_changes() -> None:
    settings = onnxremat.Settings(threads=1, target="none", measure=False)
    prepared = prepare(parse(_chain(MIB)), settings)
    more = prepared.beside.total
    assert limit_of(prepared, parse_budget("32MiB")) == Limit(32 * MIB - more, 32 * MIB)
    share = limit_of(prepared, parse_budget("0.5x"))
    assert share == Limit(prepared.baseline_peak // 2)
    assert limit_of(prepared, parse_budget("min")) is None
    assert share.of(more + 7) == share.planned
    assert Limit(100, 120).of(25) == 95
    with pytest.raises(UsageError, match="counts no 'weights'"):
        prepare(parse(_chain(8)), onnxremat.Settings(not_counted=("weights",)))


def test_a_budget_and_what_it_is_said_to_be_are_the_same(tmp_path: Path, warm: None) -> None:
    """A share, its sum as bytes, and the smallest that a refusal names."""
    settings = onnxremat.Settings(threads=1, target="none", split_batch=())
    options = onnxremat.PlanOptions(time_limit=LONG)
    source = parse(_chain(MIB))

    def planned(budget: str | int) -> dict:
        made = onnxremat.optimize(
            source, budget=budget, settings=settings, options=options, bench_seconds=0
        )
        made.save(tmp_path / "out.onnx")
        return made.facts()

    assert planned("1.0x")["recomputed_ops"] == 0  # nothing that a file gets takes a byte of it
    share = planned("0.9x")
    assert share["limit_bytes"] == int(0.9 * share["baseline_peak_bytes"])
    assert share["budget_bytes"] == share["limit_bytes"] + share["beside_bytes"]
    assert share["input_bytes"] == 4 * MIB
    whole = planned(share["budget_bytes"])
    assert whole["budget_bytes"] == share["budget_bytes"]
    assert whole["process_bytes"] <= whole["budget_bytes"]
    with pytest.raises(InfeasibleError) as refused:
        planned(whole["beside_bytes"])
    assert "beside that 4.00 MiB inputs" in refused.value.why
    least = planned(refused.value.smallest)
    assert least["process_bytes"] <= least["budget_bytes"] == refused.value.smallest
    found = onnxremat.verify(source, tmp_path / "out.onnx", settings=settings, seeds=1)
    assert found.ok, found.checks
    assert any("fresh process" in check.name for check in found.checks)


def test_the_least_is_of_the_process() -> None:
    """Values of some hundred bytes, which to compute again takes nodes of thousands."""
    count = 40
    there = " ".join(f"x{k + 1} = Sin(x{k})" for k in range(count))
    back = " ".join(f"g{k} = Mul(g{k + 1}, x{k})" for k in reversed(range(count)))
    model = parse(
        f"g (float[64] x0) => (float[64] g0) {{ {there} g{count} = Cos(x{count}) {back} }}"
    )
    settings = onnxremat.Settings(threads=1, target="none", measure=False)
    options = onnxremat.PlanOptions(work=5)

    def planned(budget: str | int) -> dict:
        return onnxremat.optimize(model, budget=budget, settings=settings, options=options).facts()

    whole, least = planned("1x")["process_bytes"], planned("min")["process_bytes"]
    assert least <= 1.01 * whole
    with pytest.raises(InfeasibleError) as refused:
        planned(10_000)
    assert refused.value.smallest <= 1.01 * whole


@pytest.mark.parametrize(("opens", "named", "smallest"), [(True, "50", 50), (False, "1.0x", 100)])
def test_no_hint_is_beyond_what_the_original_takes(opens: bool, named: str, smallest: int) -> None:
    first, note = "raise --time-limit", "the batch stays whole"
    known = Refusal(
        "no plan", "", proven=True, works=Works.found(100), smallest=100, first=first, more=[note]
    )
    hint = (
        f"{first}, or --budget 100 (100 B, the smallest budget that a plan was found for); {note}"
    )
    assert known.error().hint == hint
    told = Refusal.of(known.error()).or_original(50, opens).error()
    said = f"--budget {named} (50 B, what the original takes: it is written as it is then)"
    assert told.hint == f"{first}, or {said}; {note}"
    assert told.smallest == smallest
    assert Refusal.of(known.error()).or_original(100, opens) is known


@pytest.mark.parametrize(
    ("fits", "named"),
    [
        (41, "1.000x (40 B for weights and values and 20 B beside them, what"),
        (39, "0.975x (39 B for weights and values and 10 B beside them, the"),
    ],
)
def test_no_share_in_a_hint_is_beyond_all_of_the_original(fits: int, named: str) -> None:
    """Whatever the session of a plan does without beside weights and values."""
    works = Works.found(fits + 10, fits=fits)
    known = Refusal("no plan", "", proven=True, works=works, smallest=fits + 10)
    told = known.or_original(60, opens=True, of_peak=40).in_unit(parse_budget("0.3x"), 40, 20)
    assert told.hint.startswith(f"--budget {named}")
    assert told.smallest == fits + 10


def test_a_hint_is_in_the_unit_that_was_asked_for() -> None:
    known = Refusal("no plan", "", proven=True, works=Works.found(100), smallest=100)
    assert known.in_unit(parse_budget(70), 200, 10) is known
    told = known.in_unit(parse_budget("0.3x"), 200, 10)
    beside = "90 B for weights and values and 10 B beside them"
    assert told.hint.startswith(f"--budget 0.450x ({beside}, the smallest budget")
    assert told.smallest == 100
    share = known.in_unit(parse_budget("1%"), 200, 10)
    assert "%" in share.hint
    original = known.or_original(50, opens=False)
    assert original.in_unit(parse_budget("0.3x"), 200, 10) is original
    assert known.in_unit(parse_budget("0.3x"), 0, 10) is known  # of what takes nothing


@given(st.integers(1, 1 << 36), st.integers(1, 1 << 36), st.sampled_from("x%"))
def test_a_share_holds_what_it_is_said_to_hold(size: int, total: int, unit: str) -> None:
    assume(size <= 100 * total)
    share = parse_budget(share_of(size, total, unit))
    assert size <= share.resolve(device_bytes=total, peak_bytes=total) <= size + total // 900 + 1


def test_no_bound_is_beyond_what_the_original_takes() -> None:
    """What is proven is of the graph as it is optimised; a hint that names less says so."""
    known = Refusal("no plan", "at least 60 B are needed", proven=True, works=Works.found(100),
                    smallest=100, lower=60)  # fmt: skip
    told = Refusal.of(known.or_original(50, opens=True).error())
    assert told.lower == told.smallest == 50
    assert told.why.startswith(known.why)
    assert "as it is optimised" in told.why
    assert known.or_original(60, opens=True).why == known.why


def test_exit_codes_of_refusals() -> None:
    """Proven or not is decided once; what others find out later changes no more than that."""
    works = Works.found(100)
    known = Refusal("no plan", "too small", proven=True, works=works, smallest=100, lower=90)
    proven, open_ = known.error(), Refusal.of(known.error()).unproven("parts take long").error()
    assert isinstance(proven, InfeasibleError)
    assert (proven.exit_code, proven.lower_bound, proven.smallest) == (3, 90, 100)
    assert isinstance(open_, NoPlanError)
    assert (open_.exit_code, open_.hint, open_.smallest) == (4, proven.hint, 100)
    assert open_.why == "no plan of the whole is possible: too small; parts take long"
    with_parts = Refusal.of(open_).leaner(Works.found(60, "regions in parts")).error()
    assert with_parts.hint.endswith("a plan was found for, regions in parts)")
    other = Refusal.of(OverBudgetError("misses it", why="measured", hint="--budget 120"))
    assert (other.proven, other.hint, other.smallest) == (False, "--budget 120", None)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A planned model that needs 64 MiB at once."""
    graph = graph_of(_chain(4 * MIB))
    made = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops]))
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    path.write_bytes(made.model({"options": json.dumps(TUNED.to_json())}).SerializeToString())
    return path, {"x": np.ones(4 * MIB, np.float32)}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc")
def test_a_process_that_takes_more_is_found_out(large: tuple[Path, dict]) -> None:
    path, feeds = large
    with_room = resident_rise(path, feeds, threads=1, room=64 * MIB + SESSION)
    assert with_room.kept, with_room.why
    assert 48 * MIB < with_room.bytes <= 64 * MIB + SESSION + SLACK
    tight = resident_rise(path, feeds, threads=1, room=40 * MIB)
    assert tight.kept is False
    assert tight.why
    assert tight.bytes > 48 * MIB  # told all the same
    assert resident._reason("Error: refused\n  why   bad_alloc\n  try   this") == "bad_alloc"
    assert resident._reason("Trace\nError: late") == "Error: late"


def test_a_system_without_limits_says_so(
    large: tuple[Path, dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxremat.pipeline.verify import _in_limit

    monkeypatch.setattr(resident, "_asked", lambda request: ({"rise": 5, "limited": False}, ""))
    found = resident_rise(large[0], {}, room=7)
    assert found.kept is None
    check = _in_limit(found, 7)
    assert check.ok
    assert resident.NO_LIMIT in check.text
    assert not _in_limit(resident.Rise(None, None, "no word"), 7).ok
    assert not _in_limit(resident.Rise(5, False, "no memory"), 7).ok
    # A limit on data held, and more was resident: what is in memory of a file is no data.
    above = _in_limit(resident.Rise(7 + resident.SLACK + 1, True), 7)
    assert above.ok
    assert "pages of its file" in above.text
    assert "pages of its file" not in _in_limit(resident.Rise(7, True), 7).text


def test_a_refused_step_says_what_a_trainer_does_without(warm: None) -> None:
    train = onnxremat.Training(optimizer="adamw")
    asked = onnxremat.Settings(
        threads=1, target="portable", train=train, measure=False, split_batch=(), fission=()
    )
    options = onnxremat.PlanOptions(work=50, threads=1)

    def hint(settings: onnxremat.Settings) -> str:
        with pytest.raises((InfeasibleError, NoPlanError)) as refused:
            onnxremat.optimize(
                models.build("mlp"), budget="0.01x", settings=settings, options=options
            )
        return refused.value.hint

    said = hint(asked)
    assert "old ones, and --not-counted updates plans for that" in said
    less = dataclasses.replace(asked, not_counted=("updates",))
    (alone,) = re.findall(r"^--budget (\S+x) ", said)
    (over,) = re.findall(r"updates plans for that, with --budget (\S+x) ", said)
    for settings, works in ((asked, alone), (less, over)):
        onnxremat.optimize(models.build("mlp"), budget=works, settings=settings, options=options)
    assert "--not-counted" not in hint(less)


def test_workspace_of_a_budget_that_nothing_keeps_is_what_the_original_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is measured then but the run of the original, whose kernels are known."""
    monkeypatch.setattr(analytic, "scratch_bytes", lambda *_: 1)
    model = parse("g (float[1, 32, 64, 64] x, float[32, 32, 3, 3] w) => (float[1, 32, 62, 62] y) "
                  "{ a = Sin(x) y = Conv(a, w) }")  # fmt: skip
    settings = onnxremat.Settings(threads=1, target="portable", budget=parse_budget("0.1x"))
    prepared = prepare(model, settings)
    assert prepared.costs.source == "analytic"
    assert prepared.baseline is not None
    (took,) = [kernel for kernel in prepared.baseline.kernels if kernel.op_type == "Conv"]
    assert took.scratch > 1
    assert prepared.costs.scratch[took.name] == took.scratch
