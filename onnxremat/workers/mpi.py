"""Processes that run one command together, through MPI: who this one is, sums over all, the end."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from types import TracebackType
from typing import Any

import numpy as np

from onnxremat.device.host import processors
from onnxremat.errors import MissingComponentError, UnsupportedError, UsageError
from onnxremat.limits import at_least
from onnxremat.workers.courier import Courier, Delay

# How many processes there are, and which one this is: set by launchers.
STARTED = (
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),  # of srun; a batch script has none of a step's
)
NAP = 2e-5  # seconds between two looks whether a sum is there
EAGER = 1e-4  # seconds without naps before: each takes three times as long
ALONE = 1e-2  # the same where nobody else wants the core
ON_THE_WAY = 0.5  # seconds for what was said: a launcher drops what it has not passed on at an end
PATIENCE = 2.0  # seconds in which the first rank may tell an error that all have


@dataclass(frozen=True)
class Ranks:
    """The processes of one run.

    Attributes:
        rank: which of them this is, from 0; the first speaks for all and writes files.
        size: how many there are.
        beside: how many of them are on this machine, this one included.
    """

    rank: int
    size: int
    beside: int
    _mpi: Any
    _world: Any
    _lent: list[tuple[Any, Event]] = field(default_factory=list, compare=False)  # to couriers
    _meshes: dict[int, Mesh] = field(default_factory=dict, compare=False)  # by pipelines

    @property
    def first(self) -> bool:
        """Whether this is the one that speaks and writes."""
        return self.rank == 0

    def add_up(self, arrays: Sequence[np.ndarray]) -> None:
        """Each array becomes the sum of all ranks' arrays, in place, the same bits everywhere.

        Raises:
            UnsupportedError: an element type that MPI has no sum for.
        """
        try:
            pending = [self._world.Iallreduce(self._mpi.IN_PLACE, array) for array in arrays]
        except (KeyError, ValueError) as error:
            kinds = ", ".join(sorted({str(array.dtype) for array in arrays}))
            raise UnsupportedError(
                "MPI cannot add these arrays", why=f"{kinds}: {error}"
            ) from error
        self._finish(pending)

    def average(self, arrays: Sequence[np.ndarray]) -> None:
        """Each array becomes the mean of all ranks' arrays, in place, the same bits everywhere."""
        self.add_up(arrays)
        for array in arrays:
            array /= self.size

    def split(self, group: int) -> Ranks:
        """Those of the same group, in the same order; all have to call."""
        world = self._world.Split(group, self.rank)
        return Ranks(world.rank, world.size, self.beside, self._mpi, world)

    def _finish(self, pending: list[Any], eager: float = EAGER) -> None:
        """Wait without keeping a core busy for long: another rank may need it."""
        begin = time.perf_counter()
        while not self._mpi.Request.Testall(pending):
            if time.perf_counter() > begin + eager:
                time.sleep(NAP)

    def told(self, value: Any) -> Any:
        """What the first says, to all."""
        self.meet()
        return self._world.bcast(value, root=0)

    def everybody(self, value: Any) -> list[Any]:
        """What each says, to all."""
        self.meet()
        return self._world.allgather(value)

    def require_same(self, value: Any, what: str) -> None:
        """All have to call.

        Raises:
            UsageError: somebody has another value; they would train something that nobody asked
                for, or wait for each other for ever.
        """
        rows = self.everybody(value)
        odd = [rank for rank, row in enumerate(rows) if row != rows[0]]
        if odd:
            raise UsageError(
                f"{what} differs between rank 0 and rank {odd[0]} of {self.size}",
                why="processes that train together begin with the same files and options",
                hint="copy the files to every machine, or start from a folder that all see",
            )

    def gathered(self, value: Any) -> list[Any]:
        """What each says, to the first; the others get nothing."""
        self.meet()
        return self._world.gather(value, root=0) or []

    def courier(self, delay: Delay | None = None) -> Courier | None:
        """Transfers beside computing; None where this MPI does not let several threads call it. All
        have to call."""
        if self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE:
            return None
        self._free_ended()
        made = Courier(self._mpi, self._world.Dup(), delay)
        self._lent.append((made.world, made.over))
        return made

    def _free_ended(self) -> None:
        """Communicators of couriers that have ended in all ranks are given back: MPI has some two
        thousand, and all have to give one back together."""
        if not self._lent:
            return
        rows = self.everybody([over.is_set() for _, over in self._lent])
        ended = [all(column) for column in zip(*rows, strict=True)]
        for (world, _), over in zip(self._lent, ended, strict=True):
            if over:
                world.Free()
        self._lent[:] = [lent for lent, over in zip(self._lent, ended, strict=True) if not over]

    def meet(self, eager: float = EAGER) -> None:
        """Wait for all: what MPI waits for itself, it waits for with a busy core.

        Args:
            eager: seconds in which the core is kept busy.
        """
        self._finish([self._world.Ibarrier()], eager)

    def mean(self, value: float, eager: float = EAGER) -> float:
        """Of all ranks; ``eager`` as of :meth:`meet`."""
        array = np.array([value], np.float64)
        self._finish([self._world.Iallreduce(self._mpi.IN_PLACE, array)], eager)
        return float(array[0]) / self.size

    def sharing(self) -> int:
        """How many processes, this one too, may use some of its processors. All have to call."""
        own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        rows = self.everybody((platform.node(), own))
        beside = (row for node, row in rows if node == platform.node())
        found = sum(row == own or not set(own).isdisjoint(row) for row in beside)
        return max(1, min(found, self.beside))  # machines may have one name

    def eager(self) -> float:
        """Seconds to wait with a busy core: for longer where there is one for each process. All
        have to call."""
        return ALONE if self.sharing() <= processors() else EAGER

    def cores(self) -> int:
        """Processors for this process: those that it may use, dealt out to all that may use them,
        at least one. All have to call."""
        return max(1, processors() // self.sharing())

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is done here ends in all processes as soon as it fails in one: the others would wait
        for it for ever. One message is printed, by the first where it fails too."""
        try:
            yield
        except BaseException as error:
            if self.size == 1:
                raise
            if not self.first:
                time.sleep(PATIENCE)
            if not isinstance(error, SystemExit):
                self._say(error)
            self._world.Abort(_code(error))

    def _say(self, error: BaseException) -> None:
        text = f"error: rank {self.rank} of {self.size}: {str(error) or type(error).__name__}\n"
        sys.stderr.write(text)
        sys.stderr.flush()
        time.sleep(ON_THE_WAY)

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """A program that nobody put into :meth:`together` ends with all its processes, too: at its
        exit MPI would wait for the others, and they for it."""
        sys.__excepthook__(kind, error, trace)
        self._say(error)
        self._world.Abort(_code(error))


@dataclass(frozen=True)
class Mesh:
    """Processes as pipelines side by side; those of one pipeline are neighbours.

    Attributes:
        everyone: all of them.
        pipeline: those of this one's pipeline.
        across: those with the same place in every pipeline.
    """

    everyone: Ranks
    pipeline: Ranks
    across: Ranks

    @classmethod
    def of(cls, ranks: Ranks, pipelines: int = 1) -> Mesh:
        """So many pipelines of all ranks, the same ones every time; all have to call.

        Raises:
            UsageError: they cannot be as long as each other.
        """
        at_least(pipelines, 1, "pipelines")
        length, left = divmod(ranks.size, pipelines)
        if left or not length:
            raise UsageError(
                f"{ranks.size} processes are not {pipelines} pipelines of equal length",
                hint="another number of either",
            )
        known = ranks._meshes
        if pipelines not in known:
            pipeline, across = ranks.split(ranks.rank // length), ranks.split(ranks.rank % length)
            known[pipelines] = cls(ranks, pipeline, across)
        return known[pipelines]


def _code(error: BaseException) -> int:
    code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1


def launched() -> tuple[int, int]:
    """As one of how many processes a launcher started this one, and which: (1, 0) without one."""
    for names in STARTED:
        size, rank = (os.environ.get(name, "") for name in names)
        if size.isdigit() and rank.isdigit():
            return int(size), int(rank)
    return 1, 0


def join() -> Ranks:
    """Meet the other processes of this run; alone where it was not started by ``mpiexec``.

    From then on an exception that this process ends with ends all of them, with a message.

    Raises:
        MissingComponentError: no mpi4py, or no MPI that it can load.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingComponentError(
            "training on several processes needs MPI",
            why=str(error),
            hint="pip install 'onnxremat[mpi]', or mpi4py over the cluster's own MPI",
        ) from error
    world = MPI.COMM_WORLD
    started, _ = launched()
    if started > 1 and world.size == 1:
        raise MissingComponentError(
            f"started as one of {started} processes, but MPI knows of one only",
            why="the launcher is of another MPI than the one mpi4py loads",
            hint="start with the mpiexec beside this python, or MPI4PY_LIBMPI=path of libmpi.so; "
            "srun --mpi=list says which kinds srun knows",
        )
    machine = world.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = Ranks(world.rank, world.size, machine.size, MPI, world)
    machine.Free()
    if ranks.size > 1:
        sys.excepthook = ranks._uncaught
    return ranks
