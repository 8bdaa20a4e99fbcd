"""What a model can run on: devices, each with memory of its own, and the links between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnxremat.errors import UsageError
from onnxremat.units import Budget, parse_budgets

# Short names of onnxruntime's execution providers; any full name is accepted as well.
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "directml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
}
PRECISIONS = ("fp32", "bf16")
STORAGE = "storage"  # a device that computes nothing: host memory to swap to


OWN_MEMORY = (PROVIDERS["cuda"], PROVIDERS["tensorrt"])  # not that of the process


@dataclass(frozen=True)
class Device:
    """Something that runs ops (or only stores values), with memory of its own.

    Attributes:
        name: unique in its machine; budgets, pins and plans use it.
        provider: full name of the execution provider, or ``storage``.
        index: which one of that provider's devices.
        memory: bytes it has; 0 when not known.
        threads: intra-op threads, 0 for one per core; only processors have any.
        flops: peak floating point operations per second, 0 when not known.
        bandwidth: bytes per second of its memory, 0 when not known.
        options: provider options handed on as they are.
        precision: ``fp32``, or ``bf16``: products of float32 values in bfloat16, which OpenVINO's
            kernels do on a processor with AMX or AVX512-BF16.
        holds_state: parameters and optimizer state that its ops update count in its budget, on a
            processor though they lie in host memory; another device that reads them gets a copy
            that counts there.
        source: where the figures come from: ``given``, ``measured``, or a data sheet.
    """

    name: str
    provider: str = PROVIDERS["cpu"]
    index: int = 0
    memory: int = 0
    threads: int = 0
    flops: float = 0.0
    bandwidth: float = 0.0
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    source: str = "given"
    holds_state: bool = False
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"device '{self.name}' has an unknown precision '{self.precision}'",
                hint="one of " + ", ".join(PRECISIONS),
            )
        if self.precision != "fp32" and "load_config" in self.options:
            raise UsageError(f"device '{self.name}' has both a precision and a load_config")
        if self.precision != "fp32" and self.provider != PROVIDERS["openvino"]:
            raise UsageError(
                f"device '{self.name}' cannot compute in {self.precision}",
                why="of the providers, OpenVINO's takes float32 values and does so",
                hint="for a training step with 16-bit values on CUDA: --precision, without it here",
            )

    @property
    def computes(self) -> bool:
        """It runs ops."""
        return self.provider != STORAGE

    @property
    def in_host_memory(self) -> bool:
        """Values between its partitions lie in the memory of the process. Providers other than
        CUDA's copy in and out by themselves."""
        return self.provider not in OWN_MEMORY

    @property
    def opaque(self) -> bool:
        """Its provider compiles what it is given: order and memory inside are its own."""
        return self.provider not in (PROVIDERS["cpu"], PROVIDERS["cuda"])


@dataclass(frozen=True)
class Link:
    """A way for values from one device to another.

    Attributes:
        source, target: names of devices.
        bandwidth: bytes per second.
        latency: seconds before the first byte is there.
        shared: both lie in one memory, so that a value is handed over, not copied; it still
            counts on both sides.
        origin: where the figures come from: ``given``, ``measured``, ``assumed``.
    """

    source: str
    target: str
    bandwidth: float
    latency: float = 0.0
    shared: bool = False
    origin: str = "given"

    def seconds(self, size: int) -> float:
        """Seconds to bring ``size`` bytes over."""
        return self.latency if self.shared else self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Machine:
    """Devices and links.

    Attributes:
        elsewhere: it is not this machine: nothing about it can be measured here.

    Raises:
        UsageError: no device, a name twice, or a link of a device that is not there.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    name: str = "machine"
    elsewhere: bool = False

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if not any(device.computes for device in self.devices):
            raise UsageError(f"machine '{self.name}' has no device that computes")
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"machine '{self.name}' has two devices named '{name}'")
        for link in self.links:
            for end in (link.source, link.target):
                self.device(end)
            if link.source == link.target:
                raise UsageError(f"machine '{self.name}' links '{link.source}' with itself")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(device.name for device in self.devices)

    def device(self, name: str) -> Device:
        """The device of a name.

        Raises:
            UsageError: there is none.
        """
        for device in self.devices:
            if device.name == name:
                return device
        raise UsageError(
            f"machine '{self.name}' has no device '{name}'",
            hint="its devices are " + ", ".join(self.names),
        )

    def link(self, source: str, target: str) -> Link:
        """The link from one device to another.

        Raises:
            UsageError: there is none.
        """
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        raise UsageError(
            f"machine '{self.name}' has no link from '{source}' to '{target}'",
            why="a value made on the one is needed on the other",
            hint=f'add to the machine file: [[link]] from = "{source}", to = "{target}", '
            "bandwidth = BYTES_PER_SECOND",
        )

    def linked(self, source: str, target: str) -> bool:
        """Values can go from one device to the other."""
        return any((link.source, link.target) == (source, target) for link in self.links)

    def with_devices(self, devices: Sequence[Device]) -> Machine:
        """The same links between changed devices of the same names."""
        return replace(self, devices=tuple(devices))

    def in_bfloat16(self) -> Machine:
        """The same with its OpenVINO devices computing in bfloat16.

        Raises:
            UsageError: it has none.
        """
        if not self.has(PROVIDERS["openvino"]):
            raise UsageError(
                f"machine '{self.name}' has no device that computes a float32 model in bf16",
                why="OpenVINO's kernels do, onnxruntime's own for the processor do not",
                hint="--devices cpu-openvino; or --train, for a step that casts by itself",
            )
        return self.with_devices(
            [
                replace(d, precision="bf16") if d.provider == PROVIDERS["openvino"] else d
                for d in self.devices
            ]
        )

    def has(self, provider: str) -> bool:
        """One of the devices is this provider's."""
        return any(device.provider == provider for device in self.devices)

    def budgets(self, text: str | int) -> dict[str, Budget]:
        """Budgets by device: ``cpu=1GiB,openvino=512MiB``; a plain one holds for every device.

        Case does not matter, and ``cuda`` means ``cuda:0``. Devices that are not named have no
        budget but their memory.

        Raises:
            UsageError: malformed, a device that is not there, or one that is named twice.
        """
        found = parse_budgets(text)
        if "" in found:
            return dict.fromkeys(self.names, found[""])
        named: dict[str, Budget] = {}
        for name, budget in found.items():
            device = self._named(name)
            if device in named:
                raise UsageError(
                    f"budget '{text}' names device '{device}' twice",
                    hint="its devices are " + ", ".join(self.names),
                )
            named[device] = budget
        return named

    def _named(self, text: str) -> str:
        wanted = (text.lower(), f"{text.lower()}:0", text.lower().removesuffix(":0"))
        matches = [name for each in wanted for name in self.names if name.lower() == each]
        if not matches:
            self.device(text)
        return matches[0]

    def limits(self, budgets: Mapping[str, Budget], peaks: Mapping[str, int]) -> dict[str, int]:
        """Bytes per device that has a limit: its budget, else its memory where that is known.

        Args:
            budgets: by device name.
            peaks: unoptimised peak per device, for budgets such as ``0.6x``.

        Raises:
            UsageError: a share of a memory that is not known, or ``min``, which is not a number.
        """
        limits = {d.name: d.memory for d in self.devices if d.memory}
        for name, budget in budgets.items():
            memory = self.device(name).memory
            if budget.kind == "device" and not memory:
                raise UsageError(
                    f"budget '{budget.text}' of device '{name}' has no bytes",
                    why="the machine file does not say how much memory the device has",
                )
            size = budget.resolve(device_bytes=memory, peak_bytes=peaks.get(name, 0))
            if size is None:
                raise UsageError(
                    f"budget 'min' of device '{name}' is not supported with several devices",
                    hint="give bytes, 60% or 0.6x",
                )
            limits[name] = size
        return limits


def provider_name(text: str) -> str:
    """Full name of a provider given in short or in full.

    Raises:
        UsageError: neither.
    """
    short = {"gpu": "cuda", "dml": "directml", "ov": "openvino", "trt": "tensorrt"}
    key = short.get(text.lower(), text.lower())
    if key in PROVIDERS:
        return PROVIDERS[key]
    if key == STORAGE:
        return STORAGE
    full = [name for name in PROVIDERS.values() if name.lower() == text.lower()]
    if full:
        return full[0]
    if text.endswith("ExecutionProvider"):
        return text
    raise UsageError(
        f"unknown provider '{text}'", hint="one of " + ", ".join([*PROVIDERS, STORAGE])
    )


def short_name(provider: str) -> str:
    """``cpu`` of ``CPUExecutionProvider``."""
    named = {full: short for short, full in PROVIDERS.items()}
    return named.get(provider, provider.removesuffix("ExecutionProvider").lower())
