"""python -m tests.fuzz --minutes 30 --seed 1: random cases until the time is over."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz import folder
from tests.fuzz.cases import KINDS, case
from tests.fuzz.found import keep, kept
from tests.fuzz.runner import own_temporary_folder, prepare, run


def main() -> int:
    """Exit code 1 where a case has a wrong answer."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="30 without --cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=0, help="so many instead of --minutes")
    parser.add_argument("--jobs", type=int, default=1, help="so many at the same time")
    parser.add_argument("--only", choices=list(KINDS), default="", help="one kind")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"), help="folder of findings")
    parser.add_argument("--folder", type=Path, help="judge the models below it instead")
    parser.add_argument("--again", type=Path, nargs="*", help="files of findings, run again")
    asked = parser.parse_args()
    prepare()
    with own_temporary_folder():
        if asked.folder:
            return _folder(asked)
        wrong = [path for path in asked.again or () if _again(path)]
        if asked.again and not (asked.cases or asked.minutes):
            return int(bool(wrong))
        return max(_search(asked), int(bool(wrong)))


def _again(path: Path) -> str:
    wrong = run(kept(path))
    print(f"{path.name}: {wrong or 'right'}")
    return wrong


def _folder(asked: argparse.Namespace) -> int:
    """Files that others made: wrong answers as they are found, then all answers by their kind."""
    found = []
    with get_context("fork").Pool(asked.jobs) as pool:
        for path, given, runs in pool.imap_unordered(folder.judged, folder.models(asked.folder)):
            found.append((path, given, runs))
            if given.wrong:
                print(f"{path}: {given.wrong}", flush=True)
    print("\n".join(folder.told(found)))
    return int(any(given.wrong for _, given, _ in found))


def _search(asked: argparse.Namespace) -> int:
    done: Counter[str] = Counter()
    found: Counter[str] = Counter()
    share, jobs = partial(_share, asked, _end(asked)), range(asked.jobs)
    with get_context("fork").Pool(asked.jobs) if asked.jobs > 1 else nullcontext() as pool:
        for one in pool.imap_unordered(share, jobs) if pool else map(share, jobs):
            done += one[0]
            found += one[1]
    cases = ", ".join(f"{number} {kind}" for kind, number in sorted(done.items()))
    print(f"{done.total()} cases ({cases}), {found.total()} with a wrong answer")
    return int(bool(found))


def _end(asked: argparse.Namespace) -> float:
    return math.inf if asked.cases else time.monotonic() + 60 * (asked.minutes or 30)


def _share(asked: argparse.Namespace, end: float, job: int) -> tuple[Counter[str], Counter[str]]:
    """A job's cases: how many of each kind, and how many with a wrong answer."""
    done: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for number in count(asked.first + job, asked.jobs):
        if number - asked.first >= asked.cases if asked.cases else time.monotonic() > end:
            break
        made = case(asked.seed, number, asked.only)
        wrong = run(made)
        done[made.kind] += 1
        if wrong:
            found[made.kind] += 1
            asked.keep.mkdir(exist_ok=True)
            path = asked.keep / f"{made.kind}-{asked.seed}-{number}.zip"
            keep(made, wrong, path)
            print(f"{path}: {wrong}", flush=True)
    return done, found


if __name__ == "__main__":
    sys.exit(main())
