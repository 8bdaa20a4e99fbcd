"""Bytes of steps that are written down once and put together in any choice."""

from __future__ import annotations

import pytest

from onnxremat.fission.ledger import LackingError, Ledger, Made, Step

MAKE = Step((Made("a", 8, "", ()),), (), 0, 0)
SHOW = Step((Made("b", 8, "a", ()),), ("a",), 0, 1)  # the same buffer
TAKE = Step((Made("c", 8, "", ("b",)),), ("b",), 3, 2)  # over, where it dies
COPY = Step((Made("d", 4, "", ()),), ("a",), 0, -1)
LAST = Step((Made("y", 2, "", ()),), ("c",), 0, 3)


def _levels(*steps: Step) -> tuple[tuple[int, ...], int]:
    ledger = Ledger(4, ["y"])
    return ledger.levels([ledger.add([step]) for step in steps])


def test_buffers_are_shared_and_taken_over_where_they_die() -> None:
    assert _levels(MAKE, SHOW, TAKE, LAST) == ((8, 8, 11, 10), 11)
    again = Step((), ("b",), 0, 3)  # `b` is read once more: `c` needs a buffer of its own
    assert _levels(MAKE, SHOW, TAKE, LAST, again)[0][2] == 19


def test_what_nobody_reads_stays_and_a_copy_counts_for_the_step_behind_it() -> None:
    assert _levels(MAKE, COPY, SHOW, TAKE, LAST) == ((8, 12, 15, 14), 15)


def test_a_buffer_of_the_caller_takes_nothing_and_never_dies() -> None:
    shown = Step((Made("a", 8, "x", ()),), (), 0, 0)
    own = Step((Made("c", 8, "", ("a",)),), ("a",), 0, 1)
    assert _levels(shown, own) == ((0, 8, 0, 0), 8)


def test_what_is_not_made_before_it_is_read_is_named() -> None:
    ledger = Ledger(4, ["y"])
    stretches = [ledger.add([step]) for step in (MAKE, SHOW, TAKE, LAST)]
    right = ledger.levels(stretches)
    with pytest.raises(LackingError, match=r"^b$"):
        ledger.levels([stretches[0], stretches[2], stretches[3]])
    assert ledger.levels(stretches) == right  # nothing is left of it
    many = [ledger.add([Step((Made(f"v{i}", 1, "", ()),), (), 0, 0)]) for i in range(9000)]
    assert ledger.levels([*many, *stretches])[1] == 9011  # lists grow


def test_steps_are_there_once_more_for_other_values() -> None:
    ledger, written = Ledger(4, ["y"]), Ledger(4, ["y"])
    steps = [ledger.add([MAKE]), ledger.add([SHOW, TAKE])]
    begin = len(ledger)
    ledger.add_again(*steps[1], {"a": "x", "c": "z"})  # and "b" is a value of its own
    steps += [(begin, len(ledger)), ledger.add([LAST])]
    first = Step((Made("x", 8, "", ()),), (), 0, 0)
    show = Step((Made("other", 8, "x", ()),), ("x",), 0, 1)
    take = Step((Made("z", 8, "", ("other",)),), ("other",), 3, 2)
    other = [written.add(each) for each in ([MAKE], [SHOW, TAKE], [show, take], [LAST])]
    for one, two in ((steps, ledger), (other, written)):
        one.insert(2, two.add([first]))
    assert ledger.levels(steps) == written.levels(other)
