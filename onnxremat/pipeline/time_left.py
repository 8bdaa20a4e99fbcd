"""What a time limit leaves, and what there is no time for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from onnxremat.cost.measure import Measuring
from onnxremat.pipeline.phases import COSTS, LOAD, MEASURE, PLAN, READ, TIME, Phases
from onnxremat.planner.options import PlanOptions

if TYPE_CHECKING:
    from onnxremat.pipeline.prepared import Prepared

MEASURING, QUICK = 0.2, 2.0  # of the time limit, and seconds, on top of it: costs of the whole
OFF_PLANNING = 0.3  # of the time limit, taken off it, where these are not enough to measure
LONG_RUN = 3.0  # seconds from which it is said that runs of the model take their time
FLOOR = 0.5  # of the limit, that planning has whatever came before
RUNS = 2  # of a plan, as long as that of the original, that planning leaves time for
AHEAD = 4  # times as long as reading and running a model what comes after takes, with all checks
TIMING = 6.0  # seconds of timing a result, where nobody says how many
TIMED = 3  # sessions that are opened for it
PASSES = 4  # sessions that a graph in parts is run in before its plan is known to be good
# Times the limit, and seconds, in which a command is to be done; what is left of five is for Python
# to start.
BEYOND, BESIDE = 1.2, 3.0


@contextmanager
def limited(options: PlanOptions, log: Phases) -> Iterator[None]:
    """A command with a time limit begins now; where it ends too late, it says so."""
    if options.work is None:
        log.end_within(BEYOND * options.time_limit + BESIDE)
    try:
        yield
    finally:
        if said := _said_of_late(options, log):
            log(said)


def _said_of_late(options: PlanOptions, log: Phases) -> str:
    """By how much a command is over its limit, and what took so long; "" where it is not.

    Timing has a limit of its own. Planning goes on beyond it where others keep the machine busy and
    nothing was found yet (:attr:`onnxremat.planner.incumbent.Incumbent.spent`).
    """
    over = -log.left - log.seconds.get(TIME, 0.0)
    if over < 1:
        return ""
    late = f"this took {over:.0f} s more than --time-limit {options.time_limit:g} allows"
    planned = log.seconds.get(PLAN, 0.0)
    if planned > options.time_limit + over / 2 and log.unhindered > 0:
        return (
            f"{late}: the machine is busy with something else, and planning goes on until it had "
            f"its share of it or has found a plan ({PLAN} {planned:.0f} s)"
        )
    longest = sorted(
        ((took, name) for name, took in log.seconds.items() if name not in (TIME, LOAD, PLAN)),
        reverse=True,
    )[:3]
    phases = ", ".join(f"{name} {took:.0f} s" for took, name in longest)
    return f"{late}: what has to be done with a model of this size is not shortened ({phases})"


def is_slow(log: Phases) -> bool:
    """Whether so much of the time went into reading a model and running it that nothing is left for
    what can be left out: what is written is tried then, and nothing before it."""
    return log.left < AHEAD * (log.seconds.get(READ, 0.0) + log.seconds.get(MEASURE, 0.0))


def for_costs(how: Measuring, log: Phases) -> Measuring:
    """How costs are measured in the time that is left, less that for running a plan."""
    room = log.left - RUNS * log.seconds.get(MEASURE, 0.0)
    return replace(how, within=min(how.within, max(0.0, room)))


def for_parts(how: Measuring) -> Measuring:
    """How costs are measured of a model that only parts can fit: without what planning the whole
    would do without, since a graph in parts is looked for, run and measured anew."""
    share = MEASURING / (MEASURING + OFF_PLANNING)
    return replace(how, within=QUICK + share * max(0.0, how.within - QUICK))


def no_time(prepared: Prepared, log: Phases, sessions: float = 1, more: float = 0.0) -> bool:
    """Whether more sessions of the model, opened, run and looked at, would end too late.

    Args:
        more: seconds that they take longer than the original.
    """
    return log.left < sessions * prepared.passing + more


def for_timing(prepared: Prepared, log: Phases) -> float:
    """Seconds of timing that the time limit leaves, 0 where it is not worth it."""
    room = log.left - TIMED * prepared.passing
    if room < 1:
        log("there was no time left to time it: --bench-seconds takes it")
        return 0.0
    return min(TIMING, room)


def said_of_short(prepared: Prepared, hides: bool) -> str:
    """What a result is not checked for that there was no time to run again.

    Args:
        hides: its file does not tell the shapes of its values
            (:mod:`onnxremat.graph.unforeseen`).
    """
    said = "the time was over: it was not run under default options, whose order may be another"
    if not hides:
        said += (
            " and under which it may take more than planned (shapes of its values are not hidden, "
            "so that dead buffers may wait for the next of their shape)"
        )
    if prepared.outputs is not None:
        return said
    return (
        f"{said}, and its outputs were compared with the original's alone, not with those of the "
        "same graph without recomputation (onnxremat verify does both)"
    )


def left_of(options: PlanOptions, log: Phases) -> PlanOptions:
    """The options of planning, less the time that measuring took beyond its own, and where all that
    came before leaves less, that, but half of the limit at least."""
    limit = options.time_limit
    if options.work is not None:
        return options
    over = max(0.0, log.seconds.get(COSTS, 0.0) - MEASURING * limit - QUICK)
    room = log.left - RUNS * log.seconds.get(MEASURE, 0.0)
    seconds = min(max(limit - over, (1 - OFF_PLANNING) * limit), max(FLOOR * limit, room))
    return options if seconds >= limit else options.lasting(seconds)


def passing(prepared: Prepared, times: float) -> float:
    """Seconds that a graph of so many times the ops of a model takes to be opened, run and looked
    at, where all of them together compute as much: runs take as long."""
    run = min(prepared.costs.total, prepared.passing)
    return run + (prepared.passing - run) * times


def out_of_time(prepared: Prepared, options: PlanOptions, log: Phases, times: float) -> str:
    """Why a graph in parts is not tried, "" where there is time for it.

    Args:
        times: as many ops as the model has.
    """
    needs = times * prepared.optimising
    trying = needs + PASSES * passing(prepared, times)
    if options.affords(needs) and trying <= log.left:
        return ""
    return (
        f"optimising and trying it in parts would take {trying:.0f} s more, which the time limit "
        "leaves no room for (a longer --time-limit does)"
    )


def say_of_runs(seconds: float, log: Phases) -> None:
    """That runs take their time, where one took so long, loading the model included."""
    if seconds > LONG_RUN:
        log(
            f"onnxruntime takes {seconds:.0f} s to load and run this model, which is done up to "
            "ten times; the time limit is for planning"
        )
