"""A case in a process of its own, with limits on time and memory, and what its answer is worth.

Processes are forked from one that has imported everything: a case takes what its command takes.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.fuzz.case import Case

SECONDS = 60  # of a processor: a case that takes more hangs, whatever else the machine does
WALL = 900.0  # seconds until a case that waits is ended
MEMORY = 12 << 30  # bytes of address space
FILE = 256 << 20  # bytes of a file
DOCUMENTED = {0, 2, 3, 4, 6, 7, 8, 9}  # 1 is a mistake of ours, 5 a wrong result that was caught
CLOSE = 2e-3  # relative and absolute: onnxruntime fuses the original otherwise


def prepare() -> None:
    """Import and compile what every case needs, once."""
    import onnxremat.cli.commands
    import onnxremat.pipeline.optimize
    import onnxremat.workers.pipelines.kernels
    from onnxremat.placement.kernels import warm_up as warm_placement
    from onnxremat.planner.search import warm_up

    assert onnxremat.cli.commands
    warm_up()
    warm_placement()


@dataclass(frozen=True)
class Answer:
    """What a command said and ended with, and what is wrong with that ("" where nothing is)."""

    code: int
    said: str
    wrong: str


def run(case: Case) -> str:
    """What is wrong with the answer to a case, "" where nothing is."""
    return answer(case).wrong


def answer(case: Case) -> Answer:
    """Carry a case out and judge what comes of it."""
    with tempfile.TemporaryDirectory(prefix="onnxremat-fuzz-") as place:
        work = Path(place) / "work"
        work.mkdir()
        for name, content in case.files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        before = _listing(work)
        code, why = forked(lambda: _command(case.command), work)
        said = (work.parent / "err").read_text(errors="replace")
        wrong = why or _judged(code, said, _listing(work) - before, case.allowed)
        wrong = wrong or _contradicts(case, code, said, work)
        if not wrong and code == 0 and case.same and (work / case.same[1]).exists():
            wrong = _differs(case, work)
        return Answer(code, said, wrong)


def _listing(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*"))
    return {str(path) for path in found if path.parts[0] != "cache"}


def _command(arguments: tuple[str, ...]) -> None:
    from onnxremat.cli.app import main

    sys.argv = ["onnxremat", *arguments]
    main()


def _judged(code: int, said: str, new: set[str], allowed: tuple[int, ...] = ()) -> str:
    """What is wrong with an exit code, a message and the files that are there now."""
    if "Traceback" in said:
        return "a traceback: " + said.strip().splitlines()[-1][:200]
    crash = re.search(r"^error: .* crashe[sd] .*", said, re.MULTILINE)
    if crash and not (code == 7 and "onnxruntime by itself crashes" in said):
        return crash[0]
    if code not in (*DOCUMENTED, *allowed):
        return f"exit code {code}: " + " ".join(said.partition("error: ")[2].split())[:300]
    hidden = [name for name in new if Path(name).name.startswith(".")]
    if hidden:
        return f"a partial file: {hidden[0]}"
    if code == 0:
        return ""
    if new:
        return f"exit code {code}, and a file: {sorted(new)[0]}"
    errors = re.findall(r"^(?:error: |Error|Usage: )", said, re.MULTILINE)
    return "" if errors else f"exit code {code} without a message"


def _contradicts(case: Case, code: int, said: str, work: Path) -> str:
    """What is wrong with the hint of a refusal: the budget that it gives has to work."""
    hint = re.search(r"--budget (\d+|[\d.]+[x%]) \(", said)
    if code not in (3, 4, 6) or hint is None or "-b" not in case.command:
        return ""
    budget = hint[1]
    least = [int(size) for size in re.findall(r"at least [^()]*\((\d+) B\)", said)]
    if budget.isdigit() and max(least, default=0) > int(budget):
        return (
            f"the hint is a budget of {budget}, where at least {max(least)} are said to be needed"
        )
    words = list(case.command)
    words[words.index("-b") + 1 : words.index("-b") + 2] = [budget]
    code, why = forked(lambda: _command(tuple(words)), work)
    if not why and code == 0:
        return ""
    again = " ".join((work.parent / "err").read_text(errors="replace").split())
    return f"the budget of the hint, {budget}, is refused: {why or code} {again[-300:]}"


def _differs(case: Case, work: Path) -> str:
    """How the result differs from the original, by plain onnxruntime."""
    assert case.same is not None
    original, result = case.same
    if result.endswith(".json") or case.command[0] in ("differentiate", "set-batch", "set-input"):
        return ""
    answer = work.parent / "differs"
    code, why = forked(lambda: answer.write_text(_compared(original, result)), work)
    if why or code:
        return f"the result cannot be compared: {why or code}"
    return answer.read_text()


def _compared(original: str, result: str) -> str:
    """Outputs of two models on the same inputs."""
    import onnxruntime

    from onnxremat.graph.onnx_io import read_model
    from onnxremat.ort.feeds import seeded_feeds
    from onnxremat.ort.infer import build_graph

    graph = build_graph(read_model(result), Path())
    feeds = seeded_feeds(graph, seed=7)
    found = []
    for path in (original, result):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
            names = [value.name for value in session.get_outputs()]
            outputs = session.run(None, feeds)
        except Exception:
            if path == result:
                raise
            return ""  # inputs that it does not take, or a wrong type that it states
        found.append(dict(zip(names, outputs, strict=True)))
    if list(found[0]) != list(found[1]):
        return f"outputs {list(found[1])} instead of {list(found[0])}"
    for name, wanted in found[0].items():
        got = found[1][name]
        if isinstance(wanted, np.ndarray) and not _close(wanted, got):
            return f"output '{name}' is another"
    return ""


def _close(wanted: np.ndarray, got: np.ndarray) -> bool:
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return False
    if wanted.dtype.kind not in "fc":
        return bool((wanted == got).all())
    return bool(np.allclose(wanted, got, rtol=CLOSE, atol=CLOSE, equal_nan=True))


def forked(
    job: Callable[[], object], work: Path, look: Callable[[int], None] | None = None
) -> tuple[int, str]:
    """Exit code of a job in a child process, and why it was ended ("" where it ended itself).

    Args:
        look: called again and again while it runs, with its id.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _in_child(job, work)
    begin = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() - begin > WALL:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 0, f"it did not end in {WALL:.0f} s"
        if look is not None:
            look(child)
        time.sleep(0.01)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status), ""
    number = os.WTERMSIG(status)
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return 0, f"it did not end in {SECONDS} s of a processor"
    return 0, f"ended by {signal.Signals(number).name}"


def _in_child(job: Callable[[], object], work: Path) -> None:
    """Never returns."""
    code = 70
    try:
        os.chdir(work)
        os.environ["ONNXREMAT_CACHE"] = "cache"  # in the folder of the case
        for number, mode in ((1, "out"), (2, "err")):
            file = os.open(work.parent / mode, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        used = int(sum(os.times()[:2])) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        job()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        with suppress(OSError):
            traceback.print_exc()
    finally:
        with suppress(OSError):  # a limit on files holds for what is said, too
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


@contextmanager
def own_temporary_folder() -> Iterator[None]:
    """What ended cases leave in the folder for temporary files goes with it, and what is measured
    while cases are drawn."""
    names = ("TMPDIR", "ONNXREMAT_CACHE")
    before = {name: os.environ[name] for name in names if name in os.environ}
    folder = tempfile.mkdtemp(prefix="onnxremat-fuzz-")
    tempfile.tempdir = folder
    os.environ.update(TMPDIR=folder, ONNXREMAT_CACHE=str(Path(folder) / "cache"))
    try:
        yield
    finally:
        tempfile.tempdir = None
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)
