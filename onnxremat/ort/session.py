"""Sessions of stock onnxruntime and the options that keep a plan intact."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import onnx

from onnxremat.device.host import check_threads
from onnxremat.errors import MissingComponentError, ModelError, OnnxrematError, UsageError
from onnxremat.graph.temporary import cut_short, reason
from onnxremat.ort.idle_passes import idle_passes


@dataclass(frozen=True)
class Options:
    """The session options that matter to memory and order.

    Attributes:
        level: ``disable``, ``basic``, ``extended`` or ``all`` (onnxruntime's default).
        order: ``default`` (a reverse depth-first walk) or ``priority`` (as listed in the file).
        pattern: keep one block per input shape from the second run on (``enable_mem_pattern``).
        reuse: hold a dead buffer for a later value of the same shape (``enable_mem_reuse``).
        arena: allocate from a pool (``enable_cpu_mem_arena``).
        threads: intra-op threads, 0 for one per core.

    Raises:
        UsageError: far more threads than processors.
    """

    level: str = "all"
    order: str = "default"
    pattern: bool = True
    reuse: bool = True
    arena: bool = True
    threads: int = 0

    def __post_init__(self) -> None:
        check_threads(self.threads)

    @property
    def fuses(self) -> bool:
        """Whether onnxruntime optimises the graph at load."""
        return self.level != "disable"

    def to_json(self) -> dict[str, Any]:
        """Plain data, for files."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Options:
        """From plain data; unknown keys are an error of the file.

        Raises:
            UsageError: unknown option, a value that an option does not take, far too many threads.
        """
        known = {f.name for f in fields(cls)}
        if set(data) - known:
            raise UsageError(f"unknown session options {sorted(set(data) - known)}")
        told = TUNED.to_json() | data
        plain = all(type(v) is type(getattr(TUNED, k)) for k, v in data.items())
        known_words = told["level"] in tuple(LEVELS) and told["order"] in ORDERS
        if not (plain and known_words and told["threads"] >= 0):
            raise UsageError("session options of a wrong type or value", why=repr(data)[:200])
        try:
            return cls(**data)
        except UsageError as error:
            hint = "plan the model again: onnxremat writes 0 threads into files, one per core"
            raise UsageError(f"session options: {error.what}", why=error.why, hint=hint) from error


@dataclass
class Opened:
    """What this process has given to onnxruntime so far.

    Attributes:
        sessions: how many were opened.
        copied: bytes of models that were serialised for them; weights that lie in files are not
            among these.
    """

    sessions: int = 0
    copied: int = 0


OPENED = Opened()
DEFAULT = Options()
# What plans are made for: nothing is fused, merged or moved at load, the listed order is the
# executed order, and a buffer is given back as soon as its value is dead.
TUNED = Options(level="disable", order="priority", pattern=False, reuse=False)

ORDERS = ("default", "priority")
LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


def config_entries(options: Options) -> dict[str, str]:
    """Session configuration entries that belong to the options."""
    if options.fuses:
        return {}
    return {"session.disable_quant_qdq": "1"}  # else a DequantizeLinear with two readers is doubled


def runtime() -> Any:
    """The ``onnxruntime`` module.

    Raises:
        MissingComponentError: none is installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise no_runtime(error) from error
    return onnxruntime


def no_runtime(error: ImportError) -> MissingComponentError:
    """No onnxruntime can be loaded."""
    return MissingComponentError(
        "no onnxruntime is installed",
        why=str(error),
        hint="pip install onnxruntime-gpu, or another flavour of it (docs/installing.md)",
    )


def session_options(options: Options) -> Any:
    """``onnxruntime.SessionOptions`` with these options set."""
    ort = runtime()
    made = ort.SessionOptions()
    made.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[options.level])
    if options.order == "priority":
        made.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    for key, value in config_entries(options).items():
        made.add_session_config_entry(key, value)
    made.enable_mem_pattern = options.pattern
    made.enable_mem_reuse = options.reuse
    made.enable_cpu_mem_arena = options.arena
    made.intra_op_num_threads = options.threads
    made.log_severity_level = 4
    return made


def open_session(
    model: onnx.ModelProto | str | os.PathLike[str] | bytes,
    made: Any,
    folder: Path | None = None,
    providers: list[str] | None = None,
    read: onnx.ModelProto | None = None,
) -> Any:
    """An ``InferenceSession`` on the CPU provider, or the given ones.

    Args:
        model: a file, or a model in memory; its external weights lie in ``folder``.
        made: ``onnxruntime.SessionOptions``.
        read: what a file holds, where that is known: passes that it has no use for are left out.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    ort = runtime()
    fuses = made.graph_optimization_level != ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    read = model if isinstance(model, onnx.ModelProto) else read
    idle = idle_passes(read) if fuses and providers is None and read is not None else []
    source = model_source(model, made, folder)
    try:
        return ort.InferenceSession(
            source, made, providers=providers or ["CPUExecutionProvider"], disabled_optimizers=idle
        )
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        raise reason(refused(source, error)) from error


def signature(
    model: onnx.ModelProto, made: Any, folder: Path | None = None
) -> tuple[list[Any], list[Any]]:
    """Outputs and inputs of a model as a session shows them, without the session: onnxruntime reads
    the model and infers shapes, and looks for no kernel. That is a seventh of opening it.

    Args:
        made: ``onnxruntime.SessionOptions``.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    runtime()
    source = model_source(model, made, folder)
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import InferenceSession

        read = InferenceSession(made, source, False, False)
        return list(read.outputs_meta), list(read.inputs_meta)
    except (ImportError, AttributeError, TypeError):  # its Python package is made otherwise
        session = open_session(model, made, folder)
        return session.get_outputs(), session.get_inputs()
    except Exception as error:  # as open_session
        raise reason(refused(source, error)) from error


def model_source(
    model: onnx.ModelProto | str | os.PathLike[str] | bytes, made: Any, folder: Path | None
) -> str | bytes:
    """What ``InferenceSession`` takes; the options learn where the external weights are."""
    OPENED.sessions += 1
    _trim()
    if isinstance(model, onnx.ModelProto):
        model = model.SerializeToString()
        OPENED.copied += len(model)
    if not isinstance(model, bytes):
        return str(model)
    if folder is not None:
        made.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
    return model


def _trim() -> None:
    """Let the C library give back what earlier sessions freed (glibc only): it keeps blocks of up
    to 32 MiB for itself, and the next session's weights seldom fit into these."""
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library
        return


OLDEST, CURRENT = 7, 21  # opsets: the first that onnxruntime has kernels for, and one of today
# How onnxruntime says that no provider has a kernel: operator, opset, node.
_NO_KERNEL = re.compile(r"not find an implementation for (\w+)\((\d+)\) node with name '(.*?)'")


def refused(source: str | bytes, error: Exception) -> OnnxrematError:
    """The error for a model that onnxruntime does not load, or cannot write as it optimised it."""
    if "Protobuf serialization failed" in str(error):  # its words for a disk that is full
        return cut_short("what onnxruntime made of the model")
    where, missing = "" if isinstance(source, bytes) else source, _NO_KERNEL.search(str(error))
    if missing is not None:
        op, opset, node = missing.groups()
        which = f"types of node '{node}'" if node else "types of a node without a name"
        return ModelError(
            f"no execution provider of this session has a kernel of {op} (opset {opset}) for the "
            f"{which}",
            where=where,
            why=f"its kernels begin with opset {OLDEST}"
            if int(opset) < OLDEST
            else "the CPU provider has next to none for bfloat16 and integers of less than a byte, "
            "and few for float64",
            hint=f"onnx.version_converter.convert_version(model, {CURRENT}), or export it again"
            if int(opset) < OLDEST
            else "run it on another provider, or export it in float32; a training step: make it "
            "with --precision fp16 or fp32",
        )
    return ModelError(
        "onnxruntime refuses the model",
        where=where,
        why=first_line(error),
        hint="a model of yours: does onnxruntime.InferenceSession(FILE) open it? A file of "
        "onnxremat's: please report the model it was made from",
    )


# Where in onnxruntime's sources an error arose: file, line and the whole C++ signature.
_ORIGIN = re.compile(r"/onnxruntime_src/\S+:\d+ .*?\) (?=[A-Z\[])")


def first_line(error: Exception) -> str:
    """The first line of a runtime error without its internal prefix."""
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return _ORIGIN.sub("", line.removeprefix("[ONNXRuntimeError] : "))[:400]


def runtime_version() -> str:
    """Version of the installed onnxruntime."""
    ort = runtime()
    return str(ort.__version__)


def providers() -> list[str]:
    """Execution providers the installed wheel was built with."""
    ort = runtime()
    return list(ort.get_available_providers())
