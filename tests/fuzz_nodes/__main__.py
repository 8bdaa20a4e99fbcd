"""python -m tests.fuzz_nodes --minutes 10 --seed 1: random nodes until the time is over.

Prints what is wrong, which goes to a folder, and how many cases of each operator were compared and
refused; exits 1 where something is wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz_nodes.case import KINDS, case, keep, kept
from tests.fuzz_nodes.runner import Job, answers

COLUMNS = ("right", "forward", "wrong", "refused", "unrun")


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where a case has a wrong answer."""
    parser = argparse.ArgumentParser(prog="make fuzz-nodes", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="10 without --cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=0, help="so many instead of --minutes")
    parser.add_argument("--only", default="", help="operators, separated by commas")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"), help="folder of findings")
    parser.add_argument("--again", type=Path, nargs="*", help="files of findings, run again")
    parser.add_argument("--each", action="store_true", help="print every refusal")
    asked = parser.parse_args(arguments)
    if asked.again:
        jobs = [Job(path.name, lambda path=path: kept(path)) for path in asked.again]
        return int(any(_told(job, answer, True) for job, answer in answers(jobs)))
    return _search(asked)


def _told(job: Job, answer: tuple[str, str], each: bool) -> bool:
    kind, text = answer
    if each or kind == "wrong":
        print(f"{job.name}: {kind}{': ' if text else ''}{text}", flush=True)
    return kind == "wrong"


def _search(asked: argparse.Namespace) -> int:
    kinds = asked.only.split(",") if asked.only else KINDS
    if unknown := sorted(set(kinds).difference(KINDS)):
        print(f"nothing draws {', '.join(unknown)}")
        return 2
    end = time.monotonic() + 60 * (asked.minutes or 10)
    counts = {kind: Counter[str]() for kind in kinds}
    reasons: Counter[tuple[str, str]] = Counter()

    def jobs():
        number = asked.first
        while number - asked.first < asked.cases if asked.cases else time.monotonic() < end:
            kind = kinds[number % len(kinds)]
            yield Job(
                f"{kind}-{asked.seed}-{number}",
                lambda kind=kind, number=number: case(asked.seed, number, kind),
            )
            number += 1

    for job, (kind, text) in answers(jobs()):
        operator = job.name.rsplit("-", 2)[0]
        counts[operator][kind] += 1
        _told(job, (kind, text), asked.each and kind != "right")
        if kind == "wrong":
            asked.keep.mkdir(exist_ok=True)
            keep(job.case(), text, asked.keep / f"{job.name}.zip")
        elif kind != "right":
            reasons[operator, f"{kind}: {text}"] += 1
    _table(counts)
    for (operator, text), many in sorted(reasons.items()) if asked.each else ():
        print(f"{many:5}  {operator}: {text}")
    return int(any(count["wrong"] for count in counts.values()))


def _table(counts: dict[str, Counter[str]]) -> None:
    """Cases per operator: compared with gradients, compared without, wrong, refused by onnxremat,
    refused by onnxruntime."""
    print(f"\n{'operator':48}" + "".join(f"{name:>9}" for name in COLUMNS))
    for operator, count in counts.items():
        if count:
            print(f"{operator:48}" + "".join(f"{count[name]:9}" for name in COLUMNS))
    total = sum(counts.values(), Counter[str]())
    print(f"{'all':48}" + "".join(f"{total[name]:9}" for name in COLUMNS))


if __name__ == "__main__":
    sys.exit(main())
