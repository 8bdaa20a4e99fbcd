"""One exported net against PyTorch: what is trained, gradients, steps, steps in less memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import torch

from onnxremat.errors import OnnxrematError
from onnxremat.grad import StepSignature, training_of
from onnxremat.grad.description import Variable
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.state import FirstValues, input_types
from onnxremat.training.trainer import Trainer
from tests.zoo import altered, autograd
from tests.zoo.export import NotExportedError, exported, not_run, silence
from tests.zoo.provenance import Gathered, Index, Source, floats_in, gather
from tests.zoo.registry import Architecture
from tests.zoo.steps import optimised, step_of

EXACT = 1e-4  # error of a gradient, against its norm
STEPS, STEPS_EXACT = 5, 1e-5  # of SGD: losses and parameters, relative
# Smaller than this against the largest, a gradient is 0 in exact arithmetic.
VANISHING = 1e-6
SEEDS = 3  # batches to try before a difference is no kink
DRIFT = 3.0  # times as far from float64 as PyTorch's own float32: allowed to steps
LONG, LATE = 100.0, 1e-2  # rate of a step that shows what is read too late, and error of its change
ROUNDING = 1e-4  # smaller than this against the largest, a change is rounding


@dataclass
class Row:
    """What was found for one net and exporter.

    Attributes:
        refused: why PyTorch does not export it, or onnxruntime does not run what it writes.
        failed: why a step could not be made or run.
        trained, partly, missing: parameters of PyTorch whose gradient is whole, partly there, not
            there.
        doubled: parameters that are trained as two tensors, which drift apart.
        absent: parameters that the file does not hold, or not all of: PyTorch folded them.
        spread: parameters of which the file holds copies within one tensor: PyTorch gathered or
            expanded them.
        untold: parameters of these two that the step says nothing of.
        made: trained tensors that the exporter computed, of buffers too, as a warning says.
        foreign: other trained tensors with numbers of no trained parameter, and whose they are.
        gradient: the worst relative error of a whole parameter's gradient.
        at: that parameter.
        verdict: what a large error is: ``torch`` where PyTorch's float32 is as far from its
            float64, ``kink`` where other data show no error.
        threads: worst error per number of threads.
        unsteady: numbers of threads with which two runs differ.
        overwritten: state whose new value is another one when it is written over the old one.
        loss: relative error of the loss.
        stepped, moved: after five steps of SGD, relative errors of losses and parameters.
        exported: of what ``Trainer.export`` then writes, out of training mode, on another batch;
            the worse one where there is an optimised step (but for drift).
        drift: as ``verdict``, of the steps.
        budget: of the optimised step, as a share of the original's peak, 0 where it has none.
        planned: as ``stepped`` and ``moved`` together, of the optimised step.
        unplanned: why there is no optimised step.
        seconds: that all took.
    """

    net: str
    exporter: str
    refused: str = ""
    failed: str = ""
    trained: int = 0
    partly: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    spread: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    gradient: float = 0.0
    at: str = ""
    verdict: str = ""
    threads: dict[int, float] = field(default_factory=dict)
    unsteady: list[int] = field(default_factory=list)
    overwritten: list[str] = field(default_factory=list)
    loss: float = 0.0
    stepped: float = 0.0
    moved: float = 0.0
    exported: float = 0.0
    drift: str = ""
    budget: float = 0.0
    planned: float = 0.0
    unplanned: str = ""
    seconds: float = 0.0

    @property
    def altered(self) -> str:
        """What PyTorch's exporter made of parameters, so that no file can train them as the module
        does; "" where they are all there."""
        parts = [
            (self.absent, f"{len(self.absent)} folded into others: {_few(self.absent)}"),
            (self.spread, f"{len(self.spread)} copied within a tensor: {_few(self.spread)}"),
            (self.made, f"{len(self.made)} computed: {_few(self.made)}"),
        ]
        return "; ".join(text for names, text in parts if names)

    def wrong(self) -> list[str]:
        """What is not as it should be."""
        if self.failed:
            return [f"failed: {self.failed}"]
        found = [
            (self.missing, f"{len(self.missing)} not trained: {_few(self.missing)}"),
            (self.partly, f"{len(self.partly)} partly trained: {_few(self.partly)}"),
            (self.untold, f"{len(self.untold)} not there, not told: {_few(self.untold)}"),
            (self.doubled, f"{len(self.doubled)} trained twice: {_few(self.doubled)}"),
            (self.foreign, f"{len(self.foreign)} not to be trained: {_few(self.foreign)}"),
            (self.loss > EXACT, f"loss off by {self.loss:.1e}"),
            (
                self.gradient > EXACT and not self.verdict,
                f"gradient of {self.at} off by {self.gradient:.1e}",
            ),
            (self.unsteady, f"two runs differ with {self.unsteady} threads"),
            (self.overwritten, f"read too late: {_few(self.overwritten)}"),
            (
                max(self.stepped, self.moved) > STEPS_EXACT and not self.drift,
                f"after SGD losses off by {self.stepped:.1e}, parameters by {self.moved:.1e}",
            ),
            (
                self.exported > EXACT,
                f"exported after SGD, predictions off by {self.exported:.1e}",
            ),
            (self.unplanned, f"not optimised: {self.unplanned}"),
            (
                self.planned > max(STEPS_EXACT, 1.01 * max(self.stepped, self.moved)),
                f"after SGD, once optimised, off by {self.planned:.1e}",
            ),
        ]
        return [text for true, text in found if true]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


@dataclass(frozen=True)
class Exported:
    """A net, its module and its file."""

    net: Architecture
    module: torch.nn.Module
    model: onnx.ModelProto
    index: Index

    @property
    def norms(self) -> list[str]:
        """Batch normalizations that are ops of the file, not folded into convolutions."""
        held = np.concatenate([a.reshape(-1) for a in floats_in(self.model).values()])
        return [
            name
            for name, norm in autograd.norms_of(self.module).items()
            if np.isin(norm.running_var.numpy(), held).all()
        ]

    def feeds(
        self, about: StepSignature, step: onnx.ModelProto, seed: int = 0
    ) -> dict[str, np.ndarray]:
        """Data and target."""
        data = self.net.data(seed)
        made = {f"input{k}": x.numpy() for k, x in enumerate(data)}
        with torch.no_grad(), silence():
            prediction = self.module(*data)
        made[about.target] = self.net.target(prediction, seed).numpy()
        shape, kind = input_types(step)[about.target]
        made[about.target] = made[about.target].astype(kind).reshape(shape)
        return {name: value for name, value in made.items() if name in input_types(step)}


def compare(
    net: Architecture,
    exporter: str,
    folder: Path,
    *,
    scratch: Path,
    threads: Sequence[int] = (1, 2, 4),
    optimise: bool = True,
) -> Row:
    """Everything about one net and exporter.

    Args:
        folder: the cache of exported files.
        scratch: for the optimised step.
        threads: numbers of threads to run the gradients with.
        optimise: compare the steps of the optimised graph as well.
    """
    row = Row(net.name, exporter)
    module = net.module()
    try:
        model = exported(net, module, exporter, folder)
    except NotExportedError as error:
        row.refused = str(error)
        return row
    case = Exported(net, module, model, Index(module))
    try:
        _gradients(case, row, threads)
        path = scratch / "optimised.onnx" if optimise else None
        # What is folded or copied trains otherwise, and all else with it.
        (_altered_steps if row.altered else _steps)(case, row, path)
    except Exception as error:  # whatever goes wrong is what the zoo is to find
        row.refused = not_run(model, net)
        row.failed = "" if row.refused else _told(error)
    return row


def _told(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (
        text[:300] if isinstance(error, OnnxrematError) else f"{type(error).__name__}: {text}"[:300]
    )


# ---- gradients -------------------------------------------------------------------------------


def _gradients(case: Exported, row: Row, threads: Sequence[int]) -> None:
    step = step_of(case.model, None, case.net.loss)
    names = [name for name, _ in training_of(step).gradients]
    first = _first_values(step, case.model, names)
    sources = {name: case.index.source(first[name]) for name in names}
    want = autograd.gradients(case.net, case.module, case.norms)
    for count in threads:
        found, loss, same = _run_twice(case, step, first, count)
        gathered = gather(case.index, sources, found, mean=False)
        if not same:
            row.unsteady.append(count)
        if count == threads[0]:
            _account(case, row, sources, gathered, want, found)
            row.made, row.foreign = altered.computed(training_of(step), row.foreign)
            row.loss = _number(abs(loss / want.loss - 1.0))
        errors = _errors(row, case.index, gathered, want)
        row.absent += altered.partly(training_of(step), [n for n in errors if errors[n] > EXACT])
        errors = {name: error for name, error in errors.items() if name not in row.absent}
        row.threads[count] = max(errors.values(), default=0.0)
        if row.threads[count] >= row.gradient and errors:
            row.gradient = row.threads[count]
            row.at = max(errors, key=errors.__getitem__)
    row.untold = altered.untold(training_of(step), [*row.absent, *row.spread])
    if row.gradient > EXACT:
        row.verdict = _verdict(case, row, step, first, sources, want)


def _first_values(
    step: onnx.ModelProto, model: onnx.ModelProto, names: Sequence[str]
) -> dict[str, np.ndarray]:
    types, values = input_types(step), FirstValues(model, step)
    return {name: values.of(Variable(name, "", "model"), *types[name]) for name in names}


def _run_twice(
    case: Exported, step: onnx.ModelProto, first: Mapping[str, np.ndarray], threads: int
) -> tuple[dict[str, np.ndarray], float, bool]:
    """Gradients, the loss, and whether a second run had the same bits."""
    about = training_of(step)
    session = open_session(step, session_options(Options(threads=threads, pattern=False)))
    feeds = {**case.feeds(about, step), **first}
    names = [output.name for output in session.get_outputs()]
    runs = [dict(zip(names, session.run(None, feeds), strict=True)) for _ in range(2)]
    same = all(runs[0][n].tobytes() == runs[1][n].tobytes() for n in names)
    return {p: runs[0][g] for p, g in about.gradients}, float(runs[0][about.loss]), same


def _account(
    case: Exported,
    row: Row,
    sources: Mapping[str, Source],
    gathered: Gathered,
    want: autograd.Gradients,
    found: Mapping[str, np.ndarray],
) -> None:
    """Which parameters are trained, and what else is.

    Args:
        found: gradients by tensor: what has none may be constant.
    """
    held = floats_in(case.model)
    there = gather(case.index, {n: case.index.source(a) for n, a in held.items()}, held, mean=False)
    single = {n: gather(case.index, {n: s}, {n: s.places}, mean=False) for n, s in sources.items()}
    for name in case.index.trained:
        needed = want.of.get(name, np.zeros(0)) != 0
        if not needed.any():
            continue  # it has no part in the loss
        times = gathered.times[name]
        if (times[needed] > 0).all():
            row.trained += 1
        elif not (there.times[name][needed] > 0).all():
            row.absent.append(name)
        else:
            (row.partly if (times > 0).any() else row.missing).append(name)
        if any((each.times[name] > 1).any() for each in single.values()):
            row.spread.append(name)
        elif (times > 1).any():
            row.doubled.append(name)
    trained = set(case.index.trained)
    for name, source in sources.items():
        others = [owner for owner in source.owners if owner not in trained]
        if not source.owners and not row.absent:
            row.foreign.append(f"{name} {altered.NOBODY}")
        elif others:
            row.foreign.append(f"{name} (of {others[0]})")
        elif source.owners and found[name].reshape(-1)[source.places < 0].any():
            row.foreign.append(f"{name} (partly constant)")


def _errors(
    row: Row, index: Index, gathered: Gathered, want: autograd.Gradients
) -> dict[str, float]:
    """Relative error per parameter that is trained as a whole; of one whose gradient is 0 in exact
    arithmetic, the error against the largest gradient (and allowed less, see VANISHING)."""
    largest = max((float(np.linalg.norm(g)) for g in want.of.values()), default=1.0)
    bad = {*row.missing, *row.partly, *row.absent}
    errors = {}
    for name in index.trained:
        if name in bad or name not in want.of:
            continue
        size = float(np.linalg.norm(want.of[name]))
        error = float(np.linalg.norm(gathered.of[name] - want.of[name]))
        errors[name] = _number(error / max(size, VANISHING * largest / EXACT))
    return errors


def _verdict(
    case: Exported,
    row: Row,
    step: onnx.ModelProto,
    first: Mapping[str, np.ndarray],
    sources: Mapping[str, Source],
    want: autograd.Gradients,
) -> str:
    """Why a gradient is off: ``torch`` (its own float32 is as far from its float64), ``kink``
    (with other data it is not off), or "" (it is wrong)."""
    session = open_session(step, session_options(Options(threads=1, pattern=False)))
    about = training_of(step)
    names = [gradient for _, gradient in about.gradients]
    for seed in range(SEEDS):
        results = session.run(names, {**case.feeds(about, step, seed), **first})
        found = dict(zip((p for p, _ in about.gradients), results, strict=True))
        gathered = gather(case.index, sources, found, mean=False)
        single = want if seed == 0 else autograd.gradients(case.net, case.module, case.norms, seed)
        if seed and max(_errors(row, case.index, gathered, single).values()) <= EXACT:
            return "kink"
        exact = autograd.gradients(case.net, case.module, case.norms, seed, torch.float64)
        ours = _errors(row, case.index, gathered, exact)
        as_ours = Gathered({n: single.of.get(n, np.zeros(1)) for n in case.index.trained}, {})
        theirs = _errors(row, case.index, as_ours, exact)
        if all(ours[n] <= max(EXACT, 2 * theirs[n]) for n in ours):
            return "torch" if seed == 0 else "kink"
    return ""


# ---- steps -----------------------------------------------------------------------------------


def _steps(case: Exported, row: Row, path: Path | None) -> None:
    """Steps of SGD, compared for the parameters that are trained as a whole.

    Args:
        path: of the optimised step, None to leave it out.
    """
    step = step_of(case.model, "sgd", case.net.loss)
    row.overwritten = _overwritten(case, step)
    bad = {*row.missing, *row.partly}
    with_gradient = autograd.gradients(case.net, case.module, case.norms).of
    whole = [n for n in case.index.trained if n not in bad and n in with_gradient]
    for seed in range(SEEDS):
        want = autograd.descend(case.net, case.module, whole, STEPS, seed)
        found = _stepped(case, step, whole, seed)
        errors = _apart(found, want)
        if seed == 0:
            row.stepped, row.moved = errors
        row.exported = _off(found.prediction, want.prediction)
        if max(errors) <= STEPS_EXACT:
            row.drift = "kink" if seed else ""
            break
        exact = autograd.descend(case.net, case.module, whole, STEPS, seed, torch.float64)
        if max(_apart(found, exact)) <= DRIFT * max(_apart(want, exact)):
            row.drift = "torch"
            if _off(found.prediction, exact.prediction) <= DRIFT * _off(
                want.prediction, exact.prediction
            ):
                row.exported = 0.0
            break
    if path is None or not _planned(row, step, path):
        return
    want = autograd.descend(case.net, case.module, whole, STEPS)
    found = _stepped(case, path, whole)
    row.planned = max(_apart(found, want))
    if not row.drift:
        row.exported = max(row.exported, _off(found.prediction, want.prediction))


def _altered_steps(case: Exported, row: Row, path: Path | None) -> None:
    """As :func:`_steps`, but against steps along the gradients of the file, of all it trains."""
    step = step_of(case.model, "sgd", case.net.loss)
    feeds, rate = case.feeds(training_of(step), step), case.net.rate
    row.overwritten = _overwritten(case, step)
    nothing = np.zeros(1)
    want = autograd.Steps(*altered.by_hand(case.model, case.net.loss, feeds, rate, STEPS), nothing)
    found = altered.by_trainer(case.model, step, feeds, rate, STEPS)
    row.stepped, row.moved = _apart(autograd.Steps(*found, nothing), want)
    if path is not None and _planned(row, step, path):
        found = altered.by_trainer(case.model, path, feeds, rate, STEPS)
        row.planned = max(_apart(autograd.Steps(*found, nothing), want))


def _overwritten(case: Exported, step: onnx.ModelProto) -> list[str]:
    """State whose change in a step differs where each new value is written over the old one, as a
    trainer does it: something read it too late. The step is a very long one, to show it."""
    trainer = Trainer(step, case.model, rate=LONG, threads=1)
    about, feeds = trainer.training, case.feeds(trainer.training, step)
    session = open_session(step, session_options(Options(threads=1, pattern=False)))
    old = trainer.values()
    names = [output.name for output in session.get_outputs()]
    results = session.run(names, {**feeds, **old, about.rate: np.array(LONG, np.float32)})
    apart = dict(zip(names, results, strict=True))
    trainer.step(feeds)
    moved = {name: apart[new] - old[name] for name, new in about.updates.items()}
    least = ROUNDING * max(float(np.linalg.norm(change)) for change in moved.values())
    return [name for name, change in moved.items()
            if not np.linalg.norm(trainer.state[name] - old[name] - change)
            <= LATE * max(float(np.linalg.norm(change)), least)]  # fmt: skip


def _stepped(
    case: Exported, made: onnx.ModelProto | Path, names: Sequence[str], seed: int = 0
) -> autograd.Steps:
    """Steps of ours: losses, the module's parameters after them, and a prediction of the model
    that is exported then."""
    trainer = Trainer(made, case.model, rate=case.net.rate, threads=1)
    about = trainer.training
    sources = {v.input: case.index.source(trainer.state[v.input]) for v in about.parameters}
    step = made if isinstance(made, onnx.ModelProto) else onnx.load(made)
    feeds = case.feeds(about, step, seed)
    losses = [trainer.step(feeds) for _ in range(STEPS)]
    after = gather(case.index, sources, trainer.state, mean=True)
    start = dict(case.module.named_parameters())
    values = {}
    for name in names:  # elements that have no part in the loss need not be there
        known, old = after.times[name] > 0, start[name].detach().double().numpy()
        values[name] = np.where(known, after.of[name], old)
    return autograd.Steps(losses, values, _predicted(case, trainer.export(case.model), seed + 1))


def _predicted(case: Exported, model: onnx.ModelProto, seed: int) -> np.ndarray:
    """What a model of ours makes of the data of a seed, by onnxruntime as it comes."""
    session = open_session(model, session_options(Options(threads=1)))
    read = {each.name for each in session.get_inputs()}
    data = {f"input{k}": x.numpy() for k, x in enumerate(case.net.data(seed))}
    return session.run(None, {name: x for name, x in data.items() if name in read})[0]


def _off(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Relative error, in the Euclidean norm."""
    return _number(np.linalg.norm(ours - theirs) / max(float(np.linalg.norm(theirs)), 1e-12))


def _number(error: float) -> float:
    """An error; infinite where it is no number, which would compare as small."""
    return math.inf if math.isnan(error) else float(error)


def _apart(ours: autograd.Steps, theirs: autograd.Steps) -> tuple[float, float]:
    """Relative errors of losses, and of parameters in the Euclidean norm; the worst of each."""
    loss = max(_number(abs(a / b - 1.0)) for a, b in zip(ours.losses, theirs.losses, strict=True))
    errors = [_off(ours.parameters[name], value) for name, value in theirs.parameters.items()]
    return loss, max(errors, default=0.0)


def _planned(row: Row, step: onnx.ModelProto, path: Path) -> bool:
    """Write the step optimised; whether there is such a step."""
    try:
        row.budget = optimised(step, path)
    except OnnxrematError as error:
        row.unplanned = _told(error)
    return not row.unplanned
