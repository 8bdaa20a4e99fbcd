"""Machine descriptions: what is read, what is refused, budgets by device."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxremat.cost import detect, foreign
from onnxremat.device.files import machine_toml, parse_machine, read_machine, shipped
from onnxremat.device.machine import PROVIDERS, Device, Link, Machine, provider_name
from onnxremat.errors import UsageError
from tests.devices.plans import processors

TWO = """
name = "two"
[[device]]
name = "cpu"
[[device]]
name = "cuda:0"
provider = "gpu"
memory = "6GiB"
flops = 1e12
bandwidth = "600GB"
[[link]]
from = "cpu"
to = "cuda:0"
bandwidth = "10GB/s"
latency = 1e-5
"""


def test_a_file_is_read() -> None:
    machine = parse_machine(TWO)
    assert machine.name == "two"
    assert machine.names == ("cpu", "cuda:0")
    gpu = machine.device("cuda:0")
    assert (gpu.provider, gpu.memory, gpu.bandwidth) == (PROVIDERS["cuda"], 6 << 30, 600e9)
    assert machine.device("cpu").memory > 0  # this machine's own
    assert machine.device("cpu").threads > 0
    assert machine.link("cpu", "cuda:0").seconds(10**9) == pytest.approx(0.1 + 1e-5)
    assert machine.link("cuda:0", "cpu").bandwidth == 10e9  # the way back, unless it is listed


def test_a_machine_elsewhere_has_nothing_of_this_one() -> None:
    text = 'elsewhere = true\n[[device]]\nname = "cpu"\n[[device]]\nname = "ov"\nprovider = "ov"'
    for device in parse_machine(text).devices:
        assert (device.memory, device.threads) == (0, 0), device
    assert parse_machine(f"{text}\nmemory = 5").device("ov").memory == 5


def test_products_in_bfloat16_are_for_openvino() -> None:
    machine = read_machine("cpu-openvino").in_bfloat16()
    assert [device.precision for device in machine.devices] == ["fp32", "bf16"]
    assert parse_machine(machine_toml(machine)) == machine
    with pytest.raises(UsageError, match="no device that computes a float32 model in bf16"):
        read_machine("cpu-2x1").in_bfloat16()
    with pytest.raises(UsageError, match="'cpu' cannot compute in bf16"):
        parse_machine('[[device]]\nname = "cpu"\nprecision = "bf16"')
    with pytest.raises(UsageError, match="unknown precision 'half'"):
        parse_machine('[[device]]\nname = "ov"\nprovider = "openvino"\nprecision = "half"')


def test_one_memory_hands_over_without_copying() -> None:
    link = Link("a", "b", 1e9, 2e-6, shared=True)
    assert link.seconds(1 << 30) == 2e-6


@pytest.mark.parametrize("name", shipped())
def test_shipped_files_are_read_and_written_back(name: str) -> None:
    machine = read_machine(name)
    assert parse_machine(machine_toml(machine, "again"), name) == machine
    if machine.elsewhere:
        assert all(d.flops and d.bandwidth and d.memory for d in machine.devices)


def test_shipped_files_cover_the_usual_machines() -> None:
    assert {"cpu", "cpu-2x1", "cpu-openvino", "cpu-cuda", "cpu-2cuda"} <= set(shipped())
    providers = {d.provider for name in shipped() for d in read_machine(name).devices}
    assert {PROVIDERS["cpu"], PROVIDERS["cuda"], PROVIDERS["openvino"]} <= providers


def test_xengine_lines(tmp_path: Path) -> None:
    file = tmp_path / "cpu_gpu.txt"
    file.write_text("# devices\ncpu_0;cpu;0;1;6442450944\ngpu_0;gpu;1;1;2147483648\n")
    machine = read_machine(file)
    assert machine.names == ("cpu_0", "gpu_0")
    assert machine.device("cpu_0").memory == 6442450944
    gpu = machine.device("gpu_0")
    assert (gpu.provider, gpu.index, gpu.memory) == (PROVIDERS["cuda"], 1, 2147483648)
    assert machine.link("gpu_0", "cpu_0").origin == "assumed"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[device]\nname = 1", "not valid TOML"),
        ("x = 1", "unknown keys x"),
        ("name = 'm'", "names no device"),
        ("name = 1\n[[device]]\nname = 'a'", "wrong type"),
        ("[[device]]\nname = 'a'\nspeed = 1", "unknown key 'speed'"),
        ("[[device]]\nname = 'a'\nprovider = 'abacus'", "unknown provider 'abacus'"),
        ("[[device]]\nname = 'a'\nmemory = 'lots'", "is not a size"),
        ("[[device]]\nname = 'a'\nmemory = -1", "negative"),
        ("[[device]]\nname = 'a'\nthreads = true", "wrong type"),
        ("[[device]]\nprovider = 'cpu'", "no usable name"),
        ("[[device]]\nname = 'a=b'", "no usable name"),
        ("[[device]]\nname = 'a'\n[[device]]\nname = 'a'", "two devices named 'a'"),
        ("[[device]]\nname = 'a'\nprovider = 'storage'", "no device that computes"),
        ("[[device]]\nname = 'a'\n[[link]]\nfrom = 'a'\nto = 'b'\nshared = true", "no device 'b'"),
        ("[[device]]\nname = 'a'\n[[link]]\nfrom = 'a'", "lacks an end"),
        ("[[device]]\nname = 'a'\n[[link]]\nfrom = 'a'\nto = 'a'\nshared = true", "with itself"),
        ("[[device]]\nname = 'a'\n[[link]]\nfrom = 'a'\nto = 'b'", "no bandwidth"),
        ("cpu_0;cpu;0;1", "device line 1 is not understood"),
        ("cpu_0;cpu;0;1;0\ngpu_0;tpu;0;1;0", "device line 2 is not understood"),
    ],
)
def test_wrong_files_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        parse_machine(text, where="my.toml")
    assert refused.value.where == "my.toml"


def test_a_missing_file_names_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read_machine(tmp_path / "none.toml")
    assert "cpu-2x1" in refused.value.hint


def test_a_missing_link_says_what_to_write() -> None:
    machine = Machine((Device("a"), Device("b")))
    with pytest.raises(UsageError, match="no link from 'a' to 'b'") as refused:
        machine.link("a", "b")
    assert "[[link]]" in refused.value.hint


def test_budgets_by_device() -> None:
    machine = processors(2)
    limits = machine.limits(machine.budgets("cpu=1KiB,CPU:1=0.5x"), {"cpu:1": 4096})
    assert limits == {"cpu:0": 1024, "cpu:1": 2048}
    assert machine.limits(machine.budgets("2KiB"), {}) == {"cpu:0": 2048, "cpu:1": 2048}
    assert machine.limits(machine.budgets("cpu:1=3KiB"), {}) == {"cpu:1": 3072}
    for names in (("npu", "npu:0"), ("npu:0", "npu")):
        both = Machine(tuple(Device(name, PROVIDERS["cpu"], threads=1) for name in names))
        limits = both.limits(both.budgets("NPU=1KiB,npu:0=2KiB"), {})
        assert limits == {"npu": 1024, "npu:0": 2048}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu=1GiB", "no device 'gpu'"),
        ("cpu:0=50%", "has no bytes"),
        ("cpu:0=min", "not supported"),
        ("cpu:0=1,cpu:0=2", "twice"),
        ("cpu:1=1GiB,cpu=1KiB,cpu:0=2KiB", "'cpu:0' twice"),
    ],
)
def test_wrong_budgets(text: str, words: str) -> None:
    machine = processors(2)
    with pytest.raises(UsageError, match=words):
        machine.limits(machine.budgets(text), {})


@pytest.mark.parametrize(
    ("visible", "asked"),
    [(None, "1"), ("", ""), ("3", ""), ("3,5", "5"), ("GPU-a, GPU-b", "GPU-b")],
)
def test_the_memory_of_a_gpu_is_asked_by_the_number_its_tool_has(
    visible: str | None, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is not onnxruntime's where CUDA_VISIBLE_DEVICES hides or reorders some."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    told: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        told.append(next(word for word in command if word.startswith("--id="))[5:])
        return SimpleNamespace(stdout="81559\n")

    monkeypatch.setattr(subprocess, "run", run)
    found = detect._gpu_memory(Device("cuda:1", PROVIDERS["cuda"], index=1))
    assert told == ([asked] if asked else [])
    assert found == (81559 << 20 if asked else 0)


def test_costs_of_another_card_or_driver_are_not_kept_as_this_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a folder that machines share, or after a change: number and processor are the same."""
    device, keys = Device("cuda:0", PROVIDERS["cuda"]), set()
    for told in ("NVIDIA A10, 580.1\n", "NVIDIA H100, 580.1\n", "NVIDIA H100, 590.2\n"):
        said = SimpleNamespace(stdout=told)
        monkeypatch.setattr(subprocess, "run", lambda *_, said=said, **__: said)
        keys.add(foreign._key(device))
        assert foreign._key(device) in keys
    assert len(keys) == 3


def test_provider_names() -> None:
    assert provider_name("CUDA") == provider_name("gpu") == PROVIDERS["cuda"]
    assert provider_name("CoreMLExecutionProvider") == PROVIDERS["coreml"]
    assert provider_name("MyOwnExecutionProvider") == "MyOwnExecutionProvider"
