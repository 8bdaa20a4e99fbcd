"""What processes send each other while they compute: a thread of its own calls MPI.

onnxruntime computes without letting MPI go on, and most MPIs only move data while they are called.
So a thread starts transfers and looks after them, sleeping in between. Sums over all processes go
one after the other, in the order asked for, which has to be the same in all processes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxremat.errors import OnnxrematError
from onnxremat.workers.sums.common_memory import CommonMemory
from onnxremat.workers.sums.urgent import be_urgent

NAP = 3e-4  # seconds between two looks while nobody waits
SHORT = 2e-5  # and while somebody does
REST = 5e-3  # and where all that goes on is a delay, at most


@dataclass(frozen=True)
class Delay:
    """What a slower network would take, added to every transfer (for tests and studies).

    Attributes:
        latency: seconds.
        byte: seconds per byte.
    """

    latency: float = 0.0
    byte: float = 0.0

    def of(self, size: int) -> float:
        """Seconds of a transfer of so many bytes."""
        return self.latency + self.byte * size


@dataclass
class Transfer:
    """One transfer.

    Attributes:
        asked: when somebody asked for it, by ``time.perf_counter``.
        begin, end: when it went; 0 before.
        there: when all of it had come, but for a delay; 0 before.
        go_on: begins what follows once that is done; None for nothing.
    """

    name: str
    size: int
    start: Callable[[], Any] = field(repr=False)
    asked: float = field(default_factory=time.perf_counter)
    begin: float = 0.0
    end: float = 0.0
    there: float = 0.0
    done: threading.Event = field(default_factory=threading.Event, repr=False)
    error: BaseException | None = None
    requests: list[Any] = field(default_factory=list, repr=False)
    go_on: Callable[[], Any] | None = field(default=None, repr=False)

    def set_out(self) -> None:
        """It begins."""
        self.requests += self.start()


class Courier:
    """Transfers between the processes of a run.

    Args:
        mpi: the module.
        world: a communicator that nobody else uses.
        delay: what every transfer takes longer.

    Attributes:
        common: memory whose sums need no messages, None for none.
        worked: seconds of a core that transfers took so far.
        over: its thread has ended, and calls MPI no more.
    """

    common: CommonMemory | None = None

    def __init__(self, mpi: Any, world: Any, delay: Delay | None = None) -> None:
        self._mpi, self.world, self.delay = mpi, world, delay or Delay()
        self._sums: deque[Transfer] = deque()
        self._fresh: deque[Transfer] = deque()
        self._waiting, self._ended, self.worked = 0, False, 0.0
        self._wake = threading.Condition()
        self.finished: Callable[[Transfer], None] | None = None
        self._broken: BaseException | None = None
        self.over = threading.Event()
        threading.Thread(target=self._guard, name="courier", daemon=True).start()

    # ---- what others ask for -----------------------------------------------------------

    def add_up(self, arrays: Sequence[np.ndarray], name: str = "", times: float = 1.0) -> Transfer:
        """Each array becomes the sum of all ranks' arrays times a number, the same bits
        everywhere."""

        def start() -> list[Any]:
            return [self.world.Iallreduce(self._mpi.IN_PLACE, array) for array in arrays]

        def all_there() -> list[Any]:
            return [self.world.Ibarrier()]

        def share() -> list[Any]:
            assert self.common is not None
            self.common.add_share(arrays, times)
            return all_there()

        def multiplied() -> list[Any]:
            for array in arrays:
                array *= array.dtype.type(times)
            return []

        size = sum(array.nbytes for array in arrays)
        if self.common is not None and self.common.holds(arrays):
            return self._asked(Transfer(name, size, all_there, go_on=share), self._sums)
        after = None if times == 1.0 else multiplied
        return self._asked(Transfer(name, size, start, go_on=after), self._sums)

    def bring(self, raw: np.ndarray, source: int, name: str = "") -> Transfer:
        """Bytes of one rank to all others; in turn with the sums."""
        start = lambda: [self.world.Ibcast(raw, source)]  # noqa: E731
        return self._asked(Transfer(name, raw.nbytes, start), self._sums)

    def send(self, raw: np.ndarray, to: int, tag: int, name: str = "") -> Transfer:
        """Bytes to another rank; they have to stay as they are until it is done."""
        start = lambda: [self.world.Isend(raw, to, tag)]  # noqa: E731
        return self._asked(Transfer(name, raw.nbytes, start), self._fresh)

    def receive(self, raw: np.ndarray, source: int, tag: int, name: str = "") -> Transfer:
        """Bytes from another rank; of one tag they come in the order in which they were sent."""
        start = lambda: [self.world.Irecv(raw, source, tag)]  # noqa: E731
        return self._asked(Transfer(name, 0, start), self._fresh)

    def wait(self, transfer: Transfer) -> None:
        """Until it is done.

        Raises:
            OnnxrematError: MPI could not do it.
        """
        if not transfer.done.is_set():
            with self._wake:
                self._waiting += 1
                self._wake.notify()
            transfer.done.wait()
            with self._wake:
                self._waiting -= 1
        if transfer.error is not None:
            raise OnnxrematError("a transfer failed", where=transfer.name, why=str(transfer.error))

    def close(self) -> None:
        """No more transfers: its thread ends, and with it all that it holds."""
        with self._wake:
            self._ended = True
            self._wake.notify()

    def _asked(self, transfer: Transfer, queue: deque[Transfer]) -> Transfer:
        with self._wake:
            if self._broken is not None:
                transfer.error = self._broken
                transfer.done.set()
            queue.append(transfer)
            self._wake.notify()
        return transfer

    # ---- the thread --------------------------------------------------------------------

    def _guard(self) -> None:
        """Whatever ends the thread ends all that wait for it: nobody waits for ever."""
        active: list[Transfer] = []
        be_urgent()
        try:
            self._work(active)
        except BaseException as error:
            with self._wake:
                self._broken = error
                for each in (*active, *self._fresh, *self._sums):
                    each.error = each.error or error
                    each.done.set()
        finally:
            self.over.set()

    def _work(self, active: list[Transfer]) -> None:
        sums: Transfer | None = None
        while True:
            with self._wake:
                while not (active or self._fresh or self._sums or self._ended):
                    self._wake.wait()
                if self._ended:
                    return
                fresh = [self._fresh.popleft() for _ in range(len(self._fresh))]
                if sums is None and self._sums:
                    sums = self._sums.popleft()
                    fresh.append(sums)
                nap = SHORT if self._waiting else NAP
            for each in fresh:
                each.begin = time.perf_counter()
                self._guarded(each, each.set_out)
            active += fresh
            done = [each for each in active if self._over(each)]
            active[:] = [each for each in active if not each.done.is_set()]
            if sums is not None and sums.done.is_set():
                sums = None
            self.worked = time.thread_time()
            if not done:
                self._rest(active, nap, sums is not None)

    def _rest(self, active: Sequence[Transfer], nap: float, adding: bool) -> None:
        """Until the next look; where all that goes on is a delay, until one of them is over or
        something else is asked for: looking would take time of a core that computes."""
        if not all(each.there for each in active):
            time.sleep(nap)
            return
        over = min((each.there + self.delay.of(each.size) for each in active), default=0.0)
        with self._wake:
            if not (self._fresh or self._ended or (self._sums and not adding)):
                self._wake.wait(min(max(over - time.perf_counter(), 0.0), REST))

    def _over(self, each: Transfer) -> bool:
        """Whether it is done, which is then told."""
        if each.error is None:
            over = self._guarded(each, lambda: self._mpi.Request.Testall(each.requests))
            if over and each.go_on is not None and each.error is None:
                each.start, each.go_on = each.go_on, None
                each.requests.clear()
                self._guarded(each, each.set_out)
                return False
            now = time.perf_counter()
            each.there = each.there or (now if over else 0.0)
            if not over or now < each.there + self.delay.of(each.size):
                return False
            each.end = now
        each.done.set()
        if self.finished is not None:
            self.finished(each)
        return True

    def _guarded(self, each: Transfer, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # MPI's own types
            each.error = error
            return True
