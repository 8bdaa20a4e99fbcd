"""What every test folder shares: a private cost cache, warm compiled code, and the shared files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long a draw or a test takes is no matter: machines are busy. Draws are the same in every run,
# whose verdict is that of what was changed; others: --hypothesis-profile drawn --hypothesis-seed 7
FREE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", FREE, derandomize=True)
settings.register_profile("drawn", FREE, derandomize=False)
settings.load_profile("steady")

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
TORCH = ROOT / "tests" / "torch"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Comparisons with PyTorch are marked; tests that read the study files are skipped, with the
    reason, where these are absent."""
    for item in items:
        if TORCH in item.path.parents:
            item.add_marker(pytest.mark.torch)
    if (SHARED / "models").is_dir():
        return
    skip = pytest.mark.skip(reason=f"no study files: {SHARED} is not there")
    for item in items:
        if item.get_closest_marker("shared"):
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _private_cost_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Measured costs neither come from nor go to the user's own cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ONNXREMAT_CACHE", str(tmp_path_factory.mktemp("costs")))
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def _alone_with_time() -> Iterator[None]:
    """No test depends on how long anything takes, nor on what others were refused."""
    from onnxremat.cost import detect, links, measure, rounds
    from onnxremat.execute import calibration
    from onnxremat.pipeline import kept_plans, time_left
    from onnxremat.pipeline.devices import device_ways, pipelined, rates

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "RUNS", (2, 4))  # of an op: a few tell enough
        patch.setattr(rounds, "SPREAD", float("inf"))  # nor on what else the machine does
        patch.setattr(rounds, "UNDISTURBED", 0.0)
        patch.setattr(calibration, "RUNS", (5, 5))
        patch.setattr(device_ways, "ROUNDS", (2, 4))
        for module in (detect, links, pipelined):
            patch.setattr(module, "SECONDS", 0.01)
        patch.setattr(rates, "TURN", 0.01)
        patch.setattr(time_left, "TIMING", 0.1)  # of results, where nobody says how long
        patch.setattr(time_left, "BESIDE", 1e6)  # a command that is late leaves checks out
        patch.setattr(kept_plans, "MODELS", 0)  # plans that refusals name are not kept
        yield


@pytest.fixture(scope="session")
def warm() -> None:
    """The compiled search is ready, so that short time limits are spent on planning."""
    from onnxremat.planner.search import warm_up

    warm_up()


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """Folder of the training graphs made with another framework."""
    return SHARED / "models"
