"""ONNX's own tests of operators as a judge of gradients:

    python -m tests.grad.nodes [--only NAME] [--each]

Every test of one node that the onnx package brings is judged (:mod:`tests.grad.judge`). Inputs that
are no floating-point numbers are stored in the model, and once more fed.

Prints what is wrong, and how many tests are right, refused or not judged, with the reasons; exits 1
where a gradient is wrong.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator

import numpy as np

from tests.grad.judge import RIGHT, NotJudgedError, is_smooth, judged, verdict


def main(arguments: list[str] | None = None) -> int:
    """Print what is not judged, what is wrong, and how many there are of each kind."""
    parser = argparse.ArgumentParser(prog="python -m tests.grad.nodes", description=__doc__)
    parser.add_argument("--only", default="", help="tests whose name has this in it")
    parser.add_argument("--each", action="store_true", help="print every test that is not right")
    asked = parser.parse_args(arguments)
    kinds, reasons = Counter[str](), Counter[str]()
    for name, said in verdicts(asked.only):
        kind = said.split(":")[0]
        kinds[kind] += 1
        if kind == "wrong" or (kind != RIGHT and asked.each):
            print(f"{name}  {said}", flush=True)
        if kind not in (RIGHT, "wrong"):
            reasons[said] += 1
    for said, many in reasons.most_common():
        print(f"{many:5}  {said}")
    print("\n" + ", ".join(f"{many} {kind}" for kind, many in kinds.most_common()))
    return int(kinds["wrong"] > 0)


def verdicts(only: str = "") -> Iterator[tuple[str, str]]:
    """(test, verdict): ``right``, or a kind and what is to be said of it."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():  # some results are not finite
        warnings.simplefilter("ignore", RuntimeWarning)
        tests = load_model_tests(kind="node")
    for test in tests:
        if only not in test.name:
            continue
        given = [value if isinstance(value, list | tuple) or value is None else np.asarray(value)
                 for value in test.data_sets[0][0]]  # fmt: skip
        plain = all(isinstance(value, np.ndarray) and is_smooth(value) for value in given)
        for stored in (True,) if plain else (True, False):
            try:
                said = verdict(judged(test.model, given, stored=stored))
            except NotJudgedError as why:
                said = f"not judged: {why}"
            yield f"{test.name}{'' if stored else ', all inputs fed'}", said


if __name__ == "__main__":
    sys.exit(main())
