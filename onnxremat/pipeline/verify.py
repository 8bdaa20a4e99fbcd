"""Original and result side by side: outputs, order, peaks."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxremat.device.host import memory_bytes
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import read_model
from onnxremat.ort.feeds import load_feeds, seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.session import DEFAULT, Options, open_session, session_options
from onnxremat.pipeline.prepare import Settings, Source
from onnxremat.pipeline.reference import reference_model, reference_outputs
from onnxremat.rewrite.emit import metadata, unpack
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.plan import Plan
from onnxremat.session.compare import Difference, compare
from onnxremat.session.load import options_of
from onnxremat.session.measure import Measurement, measure
from onnxremat.session.repeats import RUNS, Repeats, repeats, why
from onnxremat.session.resident import resident_rise
from onnxremat.units import one_budget


@dataclass(frozen=True)
class Check:
    """One thing verified."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True)
class Verification:
    """What :func:`verify` found.

    Attributes:
        checks: in the order they were made.
        tuned: the run under the options of the plan.
        default: the run under onnxruntime's default options.
        facts: what the model says about itself.
        resident: bytes a fresh process rises by: through ``onnxremat.load`` (``loaded``), a plain
            session with the options of the plan (``planned``), under default options
            (``default``); None where unknown.
    """

    checks: tuple[Check, ...]
    tuned: Measurement
    default: Measurement
    facts: dict[str, Any]
    resident: dict[str, int | None]

    @property
    def ok(self) -> bool:
        """Every check passed."""
        return all(check.ok for check in self.checks)


def verify(
    original: Source,
    result: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    seeds: int = 2,
    budget: str | int | None = None,
) -> Verification:
    """Run original and result in stock onnxruntime and compare: outputs on seeded inputs,
    executed against planned order, predicted against measured peak, peak against budget.

    Args:
        original: the model before.
        result: a file that onnxremat wrote.
        seeds: how many sets of inputs.
        budget: instead of the one the plan was made for.

    Raises:
        UsageError, ModelError: files that cannot be compared.
    """
    made = read_model(result)
    options, facts = options_of(made, str(result)), metadata(made)
    planned = unpack(facts["plan"])
    numbers = json.loads(facts.get("facts", "{}"))
    graph = build_graph(made, Path(result).parent)
    wanted = settings or Settings()
    kept = planned.provenance.settings
    wanted = replace(
        wanted,
        shapes=wanted.shapes or kept.get("shapes", {}),
        dims=wanted.dims or kept.get("dims", {}),
    )
    options = replace(options, threads=wanted.threads)
    checks = [_planned_order(graph, planned)]
    outputs, tuned, plain = _compare_runs(original, Path(result), graph, wanted, options, seeds)
    checks += [outputs, _steady(original, Path(result), graph, wanted, options)]
    checks.append(_order("executed order", tuned))
    checks.append(_order("executed order, default options", plain))
    predicted = numbers.get("peak_predicted_bytes", tuned.predicted.peak)
    error = predicted / tuned.peak - 1
    checks.append(
        Check("predicted peak", abs(error) <= 0.02, f"{predicted} B, {error:+.2%} of measured")
    )
    limit = planned.provenance.budget
    if budget is not None:
        resolved = one_budget(budget).resolve(
            device_bytes=memory_bytes(), peak_bytes=numbers.get("baseline_peak_bytes", 0)
        )
        limit = resolved or limit
    if limit:
        text = f"{tuned.peak} B of {limit} B ({tuned.peak / limit:.1%})"
        checks.append(Check("measured peak within budget", tuned.peak <= limit, text))
    return Verification(
        tuple(checks), tuned, plain, numbers, _resident(graph, result, wanted, options)
    )


def _resident(
    graph: Graph, result: str | os.PathLike[str], wanted: Settings, options: Options
) -> dict[str, int | None]:
    feeds = load_feeds(wanted.data, graph) if wanted.data else seeded_feeds(graph, wanted.seed)
    modes = {
        "loaded": None,
        "planned": options,
        "default": replace(DEFAULT, threads=options.threads),
    }
    return {
        name: resident_rise(Path(result), feeds, mode, options.threads)
        for name, mode in modes.items()
    }


def _planned_order(graph: Graph, planned: Plan) -> Check:
    listed = [op.origin or op.name for op in graph.ops if not is_added(op.name)]
    same = listed == list(planned.sequence)
    return Check("model follows its plan", same, f"{len(listed)} ops")


def _order(name: str, found: Measurement) -> Check:
    text = f"{len(found.profile.kernels)} kernels as planned" if found.order_kept else "differs"
    if found.missing:
        text += f" ({len(found.missing)} ops fused by onnxruntime at load)"
    if found.merged:
        text += f", {len(found.merged)} recomputations merged away"
    return Check(name, found.order_kept and not found.merged, text)


def _steady(
    original: Source, result: Path, graph: Graph, wanted: Settings, options: Options
) -> Check:
    """The result run again and again. Where the original changes from run to run too, the result
    is not to blame: it passes, and the text says so."""
    name = f"same bits in {RUNS} runs"
    feeds = load_feeds(wanted.data, graph) if wanted.data else seeded_feeds(graph, wanted.seed)
    found = repeats(open_session(result, session_options(options)), feeds)
    if found.same:
        return Check(name, True, f"{options.threads or 'all'} threads")
    own = not _own_repeats(original, wanted).same
    text = f"output '{found.output}' changes by up to {found.spread:.1e} from run to run"
    return Check(name, own, f"{text}{', as in the original' if own else ''}: {why(graph)}")


def _own_repeats(original: Source, wanted: Settings) -> Repeats:
    """The original run again and again under default options."""
    model, feeds, folder = reference_model(original, wanted)
    options = session_options(replace(DEFAULT, threads=wanted.threads))
    return repeats(open_session(model, options, folder), feeds)


def _compare_runs(
    original: Source, result: Path, graph: Graph, wanted: Settings, options: Options, seeds: int
) -> tuple[Check, Measurement, Measurement]:
    """Outputs of both models on several inputs, and the measured runs of the result."""
    worst: Difference | None = None
    exact = True
    tuned = plain = None
    for seed in range(max(1, seeds)):
        feeds, expected = reference_outputs(original, replace(wanted, seed=wanted.seed + seed))
        tuned = measure(graph, result, feeds, options)
        plain = measure(graph, result, feeds, replace(DEFAULT, threads=options.threads))
        for found in (tuned, plain):
            one = compare(found.outputs, expected)
            exact &= one.bit_equal
            if worst is None or not one.ok or one.worst > worst.worst:
                worst = one
    assert worst is not None
    assert tuned is not None
    assert plain is not None
    if not worst.ok:
        own = _own_repeats(original, wanted)
        if own.allows(worst.worst):
            text = f"'{worst.output}' differs by {worst.worst:.2g}, as the original does from "
            text += f"itself run to run (by {own.spread:.2g})"
            return Check(f"same outputs on {max(1, seeds)} inputs", True, text), tuned, plain
    text = (
        "bit-equal"
        if exact
        else (
            f"within {worst.worst:.1e} of the largest value (allowed {worst.tolerance:.0e}: "
            "onnxruntime re-orders float arithmetic when it optimises a graph)"
        )
    )
    if not worst.ok:
        text = f"output '{worst.output}' differs by {worst.worst:.2g}"
    return Check(f"same outputs on {max(1, seeds)} inputs", worst.ok, text), tuned, plain
