"""One slab for all sessions of a run, and for the values that they hand on.

A device's sessions would be over its budget if each kept a slab of its own. Giving it back after
every partition costs page faults: a quarter of a U-Net's training step over two devices. So the
blocks of the first run, which every session records for itself, are laid into one slab. A value
that is handed on has its place until its last reader is done. Streams run side by side: what one
does while a block of another is live follows from what they wait for, as in ``waits.py``.

Since that place is the same in every run, such a value is bound there once and for all: binding it,
asking a session for it and letting it go takes some 10 us of Python in each run, during which no
other stream runs any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from onnxremat.device.machine import Machine
from onnxremat.execute.device_memory import device_bytes, residents
from onnxremat.execute.inside import Inside
from onnxremat.execute.streams import after_with, before, stream_names
from onnxremat.execute.traffic import Traffic
from onnxremat.execute.waits import worst_case
from onnxremat.memory.events import Blocks, Events, Integers, blocks, joined
from onnxremat.memory.native import HANDED_ON, KEPT, CommonSlab
from onnxremat.memory.packing import pack_blocks
from onnxremat.memory.session import SlabSession
from onnxremat.ort.values import value_at
from onnxremat.rewrite.partition import Key, Partition, Partitioned

Result = tuple[int, str]  # of an action


class Order:
    """Actions on one line, that of the plan, and which of them may come side by side.

    Args:
        side_by_side: devices are streams; else one action comes after the other.
        waits: further (before, after) pairs of actions.
    """

    def __init__(
        self,
        parts: Partitioned,
        machine: Machine,
        side_by_side: bool,
        waits: Sequence[tuple[int, int]],
    ) -> None:
        self.parts, self.machine, self.waits = parts, machine, list(waits)
        self._side_by_side = side_by_side
        count = len(parts.actions)
        self._names = stream_names(parts, machine) if side_by_side else [""] * count
        self._done = before(self._names, after_with(parts, waits))

    def streams(self, chosen: Iterable[int]) -> list[list[int]]:
        """Some of the actions by stream."""
        found: dict[str, list[int]] = {}
        for index in sorted(chosen):
            found.setdefault(self._names[index], []).append(index)
        return list(found.values())

    def last_beside(self, stream: Sequence[int], users: int) -> int:
        """The last action of a stream that may come before all of ``users``, bits of actions, are
        done; -1 where there is none."""
        # What is done before an action only grows along its stream.
        at = bisect_right(stream, False, key=lambda x: not users & ~self._done[x])
        return stream[at - 1] if at else -1

    def worst(self, held: Mapping[int, int]) -> int:
        """Most bytes on some devices, each at its worst, its residents aside.

        Args:
            held: bytes inside of partitions while they run; their devices count.
        """
        rows = enumerate(self.parts.actions)
        ran = {index: action for index, action in rows if isinstance(action, Partition)}
        inside = {i: Inside(0, (str(i),), (held.get(i, 0),), "counted") for i in ran}
        stays = residents(self.parts, self.machine, inside)
        if self._side_by_side:
            peaks = worst_case(self.parts, self.machine, inside, self.waits)
        else:
            found = device_bytes(self.parts, self.machine, inside)
            peaks = {name: row.peak for name, row in found.items()}
        on = {ran[index].device for index in held}
        return sum(peaks[name] - stays[name].total for name in on)


class SharedSlab:
    """The slab that sessions of an executor share, laid out after its first run.

    Args:
        sessions: of partitions, by action.
        limited: devices have limits: no slab that takes more than slabs of their own, given back
            after each partition, and values between them.

    Attributes:
        crowded: bytes by which the slab would take more than that; 0 where there is one.
        settled: values that have one place in all runs, over the memory there.
    """

    def __init__(
        self,
        parts: Partitioned,
        traffic: Traffic,
        order: Order,
        sessions: Mapping[int, SlabSession],
        *,
        limited: bool,
    ) -> None:
        self._parts, self._traffic, self._order = parts, traffic, order
        self._sessions, self._limited = sessions, limited
        self._events: dict[int, Events] = {}
        self._slots: dict[int, dict[str, int]] = {}
        self._common: CommonSlab | None = None
        self.crowded = 0
        self.settled: dict[Key, Any] = {}
        self._record(True)

    # ---- runs --------------------------------------------------------------------------------

    @property
    def taken(self) -> bool:
        """The run that is on has its blocks there."""
        return self._common is not None and self._common.taken

    @property
    def bytes(self) -> int:
        """Of the slab; 0 where there is none."""
        return self._common.bytes if self._common else 0

    def begin(self) -> None:
        """A run begins: in the slab where that is empty, as one that failed may have left blocks
        there; and never again once a session asked for other bytes than at first."""
        if self._common is None:
            return
        if self._common.unfit:
            self.leave()
        else:
            self._common.taken = not self._common.live

    def leave(self) -> None:
        """Between runs: no session has blocks in the slab any more."""
        for session in self._sessions.values():
            session.leave_common()
        self._common, self.settled = None, {}

    def note(self, index: int, names: Sequence[str], values: Sequence[Any]) -> None:
        """A partition ran just now, and made these values."""
        if not self._recording or index not in self._sessions:
            return
        made = zip(names, values, strict=True)
        where = {name: value.data_ptr() for name, value in made if value.is_tensor()}
        record = self._sessions[index].last_record(where)
        if record:
            self._events[index], self._slots[index] = record

    def end(self) -> None:
        """A run is over; the next one may come from elsewhere (:meth:`Executor.carry`)."""
        if self._common:
            self._common.taken = False
        if self._recording:
            self._record(False)
            if self._events.keys() == self._sessions.keys():
                self._lay_out()
            self._events, self._slots = {}, {}

    def _record(self, on: bool) -> None:
        self._recording = on
        for session in self._sessions.values():
            session.recording = on

    def _lay_out(self) -> None:
        """Give all sessions their places, where they are not better left as they are."""
        holder, readers = self._holders()
        placed, size, apart = self._packed(holder, readers)
        slabs = {index: session.slab_bytes for index, session in self._sessions.items()}
        if self._limited:
            self.crowded = max(0, size + apart - self._order.worst(slabs))
        if not size or self.crowded:
            return
        try:
            common = CommonSlab(size)
        except MemoryError:
            return
        settled: dict[Key, Any] = {}
        bindable = self._bindable(holder, readers)
        for index, (offset, fate) in placed.items():
            lasting = list[int]()
            for slot, results in self._results(index).items():
                keys = [key for each in results for key in bindable.get(each, ())]
                if fate[slot] != HANDED_ON or len(results) > 1 or not keys:
                    continue
                address = common.begin + int(offset[slot])
                value = value_at(address, self._parts.graph.tensors[keys[0][0]])
                if value is not None:
                    lasting.append(slot)
                    settled |= dict.fromkeys(keys, value)
            # What is bound there is not asked for.
            asked = ~np.isin(self._events[index]["slot"], lasting)
            self._sessions[index].place(self._events[index][asked], offset, fate, common)
        self._common, self.settled = common, settled

    def _bindable(
        self, holder: Mapping[Key, Result], readers: Mapping[Result, int]
    ) -> dict[Result, list[Key]]:
        """What a result is to all that have it, where these are sessions of the slab and copies
        that hand it over: others have to be told of it in every run."""
        over = enumerate(self._traffic.shared)
        told = sum(1 << i for i, shared in over if not shared and i not in self._sessions)
        found: dict[Result, list[Key]] = {}
        for key, result in holder.items():
            if not readers[result] & told:
                found.setdefault(result, []).append(key)
        return found

    # ---- when blocks are live ----------------------------------------------------------------

    def _packed(
        self, holder: Mapping[Key, Result], readers: Mapping[Result, int]
    ) -> tuple[dict[int, tuple[Integers, Integers]], int, int]:
        """By action the offset and the fate of each slot; bytes of the slab, and of blocks of
        their own."""
        line = _Line(self._order, {index: len(events) for index, events in self._events.items()})
        # What goes to the caller.
        final = {holder[key] for key in self._traffic.final.values() if key in holder}
        rows, fates = list[Blocks](), list[Integers]()
        for index in sorted(self._events):
            found = line.inner(index, blocks(self._events[index]))
            fate = np.where(found.kept, KEPT, 0)
            for slot, results in self._results(index).items():
                if found.kept[slot] and not final & results:
                    fate[slot] = HANDED_ON
                    users = reduce(or_, (readers.get(each, 0) for each in results), 1 << index)
                    found.last[slot] = line.end[users.bit_length() - 1]
                    found.until[slot] = np.maximum(line.beside(users), found.first[slot])
            rows.append(found)
            fates.append(fate)
        every, fate = joined(rows), np.concatenate(fates)
        (here,) = np.nonzero(fate != KEPT)
        offset = np.zeros(len(fate), np.int64)
        offset[here], size = pack_blocks(every[here])
        ends = np.cumsum([len(fate) for fate in fates])[:-1]
        pairs = zip(np.split(offset, ends), fates, strict=True)
        apart = int(every.size[fate == KEPT].sum())
        return dict(zip(sorted(self._events), pairs, strict=True)), size, apart

    def _results(self, index: int) -> dict[int, set[Result]]:
        """By slot the results of an action that have it: more than one where it is a view."""
        found: dict[int, set[Result]] = {}
        for name, slot in self._slots[index].items():
            found.setdefault(slot, set()).add((index, name))
        return found

    def _holders(self) -> tuple[dict[Key, Result], dict[Result, int]]:
        """The result that each value is, wherever it lies; who holds each, as bits of actions."""
        holder: dict[Key, Result] = {}
        readers: dict[Result, int] = {}
        for index, (reads, writes) in enumerate(self._parts.uses):
            for key in reads:
                if key in holder:
                    readers[holder[key]] |= 1 << index
            if isinstance(self._parts.actions[index], Partition):
                for key in self._traffic.makes[index]:
                    holder[key] = (index, key[0])
                    readers[holder[key]] = 1 << index
            elif self._traffic.shared[index] and reads and reads[0] in holder:
                holder |= dict.fromkeys(writes, holder[reads[0]])
        return holder, readers


class _Line:
    """Events of partitions on one line, in the order of the plan.

    Args:
        events: number by action.

    Attributes:
        end: the last event at the end of each action.
    """

    def __init__(self, order: Order, events: Mapping[int, int]) -> None:
        self._order, self._streams = order, order.streams(events)
        self._stream = {index: i for i, row in enumerate(self._streams) for index in row}
        counts = [events.get(index, 0) for index in range(len(order.parts.actions))]
        self.end = np.cumsum(counts, dtype=np.int64) - 1
        self._begin = self.end + 1 - counts

    def beside(self, users: int) -> Integers:
        """Per stream the last event that may come before all of ``users`` are done, or -1."""
        last = [self._order.last_beside(stream, users) for stream in self._streams]
        return np.array([self.end[index] if index >= 0 else -1 for index in last], np.int64)

    def inner(self, index: int, found: Blocks) -> Blocks:
        """The blocks of a partition by itself, on this line."""
        first, last = found.first + self._begin[index], found.last + self._begin[index]
        until = np.tile(self.beside(1 << index), (len(first), 1))
        until[:, self._stream[index]] = last
        stream = np.full(len(first), self._stream[index], np.int64)
        return Blocks(
            found.size, first, last, found.kept, stream, np.maximum(until, first[:, None])
        )
