"""The batch of an inference dealt out to devices, where that is quicker than dealing out ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from onnxremat.cost.devices import device_costs
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Machine
from onnxremat.errors import NO_FIT, UnsupportedError, UsageError
from onnxremat.pipeline.device_rounds import Carried, DeviceRounds
from onnxremat.pipeline.prepare import Prepared, prepare_split

PART = 0.3  # of the time to plan, for the batch in parts: list scheduling is near the best there
Costs = Callable[[Prepared], Mapping[str, CostTable]]
Chosen = tuple[DeviceRounds, Carried, tuple[str, ...]]


def may_split(rounds: DeviceRounds) -> bool:
    """Whether a batch in parts may be planned as well: devices work side by side, the result can
    be tried out, and nothing that was asked for names ops of the whole."""
    settings = rounds.prepared.settings
    return (
        settings.split_batch is None
        and not settings.fixed_order
        and rounds.objective == "makespan"
        and rounds.runnable
        and not rounds.pins
        and not rounds.options.method.formulation
        and not rounds.prepared.in_place
    )


def measured_on(machine: Machine, say: Callable[[str], None]) -> Costs:
    """What ops take on the devices of a machine: measured where they are here."""

    def costs(prepared: Prepared) -> dict[str, CostTable]:
        return device_costs(
            prepared.graph, machine, prepared.feeds, folder=prepared.folder,
            fresh=prepared.settings.fresh, say=say,
        )  # fmt: skip

    return costs


def whole_or_in_parts(
    rounds: DeviceRounds, tables: Mapping[str, CostTable], costs: Costs
) -> Chosen:
    """The quicker of two plans in their trials: of the whole batch, and of a part of it for every
    device; the only one that keeps the limits where one does not.

    Args:
        tables: of the whole.
        costs: prices the batch in parts.

    Returns:
        the rounds of the plan, the plan, and what to tell.

    Raises:
        InfeasibleError, NoPlanError, OverBudgetError: the limits cannot be kept; of the whole.
    """
    parts = _prepared(rounds, tables)
    if parts is None:
        return rounds, rounds.best(tables), ()
    failed: Exception | None = None
    rounds = _within(rounds, 1 - PART)
    try:
        whole = rounds.best(tables)
    except NO_FIT as error:
        failed = error
    rounds.say("planning the batch in parts")
    others = _within(
        replace(rounds, prepared=parts, aims={}, price={}, known={}), PART / (1 - PART)
    )
    try:
        found = others.best(costs(parts))
    except NO_FIT:
        if failed:
            raise failed from None
        return rounds, whole, ()
    rows = " + ".join(map(str, parts.settings.split_batch or ()))
    if failed:
        return others, found, (f"the batch is computed in parts of {rows} rows: whole, it does "
                               "not fit",)  # fmt: skip
    ours, theirs = found.made.makespan, whole.made.makespan
    if ours >= theirs:
        return rounds, whole, ()
    text = f"the batch is computed in parts of {rows} rows: {ours * 1e3:.3g} ms, whole "
    return others, found, (f"{text}{theirs * 1e3:.3g} ms (--split-batch 1 keeps it whole)",)


def _within(rounds: DeviceRounds, share: float) -> DeviceRounds:
    """With a share of the time to plan."""
    options = replace(rounds.options, time_limit=share * rounds.options.time_limit)
    return replace(rounds, options=options)


def _prepared(rounds: DeviceRounds, tables: Mapping[str, CostTable]) -> Prepared | None:
    """The model with a part of the batch for every device, None where there are none."""
    prepared = rounds.prepared
    rows = shares(prepared.batch, [table.total for table in _able(prepared, tables)])
    if len(rows) < 2:
        return None
    try:
        return prepare_split(prepared, tuple(rows), rounds.say)
    except (UsageError, UnsupportedError):  # rows that depend on each other, a training step
        return None


def _able(prepared: Prepared, tables: Mapping[str, CostTable]) -> list[CostTable]:
    """Costs on devices that can run all of it."""
    ops = {op.name for op in prepared.graph.ops}
    return [table for table in tables.values() if ops <= table.seconds.keys()]


def shares(batch: int, seconds: list[float]) -> list[int]:
    """Rows for each device, so that those that need ``seconds`` for all rows end together; devices
    that would get none are left out.

    >>> shares(8, [1.0, 1.0]), shares(8, [1.0, 3.0]), shares(1, [1.0, 1.0])
    ([4, 4], [6, 2], [1])
    """
    rows = [0] * len(seconds)
    for _ in range(batch):
        ends = [(count + 1) * took for count, took in zip(rows, seconds, strict=True)]
        rows[ends.index(min(ends))] += 1
    return [count for count in rows if count]
