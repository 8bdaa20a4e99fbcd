"""Sessions that say how they hold their bytes, and the one that holds them at planned addresses."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import onnxruntime as ort

from onnxremat.memory.arena import UNIT, Region
from onnxremat.memory.events import Events, Integers, blocks, live_peak
from onnxremat.memory.native import CommonSlab, Slab, opening, trim
from onnxremat.memory.packing import pack
from onnxremat.units import format_bytes

SHARED = "session.use_env_allocators"
TRACES = 8  # kept per session, one per set of input shapes; the one used longest ago goes
TRIES = 3  # recordings of a run that differs from the one before, until it is left as it is


class PlannedSession(ort.InferenceSession):
    """An ``onnxruntime.InferenceSession`` of a planned model, in onnxruntime's own arena.

    Attributes:
        method: how it holds its bytes: ``slab``, ``region`` or ``arena``.
        why: why it is not a better one of them, "" where it could not be better.
    """

    method = "arena"
    why = ""

    def describe(self) -> str:
        """How this session holds its bytes, in a sentence or two."""
        text = "memory: onnxruntime's own arena, which keeps more than is live (1.2 to 2 times)"
        if not self.get_session_options().enable_cpu_mem_arena:
            text = "memory: every block asked of the C library"
        return f"{text}; {self.why}" if self.why else text

    def release(self) -> None:
        """Give back, between runs, what is held for the next one; as far as that can be had."""

    def _create_inference_session(self, *given: Any, **more: Any) -> None:
        with opening():
            super()._create_inference_session(*given, **more)


class RegionSession(PlannedSession):
    """A session in an arena of its own, whose regions are as large as the plan's peak needs.

    Where a run asks for more than was found, onnxruntime adds a region: the results are the same.
    """

    method = "region"

    @classmethod
    def opened(cls, source: str | bytes, made: Any, region: Region) -> RegionSession:
        """Open a session in such an arena."""
        made.add_session_config_entry(SHARED, "1")
        with opening():
            _register(region)
            try:
                session = cls(source, made, providers=["CPUExecutionProvider"])
            finally:
                # Registering again replaces: the session alone keeps its arena.
                _register(Region(UNIT, 1))
        session.region = region
        return session

    region = Region(0, 1)

    def describe(self) -> str:
        """How this session holds its bytes, in a sentence or two."""
        held = format_bytes(self.region.held or self.region.bytes)
        text = f"memory: an arena of {held} in regions of chosen sizes"
        return f"{text}; {self.why}" if self.why else text


def _register(region: Region) -> None:
    """Give onnxruntime an arena for the sessions made next with shared allocators."""
    kind, memory = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ort.OrtMemType.DEFAULT
    info = ort.OrtMemoryInfo("Cpu", kind, 0, memory)
    ort.create_and_register_allocator(info, ort.OrtArenaCfg(arena_settings(region)))


def arena_settings(region: Region) -> dict[str, int]:
    """Such an arena, in onnxruntime's words."""
    return {
        "initial_chunk_size_bytes": region.bytes,
        "arena_extend_strategy": 0,
        "max_dead_bytes_per_chunk": region.dead,
        "max_power_of_two_extend_bytes": region.step,
    }


@dataclass(frozen=True)
class _Trace:
    """A recorded run: its handle in the library, blocks, bytes of the slab, least bytes."""

    handle: int
    blocks: int
    bytes: int
    live: int


class SlabSession(PlannedSession):
    """A session whose blocks lie at planned addresses in one slab.

    The first run with a set of input shapes is recorded and packed; it holds what is live and
    nothing else, as later runs do. A run that asks for other bytes than the recorded one goes on
    with blocks of its own from there: its results are the same, it may hold more, and is slower.
    The slab serves one run at a time; another thread's run beside it has blocks of its own.

    Outputs belong to the caller. Let go before the next run, they and the slab together stay within
    the plan; held longer, they come on top.

    Args:
        file: that the weights are mapped from, if they are.
    """

    method = "slab"

    def __init__(self, *given: Any, file: str = "", **more: Any) -> None:
        self._file = file
        super().__init__(*given, **more)

    def _create_inference_session(self, *given: Any, **more: Any) -> None:
        with opening():
            slab = Slab()
            if self._file:
                slab.watch(self._file)
            try:
                super()._create_inference_session(*given, **more)
            finally:
                slab.withdraw()  # other sessions do not get it; this one keeps it
        self._slab = slab
        self._record: Events | None = None
        self._placed: int | None = None
        self._common: CommonSlab | None = None
        self.recording = False
        self._traces: OrderedDict[Hashable, _Trace] = OrderedDict()
        self._records: Counter[Hashable] = Counter()
        self._bindings: weakref.WeakKeyDictionary[Any, Hashable] = weakref.WeakKeyDictionary()
        self._bound: Hashable = None
        self._fixed = all(isinstance(d, int) for i in self.get_inputs() for d in i.shape or ())
        self._one_run = threading.Lock()
        self._beside, self._counting = 0, threading.Lock()  # runs beside another
        weakref.finalize(self, slab.close)

    # ---- runs ----------------------------------------------------------------------------

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As ``onnxruntime.InferenceSession.run``."""
        run, key = super().run, ("run", *(output_names or ()), *self._shapes(input_feed))
        return self._traced(key, lambda: run(output_names, input_feed, run_options))[0]

    def run_with_ort_values(
        self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None
    ) -> Any:
        """As ``onnxruntime.InferenceSession.run_with_ort_values``."""
        run, given = super().run_with_ort_values, input_dict_ort_values
        key = ("values", *(output_names or ()), *self._shapes(given))
        return self._traced(key, lambda: run(output_names, given, run_options))[0]

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """As ``onnxruntime.InferenceSession.run_with_iobinding``.

        What is bound cannot be asked, so a binding runs as the one before it until it differs.
        """
        if self._placed and self._common and self._common.taken:
            self._in_common(
                lambda: super(SlabSession, self).run_with_iobinding(iobinding, run_options)
            )
            return
        run, own = super().run_with_iobinding, ("bound", id(iobinding))
        key = self._bindings.get(iobinding, self._bound or own)
        _, same = self._traced(key, lambda: run(iobinding, run_options), borrowed=key != own)
        self._bindings[iobinding] = self._bound = key if same else own

    def _shapes(self, feed: Any) -> tuple[Hashable, ...]:
        return () if self._fixed else tuple((name, _shape(feed[name])) for name in sorted(feed))

    def _traced(
        self, key: Hashable, run: Callable[[], Any], borrowed: bool = False
    ) -> tuple[Any, bool]:
        """The result of a run, and whether it went as the trace of ``key`` says.

        Args:
            borrowed: the trace may be another run's, and is not to blame for a difference.
        """
        if not self._one_run.acquire(blocking=False):
            with self._counting:
                self._beside += 1
            return run(), True
        try:
            trace = self._traces.get(key)
            if not self._slab.begin(trace.handle if trace else None):
                return run(), True
            told = -1
            try:
                result = run()
            finally:
                told = self._slab.end()
            if trace is None:
                self._keep(key, told)
            elif told and not borrowed and self._records[key] < TRIES:
                self._forget(key)  # the next run is recorded
            else:
                self._traces.move_to_end(key)
            return result, trace is None or not told
        finally:
            self._one_run.release()

    def release(self) -> None:
        """Give the slab back between runs; the next one gets it anew, page by page. Outputs that
        callers hold stay theirs."""
        self._slab.release()

    def _keep(self, key: Hashable, count: int) -> None:
        if count < 0:
            return
        events = self._slab.recorded(count)
        self._record = events if self.recording else None
        offset, size = pack(events)
        handle = self._slab.trace(events, offset, blocks(events).kept, size)
        self._traces[key] = _Trace(handle, len(offset), size, live_peak(events))
        self._records[key] += 1
        if len(self._traces) > TRACES:
            self._forget(next(iter(self._traces)))
        del events, offset
        trim()

    def _forget(self, key: Hashable) -> None:
        self._slab.forget(self._traces.pop(key).handle)

    # ---- a slab that it shares with others ---------------------------------------------------

    def last_record(self, addresses: Mapping[str, int]) -> tuple[Events, dict[str, int]] | None:
        """The last run, given away: its events, and the slots that have the blocks at some
        addresses; None where it was no recorded one, or ``recording`` was not set."""
        events, self._record = self._record, None
        if events is None:
            return None
        slots = {name: self._slab.slot(address) for name, address in addresses.items()}
        return events, {name: slot for name, slot in slots.items() if slot >= 0}

    def place(self, events: Events, offset: Integers, fate: Integers, common: CommonSlab) -> None:
        """From now on runs with a binding have their blocks in a common slab while that is taken.

        Args:
            events: a run.
            offset: in the common slab, of each slot.
            fate: of each slot at the end of the run: 0, ``KEPT`` or ``HANDED_ON``.
        """
        self._placed = self._slab.trace(events, offset, fate, common.bytes, common)
        self._common = common

    def _in_common(self, run: Callable[[], None]) -> None:
        """A run in its places there; where another thread's is on, in blocks of its own."""
        assert self._common
        if not self._slab.begin(self._placed):
            run()
            return
        try:
            run()
        finally:
            if self._slab.end():
                self._common.unfit = True

    def leave_common(self) -> None:
        """Between runs: have no blocks in a common slab any more."""
        if self._placed:
            self._slab.forget(self._placed)
        self._placed = self._common = None

    # ---- what it says --------------------------------------------------------------------

    @property
    def slab_bytes(self) -> int:
        """Bytes of the slab: values, outputs and workspace of the largest run so far; 0 before
        the first one ends."""
        return max((trace.bytes for trace in self._traces.values()), default=0)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in the session's own blocks, as the kernels want them; not those it
        reads where they lie in a file."""
        return self._slab.counts()["weights"]

    def describe(self) -> str:
        """How this session holds its bytes, in a sentence or two."""
        if not self._traces:
            return "memory: planned addresses in one slab, planned by the first run"
        trace, counts = max(self._traces.values(), key=lambda t: t.bytes), self._slab.counts()
        text = (
            f"memory: planned addresses in one slab of {format_bytes(trace.bytes)}, "
            f"{trace.bytes / max(trace.live, 1):.3f} times the live peak of {trace.blocks} blocks; "
            f"{counts['planned']} runs as planned"
        )
        if counts["differed"]:
            text += f", {counts['differed']} asked for other bytes than planned and took their own"
        if beside := counts["elsewhere"] + self._beside:
            text += f", {beside} beside another run took their own"
        return text


def _shape(value: Any) -> Hashable:
    """The shape of an input: an array's, an OrtValue's; of anything else its type."""
    shape = getattr(value, "shape", None)
    if callable(shape):
        shape = shape() if value.is_tensor() else None
    return tuple(shape) if shape is not None else type(value).__name__
