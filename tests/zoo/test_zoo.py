"""Every net of the zoo, by every exporter, trains as it does in PyTorch.

``-m 'zoo and sample'`` takes a few nets. ``python -m tests.zoo`` prints the figures.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.zoo import MISSING, WHY_MISSING

if MISSING:
    pytest.skip(WHY_MISSING, allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch

    from tests.zoo.architectures import ARCHITECTURES
    from tests.zoo.comparison import compare
    from tests.zoo.export import EXPORTERS, NotExportedError, cache_folder
    from tests.zoo.fresh import fresh

pytestmark = pytest.mark.zoo

# Of the sample: the exporters, and the nets whose step is compared after `optimize` as well.
SAMPLED = ("dynamo", "legacy-train")
SAMPLED_FRESH = (("transformer_encoder", "dynamo"), ("diffusion_unet", "dynamo"))
OPTIMISED = ("lstm", "graph_attention", "bert")
CASES = [
    pytest.param(
        net,
        exporter,
        id=f"{net}-{exporter}",
        marks=[pytest.mark.sample] if about.sample and exporter in SAMPLED else [],
    )
    for net, about in ARCHITECTURES.items()
    for exporter in EXPORTERS
]


FRESH = [
    pytest.param(
        net, exporter, marks=[pytest.mark.sample] if (net, exporter) in SAMPLED_FRESH else []
    )
    for net in ARCHITECTURES
    for exporter in EXPORTERS
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(("net", "exporter"), CASES)
def test_trains_as_in_pytorch(
    net: str, exporter: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    every = "sample" not in request.config.getoption("markexpr")
    optimise = every or (net in OPTIMISED and exporter == SAMPLED[-1])
    row = compare(
        ARCHITECTURES[net], exporter, cache_folder(tmp_path), scratch=tmp_path,
        threads=(1, 2, 4) if every else (1, 2), optimise=optimise,
    )  # fmt: skip
    if row.refused:
        pytest.skip(f"PyTorch does not export it: {row.refused}")
    assert row.trained, "no parameter was compared"
    assert not row.wrong(), "\n".join(row.wrong())


@pytest.mark.parametrize(("net", "exporter"), FRESH)
def test_a_fresh_net_trains_as_in_pytorch_or_says_why_not(
    net: str, exporter: str, tmp_path: Path
) -> None:
    try:
        found = fresh(ARCHITECTURES[net], exporter, cache_folder(tmp_path))
    except NotExportedError as error:
        pytest.skip(f"PyTorch does not export it: {error}")
    assert found.right, "no parameter was compared"
    assert not found.silent, f"neither trained as in PyTorch nor told: {found.silent}"
    assert not found.denied, f"trained, and said not to be: {found.denied}"
    assert found.loss < 1e-4
