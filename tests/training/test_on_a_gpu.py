"""Training where the state lies in another memory, and what is bound is copied when it is bound:
as CUDA does it, on a stand-in that runs on the processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.errors import MissingComponentError, UnsupportedError
from onnxremat.ort import binding
from onnxremat.ort.binding import wrap
from onnxremat.ort.session import open_session
from onnxremat.training import sessions as module
from onnxremat.training.data import Arrays
from onnxremat.training.evaluation import Evaluator
from tests.training.nets import arrays, net, trainer


class Elsewhere:
    """A session of the processor that treats values not made by ``place`` as onnxruntime treats
    those in another memory: a copy is read, and results are copied there after the run."""

    def __init__(self, session: Any, there: dict[int, Any]) -> None:
        self._session, self._there = session, there

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def io_binding(self) -> Any:
        return Copying(self._session.io_binding(), self._there)

    def get_input_memory_infos(self) -> list[Any]:
        class Info:
            name = "Cuda"

        return [Info() for _ in self._session.get_inputs()]

    def run_with_iobinding(self, bound: Copying, options: Any) -> None:
        self._session.run_with_iobinding(bound.real, options)
        for made, asked in bound.outputs:
            np.copyto(asked.numpy(), made.numpy())


class Copying:
    def __init__(self, real: Any, there: dict[int, Any]) -> None:
        self.real, self._there = real, there
        self.outputs: list[tuple[Any, Any]] = []

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        here = value if id(value) in self._there else wrap(value.numpy().copy())
        self.real.bind_ortvalue_input(name, here)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        if id(value) in self._there:
            self.real.bind_ortvalue_output(name, value)
            return
        made = wrap(np.zeros_like(value.numpy()))
        self.outputs.append((made, value))
        self.real.bind_ortvalue_output(name, made)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A memory apart, for the provider of CUDA."""
    there: dict[int, Any] = {}

    def placed(array: np.ndarray, place: tuple[str, int]) -> Any:
        assert place == ("cuda", 0)
        value = wrap(array.copy())
        there[id(value)] = value  # kept, so that no other value gets this id
        return value

    def opened(device: Device, model: Any, made: Any, folder: Any) -> Any:
        assert device.provider == PROVIDERS["cuda"]
        return Elsewhere(open_session(model, made, folder), there)

    monkeypatch.setattr(binding, "placed", placed)
    monkeypatch.setattr(module, "open_with", opened)
    monkeypatch.setattr(module, "of_names", lambda names: Device("cuda", PROVIDERS["cuda"]))
    return [PROVIDERS["cuda"]]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_trains_like_the_processor(gpu: list[str], accumulate: int) -> None:
    """Every step reads the batch it was given and what the step before has written."""
    data = Arrays(arrays(), 8)
    here, there = trainer(accumulate=accumulate), trainer(accumulate=accumulate, providers=gpu)
    losses = here.fit(data, 3)
    assert len(set(losses)) > 3
    assert there.fit(data, 3) == losses
    for name, value in here.state.items():
        np.testing.assert_array_equal(there.state[name], value, name)


def test_a_checkpoint_goes_both_ways(gpu: list[str], tmp_path: Path) -> None:
    """What a GPU has trained is saved, and what is resumed is what it goes on from."""
    data = Arrays(arrays(), 8)
    whole, first, second = trainer(), trainer(providers=gpu), trainer(providers=gpu)
    whole.fit(data, 2)
    first.fit(data, 2, checkpoint=tmp_path / "state")
    second.step(next(iter(data.epoch(0, 0))))  # other values are there, to be replaced
    second.resume(tmp_path / "state")
    assert second.fit(data, 4) == whole.fit(data, 4)


def test_written_state_is_trained_from_after_a_push(gpu: list[str]) -> None:
    batch = next(iter(Arrays(arrays(), 8).epoch(0, 0)))
    here, there = trainer(), trainer(providers=gpu)
    for one in (here, there):
        one.step(batch)
        one.state["w1"][...] = 0.25
        one.push_state()
    assert there.step(batch) == here.step(batch)


def test_the_score_is_that_of_the_trained_parameters(gpu: list[str]) -> None:
    data = Arrays(arrays(), 8)
    here, there = trainer(), trainer(providers=gpu)
    scores = [Evaluator(one, net()) for one in (here, there)]
    here.fit(data, 2)
    there.fit(data, 2)
    assert scores[0].score(data) == scores[1].score(data)


def test_a_provider_that_does_not_start_is_no_silent_fall_back() -> None:
    with pytest.raises(MissingComponentError, match="cannot be used"):
        trainer(providers=["NoSuchExecutionProvider", "CPUExecutionProvider"])


def test_a_provider_that_would_not_see_updates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Device("openvino", PROVIDERS["openvino"])
    monkeypatch.setattr(module, "of_names", lambda names: other)
    with pytest.raises(UnsupportedError, match="cannot train this way"):
        trainer(providers=[PROVIDERS["openvino"]])
