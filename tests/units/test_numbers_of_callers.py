"""Numbers that the command line refuses by itself are refused of programs, too, by their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from onnxremat.device.files import read_machine
from onnxremat.errors import UsageError
from onnxremat.pipeline.optimize import Request
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.studies.curve import curve
from onnxremat.studies.max_batch import Batches, max_batch
from onnxremat.studies.planners import compare_planners
from onnxremat.training.data import Arrays
from onnxremat.training.schedules import Schedule
from onnxremat.units import one_budget

NOBODY: Any = None  # refused before it is looked at
BATCHES = Batches("in.onnx", Settings(), "batch")
ASKED = one_budget("1MiB"), PlanOptions()


def pipeline(**numbers: int) -> Request:
    return Request(machine=read_machine("cpu-2x1"), objective="throughput", **numbers)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: curve(NOBODY, None, 1, PlanOptions()), "points is 1"),
        (lambda: curve(NOBODY, None, 2, PlanOptions(), jobs=0), "jobs is 0"),
        (lambda: compare_planners(NOBODY, [], PlanOptions(), jobs=-1), "jobs is -1"),
        (lambda: max_batch(BATCHES, *ASKED, most=0), "most is 0"),
        (lambda: max_batch(BATCHES, *ASKED, max_overhead=float("nan")), "max_overhead is nan"),
        (lambda: Request(bench_seconds=float("nan")), "bench_seconds is nan"),
        (lambda: pipeline(in_flight=0), "in_flight is 0"),
        (lambda: pipeline(replicas=0), "replicas is 0"),
        (lambda: PlanOptions(threads=-1), "threads is -1"),
        (lambda: PlanOptions(time_limit=float("nan")), "time_limit is nan"),
        (lambda: PlanOptions(gap=-1.0), "gap is -1"),
        (lambda: Schedule(float("nan")), "rate is nan"),
        (lambda: Schedule(0.1, warmup=-1), "warmup is -1"),
        (lambda: Arrays({"x": np.ones((3, 2))}, 0), "size of a batch is 0"),
        (lambda: PlanOptions(threads=cast(Any, "2")), "threads is 2"),
    ],
)
def test_a_number_that_says_nothing_sensible(call: Callable[[], object], name: str) -> None:
    with pytest.raises(UsageError, match=name) as refused:
        call()
    assert "or more" in refused.value.hint


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"dims": {"batch": "4"}}, "a size of 'batch' is '4'"),
        ({"dims": {"batch": -4}}, "a size of 'batch' is -4"),
        ({"shapes": {"x": (4.0, 3)}}, "a size of 'x' is 4.0"),
        ({"shapes": {"x": 4}}, "the shape of 'x' is 4"),
        ({"not_counted": "inputs"}, "not_counted is 'inputs'"),
        ({"split_batch": 2}, "split_batch is 2"),
        ({"train": True}, "train is True"),
    ],
)
def test_settings_of_another_kind(given: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Settings(**given)
    with pytest.raises(UsageError, match="max_overhead 10% is no limit"):
        Request(max_overhead=cast(Any, "10%"))


def test_numbers_and_names_of_other_kinds_are_taken() -> None:
    """They are written to files, which hold plain ones."""
    sizes: Any = np.array([4, 8])
    found = Settings(shapes={"x": sizes}, dims={"n": np.int64(4)}, data=cast(Any, "feeds.npz"))
    assert json.loads(json.dumps(found.to_json()))["shapes"] == {"x": [4, 8]}
    assert found.to_json()["dims"] == {"n": 4}
    assert found.data == Path("feeds.npz")
