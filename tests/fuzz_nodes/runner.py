"""Cases one after the other in a child process, and a new child where one crashes or hangs."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tests.fuzz_nodes.case import Case
from tests.fuzz_nodes.judges import Found, judge

ROUND = 64  # cases per child
SECONDS = 60  # of a processor: a case that takes more hangs
MEMORY = 8 << 30  # bytes of address space
ALONE = "onnxruntime alone"


@dataclass(frozen=True)
class Job:
    """A case by its name."""

    name: str
    case: Callable[[], Case | None]


def answers(jobs: Iterable[Job]) -> Iterator[tuple[Job, tuple[str, str]]]:
    """Each job, with the kind of its answer and what is to be said of it."""
    left = iter(jobs)
    while batch := list(islice(left, ROUND)):
        while batch:
            done = 0
            for answer in _run(batch):
                yield batch[done], answer
                done += 1
            batch = batch[done:]


def _run(batch: list[Job]) -> Iterator[tuple[str, str]]:
    """Answers of a child, as far as it came; that of the job that ended it is the last."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _in_child(batch, write)
    os.close(write)
    stage = ""
    open_case = False
    with os.fdopen(read) as lines:
        for line in lines:
            said = json.loads(line)
            open_case = "stage" in said
            if open_case:
                stage = said["stage"]
            else:
                yield said["kind"], said["text"]
    _, status = os.waitpid(child, 0)
    if not open_case:
        return
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    how = f"ended by {signal.Signals(number).name}" if number else "ended by itself"
    if number == signal.SIGPROF:
        how = f"did not end in {SECONDS} s of a processor"
    yield ("unrun" if stage == ALONE else "wrong"), f"{stage}: {how}"


def _in_child(batch: list[Job], write: int) -> None:
    """Never returns."""
    code = 1
    try:
        faulthandler.disable()
        warnings.simplefilter("ignore")  # of what is trained: the cases have nothing to train
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with os.fdopen(write, "w", buffering=1) as out:
            for job in batch:
                out.write(json.dumps({"stage": "drawing"}) + "\n")
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                found = _found(job, lambda stage: out.write(json.dumps({"stage": stage}) + "\n"))
                out.write(json.dumps(vars(found)) + "\n")
        code = 0
    finally:
        os._exit(code)


def _found(job: Job, stage: Callable[[str], object]) -> Found:
    try:
        case = job.case()
        if case is None:
            return Found("unrun", "nothing drawn")
        with np.errstate(all="ignore"):
            return judge(case, stage)
    except Exception as error:
        line = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return Found("wrong", f"a traceback, {line}")
