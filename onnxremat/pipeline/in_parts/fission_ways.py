"""Plans of an inference with regions of its graph in parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from onnxremat.fission.choosers import Choosers
from onnxremat.fission.kernels import warm_up
from onnxremat.fission.pricing import Priced
from onnxremat.fission.region import Region
from onnxremat.fission.remade import remade
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.in_parts.divided import prepare_fission
from onnxremat.pipeline.in_parts.in_regions import wholes_of
from onnxremat.pipeline.in_parts.ways_in_parts import LEANER, WHOLE, InParts, attempt_in_parts
from onnxremat.pipeline.in_session import OneSession
from onnxremat.pipeline.limits import Limit, hopeless, limit_of
from onnxremat.pipeline.phases import LOAD, PLAN, Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.time_left import no_time, passing
from onnxremat.planner.options import PlanOptions

TRIES = 4  # graphs in parts that are carried out for one budget
REMADE = 0.25  # share of the time that is left for the choice of pieces that are made again
GATES = 1 << 16  # bytes left for what keeps second runs apart
SEARCH = 0.75  # share of the time that is left for the choice of regions, of the processor's time
# What is done with regions that are needed, in times that a graph of twice the ops takes to be
# opened, run and looked at: it is written, run, measured, planned and run again.
PASSING, TIMES = 4, 2.0
NOT_EVERY = "with regions in parts none was found, which is no proof that there is none"
UNFINISHED = "the choice of regions ended before it was done (a longer --time-limit goes on)"
NO_TIME = "the time was over: regions that may do were not tried (a longer --time-limit does that)"


def choosers_for(
    prepared: Prepared,
    options: PlanOptions,
    log: Phases,
    needed: bool = False,
    *,
    structures: bool = False,
    as_it_is: bool = False,
) -> Choosers:
    """What finds regions of a model: for as long as the processor has worked on it for its share of
    the time that is left, so that a busy machine finds no less, unless the command is late.

    Args:
        needed: there is nothing else: it has its share of the command's time, of which planning may
            have less so that plans can be run, and goes on where the command is late.
        structures: limits count what a session keeps of nodes.
        as_it_is: no operator is written out as others, which add numbers in another order.
    """
    with log.phase(LOAD):
        warm_up()
    wholes = wholes_of(prepared.graph, prepared.costs, prepared.folder, structures=structures)
    wholes = wholes[:1] if as_it_is else wholes
    late = PASSING * passing(prepared, TIMES)  # for what is done with regions that are found
    return Choosers(wholes, _ending(options, log, needed), lambda: needed and log.left <= late)


def _ending(options: PlanOptions, log: Phases, needed: bool = False) -> Callable[[], bool]:
    """When the choice of regions is to end; see :func:`choosers_for`."""
    left = max(options.left, log.unhindered) if needed and log.left < inf else options.left
    until = time.thread_time() + SEARCH * left if options.work is None else inf
    return lambda: options.stopped or time.thread_time() >= until or (log.left <= 0 and not needed)


@dataclass
class RegionsInParts(InParts):
    """Plans of an inference with regions in parts.

    Nobody foretells what trying them takes: they are begun while there is time. Where nothing else
    keeps the budget they are looked for and those that do by their price carried out whatever the
    clock says, so that a busy machine has the same result: the choice ends by what the processor
    has worked. Else the time is looked at before each step of it, and is to be enough for a run
    like the original's.

    Attributes:
        splits: the model in the regions that were tried last.
        as_it_is: with operators written out an output was another one (the best of classes, which
            the last bit decides): none is any more.
    """

    known: Choosers | None = None
    splits: dict[object, Prepared] = field(default_factory=dict)
    as_it_is: bool = False

    @property
    def choosers(self) -> Choosers:
        """Of the whole graph."""
        if self.known is None:
            # A refusal is not worth so long.
            needed = self.whole is None and not hopeless(self.prepared, self.budget)
            self.known = self._choosers(self.options, needed)
        return self.known

    def _choosers(self, options: PlanOptions, needed: bool) -> Choosers:
        return choosers_for(
            self.prepared, options, self.log, needed,
            structures=self._counts_nodes, as_it_is=self.as_it_is,
        )  # fmt: skip

    @property
    def _counts_nodes(self) -> bool:
        """The budget is for what a session keeps of nodes, too."""
        return not self._share and "session" not in self.prepared.settings.not_counted

    def _within(self, limit: Limit, why: str) -> Candidate | None:
        room = limit.planned - self.prepared.weights
        for turn in range(TRIES):
            chosen = self._chosen(room)
            needed = self.whole is None and chosen.peak <= room
            split = self._split(chosen, why, needed)
            if split is None and self._otherwise(self.options, self.whole is None):
                continue
            if split is None or not (needed or self._in_time()):
                return None
            allowed = limit_of(split, self.budget) or limit
            over = split.store_all_peak - allowed.planned
            if over <= 0 or chosen.peak > room or turn == TRIES - 1:
                target = OneSession(split, allowed, self.log)
                warm = self._remade(split, allowed) if over > 0 else None
                found = attempt_in_parts(target, self.options.within(WHOLE), self.whole, warm)
                if isinstance(found, Candidate):
                    self._seen(found.kept)
                    return found
                over = max(over, *(found.over.values() if found else ()), 0)
            if chosen.peak > room or room <= 0 or self.options.stopped:
                return None  # nothing smaller is known
            room = min(room, chosen.peak) - max(over, 1)
        return None

    def _remade(self, split: Prepared, allowed: Limit) -> Sequence[int] | None:
        """Ops of a graph in parts with pieces made again that it has no room for."""
        until, limit = self.options.within(REMADE), allowed.planned - GATES
        with self.log.phase(PLAN, "choosing pieces to make again"):
            return remade(split.reduced.problem, limit, lambda: until.stopped or until.left <= 0)

    def _why_not_proven(self, limit: Limit) -> str:
        reduced = self.prepared.reduced
        need = reduced.need
        if need.op >= 0 and need.bytes > limit.planned:
            ops = (self.prepared.graph.ops[reduced.index[op]] for op in (need.op, *need.others))
            if all(self.choosers.never(op.name) for op in ops):
                return ""
        return NOT_EVERY

    def _otherwise(self, options: PlanOptions, needed: bool) -> bool:
        """Whether regions of the graph as it is are to be looked for, as those of the graph with
        operators written out gave another output."""
        if self.refused is None or self.as_it_is or options.stopped:
            return False
        self.as_it_is, self.known = True, None
        self.known = self._choosers(options, needed)
        return True

    @property
    def _untried(self) -> str:
        error = self.refused
        return f"{error.what} ({error.why})" if error is not None else super()._untried

    def _leanest(self) -> Prepared | None:
        return self._split(self._chosen(0), "needs more")

    def surely_leanest(self, share: float) -> Candidate | None:
        """The least memory, where regions surely take less than any plan of the whole: then they
        have the first share of the time, which plans of the whole might leave none of, and are
        carried out however late it is, as for a budget that nothing else keeps. None where that is
        not sure.

        Args:
            share: of the time that is left.
        """
        options = self.options.within(share)
        self.known = self._choosers(options, True)
        until = time.thread_time() + SEARCH * options.left
        if options.work is None:  # by the processor, so that a busy machine finds no less
            self.known.go_on(lambda: options.stopped or time.thread_time() >= until)
        chosen, found = self._chosen(0), None
        if chosen.peak + self.prepared.weights <= LEANER * self.prepared.reduced.need.bytes:
            split = self._split(chosen, "needs more", needed=True)
            if split is None and self._otherwise(options, True):
                split = self._split(self._chosen(0), "needs more", needed=True)
            if split is not None and not self.options.stopped:
                found = self._at_minimum(split, options)
        self.unfinished = ""
        self.known.go_on(_ending(self.options, self.log))
        return found

    def _chosen(self, room: int) -> Priced:
        with self.log.phase(PLAN, "choosing regions to compute in parts"):
            found = self.choosers.within(room)
        if found.peak > room and self.choosers.ended:
            self.unfinished = UNFINISHED
        return found

    def _no_time(self) -> str:
        return NO_TIME if self.log.left <= 0 else ""

    def _begins(self) -> bool:
        return self.whole is None or self._in_time()

    def _split(self, chosen: Priced, why: str, needed: bool = False) -> Prepared | None:
        """The model with regions in parts, None where that gains nothing, does not go or nobody
        waits for it any more.

        Args:
            needed: there is nothing else: it is made however late it is. What is not is left out
                where opening and running it, as long as of the original, would end too late.
        """
        if not chosen.regions or chosen.peak >= self.choosers.whole.peak:
            return None
        key, left = frozenset(region.key for region in chosen.regions), self.options.left
        if key in self.splits:
            return self.splits[key]
        if not needed and no_time(self.prepared, self.log):
            self.late = self.late or NO_TIME
            return None
        split = self._made(
            lambda: prepare_fission(self.prepared, chosen.regions, self.log, left), needed
        )
        if split is None:
            return None
        more = split.costs.total / self.prepared.costs.total - 1
        what = (
            f"{described(chosen.regions)} (whole: {why}; --fission off keeps it whole), which "
            f"takes {more:+.1%} of the whole's time"
        )
        self.splits = {key: self._noted(split, what, "graph")}
        return self.splits[key]


def described(regions: Sequence[Region]) -> str:
    """Regions, for people."""
    texts: dict[str, int] = {}
    for region in regions:
        axis = max(region.axes.values())
        text = f"{len(region.ops)} ops in {len(region.parts)} parts along axis {axis}"
        if len(region.parts) == 1:
            text = "an image enlarged behind the copy that puts its channels in order"
        texts[text] = texts.get(text, 0) + 1
    return ", ".join(f"{count} x {text}" if count > 1 else text for text, count in texts.items())
