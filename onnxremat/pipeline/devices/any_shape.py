"""A placement of any shape as a pipeline: devices take their pieces in one fixed cyclic order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from onnxremat.cost.boundaries import call_seconds
from onnxremat.errors import InfeasibleError
from onnxremat.execute.deployment import Deployment
from onnxremat.execute.pipelined import Flow
from onnxremat.pipeline.artifact import excess
from onnxremat.pipeline.devices.device_ways import Trials
from onnxremat.pipeline.devices.pieces import Pieces, joined
from onnxremat.pipeline.devices.pipelined import Pipelined
from onnxremat.pipeline.devices.placed import (
    ANY,
    EACH,
    Wanted,
    as_pipelined,
    deployed,
    floor,
    impossible,
    none_in_time,
    work_of,
)
from onnxremat.pipeline.devices.placement_bridge import Bridge, bridge
from onnxremat.pipeline.devices.several_devices import SeveralDevices
from onnxremat.placement.answer import Answer
from onnxremat.placement.anywhere import ROUNDS, begin
from onnxremat.placement.from_problem import UNIT
from onnxremat.placement.judge import judge_placement

SECONDS = 10.0  # of a search, at most
MOST = 4  # samples in flight for every device, at most
SAME = 1.01  # periods that are nearer than this are alike
NOTE = "placement of any shape: devices do their pieces of a sample in one fixed cyclic order"


def any_shape(
    target: SeveralDevices,
    trials: Trials,
    limits: Mapping[str, int],
    wanted: Wanted,
    below: float,
) -> Pipelined | None:
    """The placement with the least largest load that is found, borders of its pieces included, with
    the fewest samples in flight that its rounds need; None without one that fits, has few enough
    pieces and takes less than ``below`` seconds per sample.

    Raises:
        InfeasibleError: proven that nothing fits.
        NoPlanError: the search found nothing in time.
    """
    made = bridge(target.model, target.tables, limits)
    call = min(map(call_seconds, target.tables.values()))
    if floor(made) * UNIT + call >= below or (below < inf and trials.options.left <= 0):
        return None
    answer = _answer(target, made, trials, below - call)
    if answer.bound * UNIT >= below - call:
        return None
    assert answer.where is not None
    pieces = joined(made, target.tables, answer.where.tolist())
    if pieces is None:
        return None
    where = [pieces.devices[piece] for piece in pieces.where]
    value = judge_placement(made.graph, where).max_load
    notes = (NOTE,) if len(set(pieces.devices)) < len(pieces.devices) else ()
    answer = replace(answer, value=max(value, answer.bound), notes=(*answer.notes, *notes))
    found = _fitting(target, made, answer, pieces, limits, wanted.in_flight)
    if found is None:
        return None
    artifact = as_pipelined(target, made, answer, found)
    return artifact if artifact.seconds < below else None


def _answer(target: SeveralDevices, made: Bridge, trials: Trials, below: float) -> Answer:
    """What is found in time, or until there is proven to be nothing below so many seconds."""
    try:
        search = begin(made.graph, work_of(trials, SECONDS))
    except InfeasibleError as error:
        raise impossible(target, error) from error
    if search is None:
        raise none_in_time()
    rounds = ROUNDS
    while not search.done and search.bound * UNIT < below:
        search.step(rounds)
        rounds *= 2
    return search.answer()


def _fitting(
    target: SeveralDevices,
    made: Bridge,
    answer: Answer,
    pieces: Pieces,
    limits: Mapping[str, int],
    in_flight: int | None,
) -> Deployment | None:
    """The quickest that keeps the limits, over samples in flight and devices that are alike."""
    orders = made.orders(range(len(made.devices)))  # those that limits tell apart
    orders = list({tuple(map(limits.get, names)): names for names in reversed(orders)}.values())

    def cut(count: int, names: Sequence[str]) -> Deployment:
        row = [names[device] for device in pieces.devices]
        plan = made.plan(pieces.where, range(len(row)), row)
        return deployed(target, plan, answer, limits, Flow(count), ANY)

    first = cut(in_flight or EACH * len(made.devices), orders[0])
    counts = [in_flight] if in_flight else _counts(first, len(made.devices))
    for count in counts:
        for names in orders:
            found = first
            if (count, names) != (first.in_flight, orders[0]):
                found = cut(count, names)
            if not excess(found.worst, limits):
                return found
    return None


def _counts(made: Deployment, devices: int) -> list[int]:
    """Samples in flight to try: two for every device, more where rounds are shorter with them, and
    fewer, for less memory."""
    most = range(EACH * devices, MOST * devices + 1)
    periods = {count: made.rounds(count).period for count in most}
    best = min(periods.values())
    start = next(count for count in most if periods[count] <= SAME * best)
    return list(range(start, 0, -1))
