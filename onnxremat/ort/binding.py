"""A session whose state stays where it is: read and written in place through IO binding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
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


def empty(info: Any) -> np.ndarray:
    """An array for a value that a session takes or returns, its sizes bound."""
    return np.empty(info.shape, _kind(info))


def _kind(info: Any) -> np.dtype:
    kind = ORT_NAMES[info.type.removeprefix("tensor(").removesuffix(")")]
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind))


def check_names(given: Mapping[str, Any], wanted: Iterable[str], whose: str = "the model") -> None:
    """Raises:
    UsageError: an input has no value, or a value is for no input: a name may be misspelt, and what
        it was meant for would be left as it is; or no values by name were given.
    """
    names = {*wanted}
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{whose} takes arrays by name, not a {type(given).__name__}",
            hint=f"a dict with {', '.join(sorted(names))}",
        )
    for name in sorted(names.difference(given)):
        raise absent(name, given)
    for name in sorted(map(str, set(given) - names)):
        alike = {each.casefold(): each for each in names}
        near = " or ".join(f"'{alike[n]}'" for n in get_close_matches(name.casefold(), alike, n=2))
        raise UsageError(
            f"{whose} takes no value for '{name}'",
            why=f"its inputs are {', '.join(sorted(names)) or 'none'}",
            hint=f"did you mean {near}?" if near else "leave it out",
        )


def absent(name: str, given: Iterable[str]) -> UsageError:
    """An input has no value."""
    return UsageError(
        f"no value for input '{name}'", why=f"given are {', '.join(sorted(map(str, given)))}"
    )


def check_input(name: str, array: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raises:
    UsageError: a value is not what a model's input takes.
    """
    if array.shape != shape:
        raise UsageError(
            f"input '{name}' has shape {list(array.shape)}, the model wants {list(shape)}"
        )
    check_elements(f"input '{name}'", array, dtype)


def check_elements(what: str, array: np.ndarray, dtype: np.dtype, whose: str = "the model") -> None:
    """Raises:
    UsageError: elements of an array do not become those of another type, or some integer would
        become another one: NumPy wraps what is out of range without a word.
    """
    strings = dtype.kind == "O"  # which NumPy takes everything for
    if not (array.dtype.kind in "USO" if strings else np.can_cast(array.dtype, dtype, "same_kind")):
        wanted = "strings" if strings else dtype
        raise UsageError(f"{what} is {array.dtype}, {whose} wants {wanted}")
    kept = dtype.kind not in "iu" or np.can_cast(array.dtype, dtype) or not array.size
    for value in () if kept else (array.min(), array.max()):
        if not np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max:
            raise UsageError(f"{what} holds {value}", why=f"{whose} wants {dtype}")


def run_options() -> Any:
    """Options of runs that end on demand, and say nothing of it."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.log_severity_level = 4
    # What is so by default: onnxruntime 1.30 looks for it in each run, 25 us where it is missing.
    options.add_run_config_entry("gpu_graph_id", "0")
    return options


def run_bound(session: Any, binding: Any, options: Any) -> None:
    """One run of a session with bound values.

    Args:
        options: ``onnxruntime.RunOptions``, by which another thread may end it.

    Raises:
        ModelError: onnxruntime stopped.
        StoppedError: it was ended.
    """
    with denormals_as_zero():
        try:
            session.run_with_iobinding(binding, options)
        except Exception as error:  # onnxruntime raises a dozen unrelated types
            if options.terminate:
                raise StoppedError("interrupted in the middle of a run") from error
            raise ModelError(
                "onnxruntime stopped in the middle of a run",
                why=first_line(error),
                hint="look for values out of range in the data, such as ids beyond a table",
            ) from error


HOST = ("cpu", 0)


def _on_host(session: Any) -> set[str]:
    """Inputs that a session reads from host memory."""
    infos = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
    return {value.name for value, info in infos if info.name.lower() == "cpu"}


class BoundState:
    """Arrays as values that sessions read and update where they run.

    On the host a value lies over its array: there is no second copy. In the memory of a device it
    is a copy, made when it is first bound, until :meth:`pull` brings it back.

    Args:
        arrays: by name; more may be added before they are bound.
        place: where the sessions run, in the words of onnxruntime's binding.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], place: tuple[str, int] = HOST) -> None:
        self.arrays, self.place = dict(arrays), place
        self._values: dict[str, Any] = {}
        self._behind = False  # values were updated on the device since the last pull

    @property
    def on_host(self) -> bool:
        """Values lie over their arrays."""
        return self.place[0] == "cpu"

    def value(self, name: str) -> Any:
        """The value to bind, the same one every time."""
        if name not in self._values:
            array = self.arrays[name]
            self._values[name] = wrap(array) if self.on_host else placed(array, self.place)
        return self._values[name]

    def updated(self) -> None:
        """A session has written new values."""
        self._behind = not self.on_host

    def pull(self) -> None:
        """Bring what a device holds into the arrays."""
        if self._behind:
            for name, value in self._values.items():
                np.copyto(self.arrays[name], value.numpy())
            self._behind = False

    def push(self, *names: str) -> None:
        """Bring arrays to where sessions read them: some, or all of them."""
        if self.on_host:
            return
        for name in names or tuple(self._values):
            self._values[name].update_inplace(self.arrays[name])
        if not names:
            self._behind = False


def placed(array: np.ndarray, place: tuple[str, int]) -> Any:
    """A copy of an array in the memory of a device."""
    import onnxruntime as ort

    return ort.OrtValue.ortvalue_from_numpy(array, *place)


class BoundSession:
    """Runs a session again and again on state that it updates itself.

    What is bound from another memory than the session reads it from, onnxruntime copies there when
    it is bound, and sees no later change of it. So what comes from the host is bound for every run
    unless the session runs there.

    Args:
        session: an ``InferenceSession`` that runs where the state lies.
        state: the inputs among it are read and overwritten where they lie.
        updates: state input to the output with its new value.
        results: outputs to return from :meth:`run`.
    """

    def __init__(
        self,
        session: Any,
        state: BoundState,
        updates: Mapping[str, str],
        results: Sequence[str],
    ) -> None:
        self._session, self._state = session, state
        self._run = run_options()
        self._binding = session.io_binding()
        names = [i.name for i in session.get_inputs() if i.name in state.arrays]
        for name in names:
            self._binding.bind_ortvalue_input(name, state.value(name))
            if name in updates:
                self._binding.bind_ortvalue_output(updates[name], state.value(name))
        # A kernel of the processor may be the only one to read a state: then that is copied, too.
        self._again = [] if state.on_host else [name for name in names if name in _on_host(session)]
        self._inputs = {i.name: i for i in session.get_inputs() if i.name not in names}
        outputs = {o.name: o for o in session.get_outputs()}
        self._results = {name: empty(outputs[name]) for name in results}
        for name, array in self._results.items():
            self._binding.bind_ortvalue_output(name, wrap(array))

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run; results are copies.

        Raises:
            UsageError: an input is missing, or of another shape or type.
            ModelError: onnxruntime stopped.
            StoppedError: :meth:`abandon` was called; the state may be half updated.
        """
        for name, info in self._inputs.items():
            if name not in feeds:
                raise absent(name, feeds)
            self._feed(name, info, np.asarray(feeds[name]))
        for name in self._again:
            self._binding.bind_ortvalue_input(name, self._state.value(name))
        try:
            run_bound(self._session, self._binding, self._run)
        finally:
            self._state.updated()
        return {name: array.copy() for name, array in self._results.items()}

    def abandon(self) -> None:
        """Stop the run that is on, before its next kernel, and every later one; from any thread."""
        self._run.terminate = True

    def _feed(self, name: str, info: Any, array: np.ndarray) -> None:
        """Bind a value for this run where it lies; what the session cannot read there it gets in a
        buffer of its own."""
        kind = _kind(info)
        check_input(name, array, kind, tuple(info.shape))
        if array.dtype != kind or not array.flags.c_contiguous:
            array = np.array(array, kind, order="C")
        self._binding.bind_ortvalue_input(name, wrap(array))  # which keeps it until the next run
