"""Sizes and budgets as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxremat.errors import InfeasibleError, OnnxrematError, UsageError
from onnxremat.units import (
    format_bytes,
    format_seconds,
    parse_budget,
    parse_budgets,
    parse_bytes,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1), ("123", 123), ("2GiB", 2 * GIB), ("2Gi", 2 * GIB), ("2G", 2 * GIB),
        ("2g", 2 * GIB), ("2GB", 2 * 10**9), ("2gb", 2 * 10**9), ("1.5KiB", 1536), (".5k", 512),
        ("500MB", 500 * 10**6), ("1TiB", 1 << 40), (" 7 MiB ", 7 << 20), ("10B", 10), ("10b", 10),
    ],
)  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1", "0", "0.0GiB", "1e9", "nan", "1 2", "1PiB", "1GiBs", "0x10", "٣", "1,5G"],
)
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)
    with pytest.raises(UsageError, match="budget"):
        parse_budget(text)


@given(st.integers(1, 1 << 50))
def test_a_size_is_read_back_as_written(count: int) -> None:
    assert parse_bytes(str(count)) == count
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.01, abs=1)


@given(st.text(max_size=12))
def test_any_text_is_a_budget_or_a_usage_error(text: str) -> None:
    try:
        budgets = parse_budgets(text)
    except UsageError:
        return
    for budget in budgets.values():
        value = budget.resolve(device_bytes=GIB, peak_bytes=GIB)
        assert value is None or value >= 0
        assert math.isfinite(budget.value)


def test_kinds_of_budget() -> None:
    def resolved(text: str) -> int | None:
        return parse_budget(text).resolve(device_bytes=1000, peak_bytes=200)

    assert resolved("60%") == 600
    assert resolved("0.5x") == 100
    assert resolved("2X") == 400
    assert resolved("300") == 300
    assert resolved("MIN") is None
    assert parse_budget(4096).value == 4096


def test_budgets_per_device() -> None:
    found = parse_budgets("cuda:0=6GiB, CPU=60%")
    assert {device: budget.kind for device, budget in found.items()} == {
        "cuda:0": "bytes", "cpu": "device",
    }  # fmt: skip
    for wrong in ("cpu=1,cpu=2", "=1", "cpu=1,", "cpu=x"):
        with pytest.raises(UsageError):
            parse_budgets(wrong)


def test_seconds_for_people() -> None:
    texts = [format_seconds(value) for value in (0.0, 2e-7, 5e-6, 0.0123, 3.0, math.inf)]
    assert texts == ["0 us", "0.2 us", "5 us", "12.3 ms", "3 s", "inf"]


def test_an_error_says_what_where_why_and_what_to_try() -> None:
    error = OnnxrematError("it broke", where="here", why="because", hint="this")
    assert str(error) == "it broke\n  where here\n  why   because\n  try   this"
    assert str(OnnxrematError("it broke")) == "it broke"
    assert InfeasibleError("no", smallest=5, lower_bound=3).smallest == 5
