"""python -m tests.faults: every fault at every moment of every command."""

from __future__ import annotations

import argparse
import sys

from tests.faults.commands import commands
from tests.faults.trial import KINDS, search
from tests.fuzz.runner import own_temporary_folder, prepare


def main() -> int:
    """Exit code 1 where something is wrong afterwards."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--only", choices=list(commands()), default="", help="one command")
    parser.add_argument("--kind", choices=KINDS, default="", help="one kind of fault")
    parser.add_argument("--last", type=int, default=0, help="so many moments of each, the last")
    asked = parser.parse_args()
    prepare()
    total = 0
    kinds = (asked.kind,) if asked.kind else KINDS
    with own_temporary_folder():
        for name, make in commands().items():
            if not asked.only or name == asked.only:
                tried, found = search(
                    make(), kinds, lambda text, name=name: print(f"{name}: {text}"), asked.last
                )
                print(f"{name}: {tried} faults, {found} wrong ends", flush=True)
                total += found
    return int(bool(total))


if __name__ == "__main__":
    sys.exit(main())
