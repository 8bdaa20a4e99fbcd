"""Original and result side by side: outputs, order, placement, peaks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from onnxremat.device.host import memory_bytes
from onnxremat.errors import UsageError
from onnxremat.execute.deployment import Deployment, read_deployment
from onnxremat.execute.resident import devices_rise
from onnxremat.grad import updated_inputs
from onnxremat.grad.description import is_step
from onnxremat.grad.exported.marks import first_of
from onnxremat.ort.profile import Feeds
from onnxremat.ort.session import DEFAULT, open_session, session_options
from onnxremat.pipeline.artifact import CPU, FEW, NEAR, Artifact, Check, Kind, Measured
from onnxremat.pipeline.devices.over_devices import DevicesRun, OverDevices, tolerance
from onnxremat.pipeline.devices.pipelined import as_artifact
from onnxremat.pipeline.in_session import InOneSession
from onnxremat.pipeline.limits import device_limits
from onnxremat.pipeline.original.reference import Reference
from onnxremat.pipeline.original.shared_buffers import buffers_check
from onnxremat.pipeline.original.source import Source
from onnxremat.pipeline.original.unchanged import Unchanged
from onnxremat.pipeline.planned import read_written
from onnxremat.pipeline.session_run import DEFAULT_ORDER, SessionRun
from onnxremat.pipeline.settings import Settings
from onnxremat.rewrite.emit import Rewritten
from onnxremat.session.compare import Difference, compare
from onnxremat.session.process import SLACK, counted
from onnxremat.session.repeats import RUNS, Repeats, repeats, why
from onnxremat.session.resident import Rise, resident_rise
from onnxremat.session.sharing import shared_and_apart
from onnxremat.units import format_bytes, one_budget


@dataclass(frozen=True)
class Verification:
    """What :func:`verify` found.

    Attributes:
        checks: in the order they were made.
        run: the last run of the result.
        facts: what the model says about itself.
        resident: bytes a fresh process rises by: through ``onnxremat.load`` (``loaded``) or
            ``load_devices`` (``devices``), a plain session with the options of the plan
            (``planned``), under default options (``default``); None where unknown.
        beside: bytes of one session that its budget counts beside weights and values.
    """

    checks: tuple[Check, ...]
    run: Measured
    facts: Mapping[str, Any]
    resident: Mapping[str, int | None]
    beside: int = 0

    @property
    def process(self) -> int | None:
        """Bytes that the process of one session takes; None of several devices."""
        return self.run.peaks[CPU] + self.beside if isinstance(self.run, SessionRun) else None

    @property
    def ok(self) -> bool:
        """Every check passed."""
        return all(check.ok for check in self.checks)

    @property
    def words(self) -> list[str]:
        """Figures for people."""
        rise = {how: size for how, size in self.resident.items() if size is not None}
        if not rise:
            return [*self.run.words]
        ways = {
            "loaded": "through onnxremat.load",
            "devices": "through onnxremat.load_devices",
            "planned": "in a plain session with the planned options",
            "default": "with default options",
        }
        words = ", ".join(f"{format_bytes(rise[how])} {ways[how]}" for how in ways if how in rise)
        return [*self.run.words, f"a fresh process rises by {words}"]

    def figures(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "ok": self.ok,
            "checks": [vars(check) for check in self.checks],
            "peak_predicted_bytes": self.facts.get("peak_predicted_bytes"),
            "beside_bytes": self.beside,
            "process_bytes": self.process,
            "resident_bytes": dict(self.resident),
            **self.run.figures(),
        }


def verify(
    original: Source,
    result: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    seeds: int = 2,
    budget: str | int | None = None,
) -> Verification:
    """Run original and result in stock onnxruntime and compare: outputs on seeded inputs,
    executed against planned order, predicted against measured peak, peak against budget; for
    several devices also placement, and the bytes of each.

    Args:
        original: the model before.
        result: a file that onnxremat wrote.
        seeds: how many sets of inputs; of no matter where ``settings`` give the inputs.
        budget: instead of the one the plan was made for.

    Raises:
        UsageError, ModelError: files that cannot be compared.
    """
    written = _Verified.read(Path(result), (settings or Settings()).threads, original)
    wanted = settings or Settings()
    kept = written.artifact.plan.provenance.settings
    _require_sizes(wanted, kept.get("dims", {}), written)
    wanted = replace(
        wanted,
        shapes=wanted.shapes or kept.get("shapes", {}),
        dims=wanted.dims or kept.get("dims", {}),
    )
    limits = written.limits if budget is None else written.limits_of(budget)
    reference = Reference.read(original, wanted)
    _require_inputs(reference, written)
    outputs, run = _outputs(reference, written.artifact, max(1, seeds))
    if reference.given.refused:
        said = f"{outputs.text}; onnxruntime does not open the original as it came, this is of how "
        outputs = replace(outputs, text=f"{said}onnxremat reads it ({reference.given.refused})")
    checks = [outputs, *map(written.as_promised, run.checks)]
    resident: Mapping[str, int | None] = {}
    if isinstance(written.artifact, InOneSession):
        checks += _again(reference, written.artifact)
        room = max(1, limits[CPU] + written.session) if limits and written.session else 0
        rises = _resident(reference, written, room)
        resident = {name: rise.bytes for name, rise in rises.items()}
        if room:
            checks.append(_in_limit(rises["loaded"], room))
    if isinstance(run, DevicesRun):
        checks += _shared_over_devices(run)
    if isinstance(written.artifact, OverDevices) and written.counted:
        made = written.artifact.made
        room = _room(made, limits)
        rise = devices_rise(written.path, made, reference.feeds(), room)
        if rise is not None:
            resident = {"devices": rise.bytes}
            checks += [_in_limit(rise, room)] if room else []
    checks += bytes_checks(written.predicted, run, limits, written.artifact.beside)
    return Verification(tuple(checks), run, written.facts, resident, written.artifact.beside)


def verify_deployment(made: Deployment, feeds: Feeds) -> Verification:
    """A model over several devices against one session of the same graph, and its bytes against
    predictions and budgets.

    Raises:
        MissingComponentError, ModelError: it cannot be run.
    """
    artifact = as_artifact(made)
    run = artifact.measure(feeds)
    checks = (*run.checks, *bytes_checks(artifact.predict(), run, made.limits))
    return Verification(checks, run, {}, {})


@dataclass(frozen=True)
class _Verified:
    """A file that onnxremat wrote, as it is verified."""

    artifact: Artifact
    limits: Mapping[str, int]
    facts: Mapping[str, Any]
    path: Path
    model: onnx.ModelProto
    updates: Mapping[str, str] = field(default_factory=dict)  # see Written.updates

    @classmethod
    def read(cls, path: Path, threads: int, original: Source) -> _Verified:
        """Raises:
        UsageError: it carries no plan.
        ModelError: it cannot be read, or was changed.
        """
        written = read_written(path, original)
        facts = written.facts
        if written.several:
            made = read_deployment(path)
            return cls(as_artifact(made), made.limits, facts, path, written.model)
        options = replace(written.options, threads=threads)
        kind = Unchanged if options.fuses else InOneSession  # written as it was, or planned
        rewritten, folder = Rewritten(written.carried, written.plan), written.folder
        more, budget = counted(facts).total, written.plan.provenance.budget
        artifact = kind(rewritten, options, folder, file=path, beside=more)
        limits = {CPU: budget - more} if budget else {}
        return cls(artifact, limits, facts, path, written.model, written.updates)

    @property
    def session(self) -> int:
        """Bytes that a session's structures were planned with, 0 where they were not."""
        return int(self.facts.get("session_bytes", 0))

    def as_promised(self, check: Check) -> Check:
        """The order under default options is no promise of a file that did not keep it when it was
        written, or that there was no time to run under them; both were said then."""
        kept = self.facts.get("order_kept_default_options", True)
        if check.ok or check.name != DEFAULT_ORDER or kept:
            return check
        known = "there was no time to try it" if kept is None else "it did so already"
        text = f"{check.text}, as it may: {known} when the file was written; the planned options "
        return replace(check, ok=True, text=text + "keep the order")

    @property
    def counted(self) -> bool:
        """Its budgets of devices are what the process takes, one sample at a time."""
        if not isinstance(self.artifact, OverDevices):
            return False
        made = self.artifact.made
        return made.parts.counted.sessions and not made.in_flight

    @property
    def predicted(self) -> Mapping[str, int]:
        """Bytes per device, as it was planned."""
        rows = self.facts.get("devices")
        if rows is not None:
            return {row["device"]: row["peak_predicted_bytes"] for row in rows}
        peak = self.facts.get("peak_predicted_bytes")
        return {} if peak is None else {CPU: peak}

    def limits_of(self, budget: str | int) -> Mapping[str, int]:
        """Bytes per device of another budget.

        Raises:
            UsageError: a share of a peak that the file does not know, or no number.
        """
        peak = self.facts.get("baseline_peak_bytes", 0)
        if isinstance(self.artifact, OverDevices):
            machine = self.artifact.made.machine
            budgets = machine.budgets(budget)
            relative = any(one.of_peak for one in budgets.values())
            rows = self.facts.get("devices", ())
            beside = {row["device"]: row.get("beside_bytes", 0) for row in rows}
            found = device_limits(machine, budgets, peak, beside)
        else:
            one = one_budget(budget)
            relative = one.of_peak
            size = one.resolve(device_bytes=memory_bytes(), peak_bytes=peak)
            if size is None:
                raise UsageError(
                    f"budget '{one.text}' is no number of bytes to check against",
                    hint="--budget 2GiB or 0.6x",
                )
            found = {CPU: size if relative else size - self.artifact.beside}
        if relative and not peak:
            raise UsageError(
                f"budget '{budget}' is a share of a peak that the file does not know",
                hint="give bytes",
            )
        return found


def _require_sizes(asked: Settings, kept: Mapping[str, int], written: _Verified) -> None:
    """Raises:
    UsageError: sizes are asked for that are not those of the file's inputs.

    Args:
        kept: open dimensions that it was planned for.
    """
    planned = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in written.model.graph.input
    }
    rows: list[tuple[str, object, object]] = [
        (name, planned.get(name), tuple(shape)) for name, shape in asked.shapes.items()
    ]
    rows += [(name, kept.get(name), size) for name, size in asked.dims.items()]
    for name, there, given in rows:
        if there is not None and there != given:
            raise UsageError(
                f"{written.path} is planned with '{name}' of {there}, not {given}",
                hint="leave out --shape and --dim: the file knows them; or plan for other sizes",
            )


def _require_inputs(reference: Reference, written: _Verified) -> None:
    """Raises:
    UsageError: the original has not all inputs of the result.
    """
    known = {*reference.graph.inputs, *(t.name for t in written.model.graph.initializer)}
    lacking = [value.name for value in written.model.graph.input if value.name not in known]
    if lacking:
        made = "is a training step, and" if is_step(written.model) else "is of another model:"
        before = (
            "the step before it was planned: onnxremat differentiate, with the same options, and "
            "--target host where optimize was given none"
        )
        raise UsageError(
            f"{written.path} cannot be compared with this original",
            why=f"it {made} takes {first_of(lacking, 3)}, which the original does not",
            hint=f"give {before if is_step(written.model) else 'the model that it was made of'}",
        )


def bytes_checks(
    predicted: Mapping[str, int], run: Measured, limits: Mapping[str, int], beside: int = 0
) -> list[Check]:
    """Measured bytes against what was predicted, and against the budgets.

    Args:
        limits: bytes for weights and values per device.
        beside: what budgets count beside these.
    """
    checks, several = [], len(run.peaks) > 1
    for name, peak in run.peaks.items():
        of = f" of {name}" if several else ""
        if predicted.get(name) and peak:
            error = predicted[name] / peak - 1
            near = abs(predicted[name] - peak) <= max(FEW, NEAR * peak)
            ok = name in run.unknowable or near
            text = f"{predicted[name]} B, {error:+.2%} of measured"
            checks.append(Check(Kind.PREDICTION, f"predicted peak{of}", ok, text))
        if limits.get(name):
            taken, budget = peak + beside, limits[name] + beside
            text = f"{taken} B of {budget} B ({taken / budget:.1%})"
            text += f", {beside} B of them beside weights and values" if beside else ""
            named = f"measured peak{of} within budget"
            checks.append(Check(Kind.BUDGET, named, taken <= budget, text))
    return checks


def _outputs(reference: Reference, artifact: Artifact, seeds: int) -> tuple[Check, Measured]:
    """Outputs of both models on several inputs, and the last run of the result."""
    found: list[tuple[Difference, bool]] = []
    run: Measured | None = None
    own_data = reference.settings.data is not None  # the same for every seed
    for seed in range(1 if own_data else seeds):
        feeds = reference.feeds(seed)
        expected = reference.outputs(feeds)
        run = artifact.measure(feeds)
        differences = [compare(outputs, expected) for outputs in run.outputs.values()]
        found += [(one, artifact.allows(one)) for one in differences]
    assert run is not None
    name = f"same outputs on {'the inputs given' if own_data else f'{seeds} inputs'}"
    worst, ok = max(found, key=lambda pair: (not pair[1], pair[0].worst))
    if all(one.bit_equal for one, _ in found):
        return Check(Kind.OUTPUTS, name, True, "bit-equal"), run
    if ok:
        text = f"within {worst.worst:.1e} of the largest value (allowed {worst.tolerance:.0e}: "
        text += "onnxruntime re-orders float arithmetic when it optimises a graph)"
        return Check(Kind.OUTPUTS, name, True, text), run
    own = reference.repeats
    if all(ok or own.allows(one) for one, ok in found):
        text = f"'{worst.output}' differs by {worst.worst:.2g}, as the original does from itself "
        return Check(Kind.OUTPUTS, name, True, f"{text}run to run (by {own.spread:.2g})"), run
    text = f"output '{worst.output}' differs by {worst.worst:.2g}"
    return Check(Kind.OUTPUTS, name, False, text), run


def _again(reference: Reference, artifact: InOneSession) -> list[Check]:
    """The result run again and again; of a training step also with the buffers of a trainer. Where
    the original changes from run to run too, the result is not to blame: it passes, and the text
    says so."""
    assert artifact.file is not None
    session = open_session(artifact.file, session_options(artifact.options))
    feeds, name = reference.feeds(), f"same bits in {RUNS} runs"
    found, updates = repeats(session, feeds), updated_inputs(artifact.graph.model)
    text, own = f"{artifact.options.threads or 'all'} threads", True
    if not found.same:
        own = not reference.repeats.same
        text = f"output '{found.output}' changes by up to {found.spread:.1e} from run to run"
        text += f"{', as in the original' if own else ''}: {why(artifact.graph)}"
    checks = [Check(Kind.OUTPUTS, name, own, text)]
    if updates:
        checks.append(buffers_check(shared_and_apart(session, feeds, updates), len(updates), found))
    return checks


def _shared_over_devices(run: DevicesRun) -> list[Check]:
    """The same over devices; a provider that compiles its parts may not repeat its own bits."""
    found = run.shared()
    if found is None:
        return []
    own = Repeats("" if found.bit_equal else found.output, tolerance(run.made))
    return [buffers_check(found, len(run.made.parts.pairs), own)]


def _room(made: Deployment, limits: Mapping[str, int]) -> int:
    """Bytes that budgets of the devices that run something leave the process beside what the caller
    holds; 0 where one has no limit."""
    used, given = {part.device for part in made.parts.partitions}, made.parts.counted.given
    if not used <= limits.keys():
        return 0
    return max(1, sum(limits[name] - given.get(name, 0) for name in used))


def _in_limit(rise: Rise, room: int) -> Check:
    """Whether a fresh process ran in what the budget leaves it."""
    name = "a fresh process keeps the budget"
    allowed = f"{format_bytes(room)} beside its inputs and {format_bytes(SLACK)} of slack"
    rose = "" if rise.bytes is None else f"; it rises by {format_bytes(rise.bytes)}"
    if rise.kept is None:  # no word on what it takes is no proof
        ok = rise.bytes is not None and rise.bytes <= room + SLACK
        return Check(Kind.BUDGET, name, ok, f"{rise.why}{rose}, of {allowed}")
    if rise.kept:
        if rise.bytes is not None and rise.bytes > room + SLACK:
            rose += ", pages of its file among them, which the system takes back as it needs them"
        return Check(Kind.BUDGET, name, True, f"ran with no more than {allowed}{rose}")
    return Check(Kind.BUDGET, name, False, f"does not run in {allowed}{rose} ({rise.why})")


def _resident(reference: Reference, written: _Verified, room: int) -> dict[str, Rise]:
    """Fresh processes: through ``load`` in ``room`` bytes, and in plain sessions."""
    feeds, artifact = reference.feeds(), written.artifact
    assert isinstance(artifact, InOneSession)
    options = artifact.options
    modes = {
        "loaded": None,
        "planned": options,
        "default": replace(DEFAULT, threads=options.threads),
    }
    assert artifact.file is not None
    return {
        name: resident_rise(
            artifact.file,
            feeds,
            mode,
            options.threads,
            0 if mode is not None else room,
            written.updates,
        )
        for name, mode in modes.items()
    }
