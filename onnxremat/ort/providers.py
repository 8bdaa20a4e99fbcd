"""Execution providers: which are here, what to install, and sessions on a device.

onnxruntime falls back to the CPU without an error when a provider cannot start, so a session is
only handed out after its providers have been looked at.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from onnxremat.device.host import bfloat16, made_by_intel
from onnxremat.device.machine import OWN_MEMORY, PROVIDERS, Device, provider_name, short_name
from onnxremat.errors import MissingComponentError, ModelError
from onnxremat.graph.ir import Graph, Op
from onnxremat.ort.plugins import (
    OPENVINO,
    PLUGINS,
    intel_only,
    offered,
    plugin_device,
    registered,
)
from onnxremat.ort.session import (
    TUNED,
    Options,
    model_source,
    providers,
    refused,
    session_options,
)

_PRECISION = {"fp32": "f32", "bf16": "bf16"}  # OpenVINO's words
NUMBERS = 1024  # bytes that a value of sizes has at most
SIZES = ("Shape", "Size")  # they read no data
CPU, CUDA = PROVIDERS["cpu"], PROVIDERS["cuda"]
_HINTS = {
    CUDA: "pip install 'onnxruntime-gpu[cuda,cudnn]', and an NVIDIA driver",
    PROVIDERS["tensorrt"]: "pip install onnxruntime-gpu tensorrt, and an NVIDIA driver",
    OPENVINO: "pip install 'onnxremat[openvino]'",
    PROVIDERS["directml"]: "pip install onnxruntime-directml (Windows)",
    PROVIDERS["coreml"]: "pip install onnxruntime (macOS)",
    PROVIDERS["webgpu"]: "pip install onnxruntime-ep-webgpu",
}


def missing(device: Device) -> str:
    """Why sessions cannot run on a device here; "" when they can."""
    if not device.computes or device.provider == CPU:
        return ""
    if device.precision == "bf16" and bfloat16() is False:
        return "this processor has no bfloat16 (neither AMX nor AVX512-BF16)"
    return _missing(device.provider, device.index, device.options.get("device", "CPU"))


@cache
def _missing(provider: str, index: int, hardware: str) -> str:
    module = PLUGINS.get(provider)
    if module is not None and registered(provider):
        if offered(provider, hardware) is not None:
            return ""
        why = f"the {short_name(provider)} plugin offers no {hardware} on this machine"
        if provider == OPENVINO and hardware == "CPU" and not made_by_intel() and intel_only():
            why += f": it lists Intel's processors only, and {intel_only()}"
        return why
    if provider in providers() and provider != OPENVINO:
        started = _starts(provider, index)
        return "" if started else f"{provider} is in this onnxruntime but does not start here"
    if module is not None:
        return f"the package {module.replace('_', '-')} is not installed"
    return f"this onnxruntime has {', '.join(providers())}"


def require(device: Device) -> None:
    """Raises:
    MissingComponentError: the device's provider is not here; says what to install.
    """
    why = missing(device)
    if not why:
        return
    hint = _HINTS.get(device.provider, "install an onnxruntime that has this provider")
    if "offers no" in why or "bfloat16" in why:
        hint = "plan for the devices that onnxremat devices lists"
    raise MissingComponentError(
        f"device '{device.name}' cannot be used: no {device.provider}", why=why, hint=hint
    )


@cache
def load_cuda_libraries() -> None:
    """Load CUDA's and cuDNN's libraries from the packages they were installed with.

    pip puts them where the loader does not look, and onnxruntime's CUDA library names no path to
    them: without this it only starts where the system has them as well, or PyTorch was imported.
    By itself onnxruntime looks beside its own package; they may lie in another folder of Python's
    path, such as PyTorch's.
    """
    import onnxruntime as ort

    if not hasattr(ort, "preload_dlls"):
        return
    found = importlib.util.find_spec("nvidia")
    roots = found.submodule_search_locations if found else None
    folders = [str(path) for root in roots or () for path in sorted(Path(root).glob("*/lib"))]
    with _silent():  # it prints what it did not find
        ort.preload_dlls()
        for folder in folders:
            ort.preload_dlls(directory=folder)


def _starts(provider: str, index: int) -> bool:
    import onnxruntime as ort

    if provider in (CUDA, PROVIDERS["tensorrt"]):
        load_cuda_libraries()
    made = ort.SessionOptions()
    made.log_severity_level = 4
    with _silent():
        try:
            session = ort.InferenceSession(
                tiny_model(), made, providers=[(provider, _named_options(provider, index, {}))]
            )
        except Exception:  # onnxruntime raises a dozen unrelated types
            return False
    return provider in session.get_providers()


def tiny_model() -> bytes:
    """One Relu from ``x`` to ``y``, one number each: to see whether a provider starts, and what
    it costs to call it."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", [value], [result])
    opsets = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return model


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without onnxruntime's own words about a provider that does not start."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        ort.set_default_logger_severity(2)


def open_on(
    device: Device,
    model: onnx.ModelProto | str | os.PathLike[str] | bytes,
    options: Options,
    folder: Path | None = None,
    *,
    entries: dict[str, str] | None = None,
    prefix: str = "",
) -> Any:
    """An ``InferenceSession`` whose first provider is the device's.

    Args:
        options: ``threads`` is overridden by the device's own.
        entries: further session configuration entries.
        prefix: path prefix of a profile to write, "" for none.

    Raises:
        MissingComponentError: the provider is not here.
        ModelError: onnxruntime refuses the model.
    """
    require(device)
    try:
        return open_with(device, model, device_options(device, options, entries, prefix), folder)
    except ModelError as error:
        plain = _without_snippets(device)
        if plain is None:
            raise
        made = device_options(device, options, entries, prefix)
        with contextlib.suppress(ModelError):
            return open_with(plain, model, made, folder)
        hint = f"--pin keeps ops off device '{device.name}'"
        raise ModelError(
            f"{device.provider} refuses what is planned for it", why=error.why, hint=hint
        ) from error


def device_options(
    device: Device, options: Options, entries: dict[str, str] | None = None, prefix: str = ""
) -> Any:
    """The ``onnxruntime.SessionOptions`` of a session on a device; see :func:`open_on`."""
    made = session_options(replace(options, threads=max(0, device.threads)))
    # Threads of a session that is done must not spin beside the next session's.
    made.add_session_config_entry("session.force_spinning_stop", "1")
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in (entries or {}).items():
        made.add_session_config_entry(key, value)
    if prefix:
        made.enable_profiling = True
        made.profile_file_prefix = prefix
    return made


def open_with(
    device: Device,
    model: onnx.ModelProto | str | os.PathLike[str] | bytes,
    made: Any,
    folder: Path | None = None,
) -> Any:
    """A session with these very ``onnxruntime.SessionOptions`` on a device that is here.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    import onnxruntime as ort

    source = model_source(model, made, folder)
    plugin = plugin_device(device)
    try:
        if plugin is not None:
            made.add_provider_for_devices([plugin], plugin_options(device))
            return ort.InferenceSession(source, made)
        named = _named_options(device.provider, device.index, dict(device.options))
        order = [(device.provider, named)] if device.provider != CPU else []
        return _built_in(source, made, order)
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        raise refused(source, error) from error


def _built_in(source: Any, made: Any, order: Sequence[tuple[str, dict[str, str]]]) -> Any:
    """A session over built-in providers, the processor being the last."""
    import onnxruntime as ort

    # onnxruntime warns of one with an index that no plugin has it.
    warns = any(provider == CUDA for provider, _ in order)
    with _silent() if warns else contextlib.nullcontext():
        return ort.InferenceSession(source, made, providers=[*order, (CPU, {})])


def open_annotated(
    devices: Sequence[Device], model: onnx.ModelProto, folder: Path | None = None
) -> Any:
    """One session over built-in providers that puts each node on the device that its ``layer_ann``
    names.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    made = session_options(TUNED)
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    rules = "; ".join(f"{device.provider}(={device.name})" for device in devices)
    made.add_session_config_entry("session.layer_assignment_settings", rules)
    order = [
        (d.provider, _named_options(d.provider, d.index, dict(d.options)))
        for d in devices
        if d.provider != CPU
    ]
    source = model_source(model, made, folder)
    try:
        return _built_in(source, made, order)
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        raise refused(source, error) from error


def plugin_options(device: Device) -> dict[str, str]:
    """Options of a plugin provider. OpenVINO computes in bfloat16 where the processor can, unless
    it is told not to; a plan's results must be those of the model, unless bfloat16 is asked for."""
    given = {key: value for key, value in device.options.items() if key != "device"}
    if device.provider != OPENVINO or "load_config" in given:
        return given
    config = {"INFERENCE_PRECISION_HINT": _PRECISION[device.precision]}
    if device.threads:
        config["INFERENCE_NUM_THREADS"] = str(device.threads)
    return {**given, "load_config": json.dumps({device.options.get("device", "CPU"): config})}


def _without_snippets(device: Device) -> Device | None:
    """The device without a kind of fusion at which OpenVINO's processor plugin fails on some
    partitions of training steps ("Topological order is required, but not set", 1.8.1); None for
    others, and where the configuration is the user's."""
    if device.provider != OPENVINO or "load_config" in device.options:
        return None
    config = json.loads(plugin_options(device)["load_config"])
    if "CPU" not in config:
        return None
    config["CPU"]["SNIPPETS_MODE"] = "DISABLE"
    return replace(
        device, precision="fp32", options={**device.options, "load_config": json.dumps(config)}
    )


def _named_options(provider: str, index: int, given: dict[str, str]) -> dict[str, str]:
    found = dict(given)
    if provider in (CUDA, PROVIDERS["tensorrt"], PROVIDERS["directml"]):
        found.setdefault("device_id", str(index))
    if provider == CUDA:
        found.setdefault("arena_extend_strategy", "kSameAsRequested")
        found.setdefault("use_tf32", "0")  # the processor's float32 results
        # By timing, which is the default, a recomputed convolution may get another algorithm than
        # its first run, with other bits and another workspace; and the search itself takes memory.
        found.setdefault("cudnn_conv_algo_search", "HEURISTIC")
    return found


def assigned(session: Any) -> dict[str, str]:
    """Node name to the provider that took it, of a session of :func:`open_on`."""
    return {
        node.name: part.ep_name
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    }


def beside_gpu(graph: Graph, op: Op, device: Device) -> bool:
    """Whether onnxruntime may run an op on the processor in a session of a GPU: it has it count
    sizes and make shapes there, where its kernels want them, and copies such numbers over itself.
    """
    if device.in_host_memory:
        return False
    return all(graph.tensors[name].bytes <= NUMBERS for name in (*op.reads, *op.writes)) or (
        op.op_type in SIZES
    )


def of_names(names: Sequence[str]) -> Device:
    """The device of the first of some execution providers, the others being its fall-back.

    Raises:
        MissingComponentError: it does not start here. onnxruntime would run on the next one
            without a word.
    """
    provider = provider_name(names[0]) if names else CPU
    device = Device(short_name(provider), provider)
    require(device)
    return device


def limited(device: Device, limit: int) -> Device:
    """A CUDA device whose sessions get pools of at most so many bytes each; others as they are."""
    if not limit or device.provider != CUDA:
        return device
    return replace(device, options={"gpu_mem_limit": str(limit), **device.options})


def place(device: Device) -> tuple[str, int]:
    """Where values of a device lie, in the words of onnxruntime's binding."""
    if device.in_host_memory:
        return "cpu", 0
    return "cuda", device.index


def here() -> list[Device]:
    """Devices of this machine that sessions can run on, the processor first."""
    from onnxremat.device.host import memory_bytes, processors

    found = [Device("cpu", CPU, 0, memory_bytes(), processors(), source="detected")]
    for short, provider in PROVIDERS.items():
        if provider in (CPU, PROVIDERS["tensorrt"]):  # TensorRT is another name for a GPU we have
            continue
        for index in range(16):
            name = f"{short}:{index}" if provider == CUDA else short
            device = Device(
                name, provider, index, source="detected", holds_state=provider in OWN_MEMORY
            )
            if missing(device):
                break
            if device.in_host_memory:
                device = replace(device, memory=memory_bytes())
            found.append(device)
            if provider != CUDA:
                break
    return found
