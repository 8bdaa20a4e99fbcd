"""A session whose state stays where it is: read and written in place through IO binding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxremat.errors import ModelError, StoppedError, UsageError
from onnxremat.graph.dtypes import ORT_NAMES
from onnxremat.ort.denormals import denormals_as_zero
from onnxremat.ort.session import first_line


def wrap(array: np.ndarray) -> Any:
    """An OrtValue over the memory of an array (nothing is copied)."""
    import onnxruntime as ort

    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    if kind == TensorProto.BFLOAT16:
        raw = array.view(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, kind)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _empty(info: Any) -> np.ndarray:
    kind = ORT_NAMES[info.type.removeprefix("tensor(").removesuffix(")")]
    return np.empty(info.shape, helper.tensor_dtype_to_np_dtype(kind))


class BoundSession:
    """Runs a session again and again on state that it updates itself.

    Args:
        session: an ``InferenceSession`` on the CPU provider.
        state: array per state input; the session reads and overwrites these very arrays.
        updates: state input to the output with its new value.
        results: outputs to return from :meth:`run`.
    """

    def __init__(
        self,
        session: Any,
        state: Mapping[str, np.ndarray],
        updates: Mapping[str, str],
        results: Sequence[str],
    ) -> None:
        import onnxruntime as ort

        self._session = session
        self._run = ort.RunOptions()
        self._binding = session.io_binding()
        self._state = dict(state)
        self._values = {name: wrap(array) for name, array in self._state.items()}
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
            if name in updates:
                self._binding.bind_ortvalue_output(updates[name], value)
        self._inputs = {i.name: i for i in session.get_inputs() if i.name not in self._state}
        self._buffers: dict[str, np.ndarray] = {}
        outputs = {o.name: o for o in session.get_outputs()}
        self._results = {name: _empty(outputs[name]) for name in results}
        for name, array in self._results.items():
            self._values[name] = wrap(array)
            self._binding.bind_ortvalue_output(name, self._values[name])

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run; results are copies.

        Raises:
            UsageError: an input is missing, or of another shape or type.
            ModelError: onnxruntime stopped.
            StoppedError: :meth:`abandon` was called; the state may be half updated.
        """
        for name, info in self._inputs.items():
            if name not in feeds:
                raise UsageError(
                    f"no value for input '{name}'", why=f"given are {', '.join(sorted(feeds))}"
                )
            self._feed(name, info, np.asarray(feeds[name]))
        with denormals_as_zero():
            try:
                self._session.run_with_iobinding(self._binding, self._run)
            except Exception as error:  # onnxruntime raises a dozen unrelated types
                if self._run.terminate:
                    raise StoppedError("interrupted in the middle of a run") from error
                raise ModelError(
                    "onnxruntime stopped in the middle of a run",
                    why=first_line(error),
                    hint="look for values out of range in the data, such as ids beyond a table",
                ) from error
        return {name: array.copy() for name, array in self._results.items()}

    def abandon(self) -> None:
        """Stop the run that is on, before its next kernel, and every later one; from any thread."""
        self._run.terminate = True

    def _feed(self, name: str, info: Any, array: np.ndarray) -> None:
        """Copy a value into the buffer that is bound once."""
        buffer = self._buffers.get(name)
        if buffer is None:
            buffer = self._buffers[name] = _empty(info)
            self._values[name] = wrap(buffer)
            self._binding.bind_ortvalue_input(name, self._values[name])
        if array.shape != buffer.shape:
            raise UsageError(
                f"input '{name}' has shape {list(array.shape)}, "
                f"the model wants {list(buffer.shape)}"
            )
        if not np.can_cast(array.dtype, buffer.dtype, "same_kind"):
            raise UsageError(f"input '{name}' is {array.dtype}, the model wants {buffer.dtype}")
        np.copyto(buffer, array, casting="same_kind")
