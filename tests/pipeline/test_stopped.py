"""Ctrl-C beside a plan that is there: it is kept, whatever is being made ready."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial

import onnx
import pytest

from onnxremat import api
from onnxremat.cli.console import Interrupt
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import EndedError, NoPlanError
from onnxremat.pipeline import priced
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.ways import plan_within_budget
from onnxremat.planner.options import PlanOptions
from onnxremat.session.process import PARTS
from onnxremat.units import one_budget
from tests.limits import LONG
from tests.pipeline.test_batch_in_parts import dear
from tests.pipeline.test_fission import WHOLE, chain
from tests.toolbox import parse, wide_chain

SETTINGS = Settings(threads=1, target="portable", not_counted=PARTS)


def pressed(
    model: onnx.ModelProto, budget: int, settings: Settings, at: str, nth: int = 1
) -> api.OptimizeResult:
    """Optimised, with a Ctrl-C when something is told for the nth time."""
    told: list[str] = []
    interrupt = Interrupt()

    def say(text: str) -> None:
        told.append(text)
        if text == at and told.count(at) == nth:
            interrupt.handle(signal.SIGINT, None)

    log = Phases(say)
    log.ending = interrupt.ending
    options = PlanOptions(time_limit=LONG, threads=1, stop=interrupt)
    result = api.optimize(
        model, budget=budget, settings=settings, options=options, bench_seconds=LONG, say=log
    )
    assert interrupt.asked
    assert not result.timings  # nobody waits for them
    return result


@pytest.mark.parametrize("batch", [True, False], ids=["batch", "regions"])
def test_parts_that_fit_are_kept_while_their_costs_are_measured(
    batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No plan of the whole fits; in parts it fits as it is, and costs need not be known."""
    monkeypatch.setattr(
        priced, "measure_costs", lambda graph, *_, **__: (analytic_costs(graph), None)
    )
    model = wide_chain() if batch else chain()
    budget = int(0.5 * prepare(model, SETTINGS).store_all_peak) if batch else WHOLE * 7 // 8
    facts = pressed(model, budget, SETTINGS, "measuring the cost of every op", 2).facts()
    assert facts["peak_measured_bytes"] <= budget
    assert facts["bit_equal"]
    assert facts["cost_source"] == "analytic"
    assert any("interrupted while costs were measured" in note for note in facts["notes"])


def test_the_plan_of_the_whole_is_kept_while_parts_are_made_ready() -> None:
    body = "\n".join(f"a{i} = Erf(x{i})\nx{i + 1} = Sin(a{i})" for i in range(4))
    ends = "\n".join(f"s{i + 1} = Add(s{i}, a{3 - i})" for i in range(4))
    model = parse(f"""g (float[8, 4096] x0) => (float[8, 4096] s4) {{
        {body}
        s0 = Cos(x4)
        {ends}
    }}""")
    settings = replace(SETTINGS, costs=dear)
    budget = int(0.7 * prepare(model, settings).store_all_peak)
    facts = pressed(model, budget, settings, "splitting the batch").facts()
    assert facts["peak_measured_bytes"] <= budget
    assert facts["recomputed_ops"] > 0


def test_what_ends_and_how() -> None:
    interrupt = Interrupt()
    assert interrupt.gives_up  # nobody has asked yet
    interrupt()
    assert not interrupt.gives_up
    with interrupt.ending(False):
        assert interrupt.gives_up  # whoever asked before, there is nothing to keep
        with interrupt.ending(True), pytest.raises(EndedError):
            interrupt.handle(signal.SIGINT, None)
    assert interrupt.gives_up  # twice ends everything


def test_what_parts_might_have_done_is_not_called_impossible() -> None:
    """At whatever moment somebody stops it: there is a plan, or none was found."""
    made = prepare(wide_chain(), SETTINGS)
    asked = one_budget(int(0.4 * made.store_all_peak))
    for looks in range(3):
        answers = iter([False] * looks)
        options = PlanOptions(time_limit=LONG, threads=1, stop=partial(next, answers, True))
        with suppress(NoPlanError):
            plan_within_budget(made, asked, options)
