"""Weights that are lent to a session while it is opened: read where they lie, held once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxremat.graph.wire import read_light
from onnxremat.memory.lent import LentWeights
from onnxremat.memory.mapped import can_own
from onnxremat.ort.session import TUNED, session_options
from onnxremat.session.held import open_light
from tests.toolbox import parse

pytestmark = pytest.mark.skipif(not can_own(), reason="no /proc here")

SIDE, LAYERS = 640, 12
MIB = 1 << 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stack of products that two chains share, 19 MiB; the first weight is read by others too."""
    steps = [f"{chain}{k + 1} = MatMul({chain}{k}, w{k})" for chain in "ab" for k in range(LAYERS)]
    ends = f"t = Transpose(w0) u = MatMul(a{LAYERS}, t) y = Add(u, b{LAYERS})"
    shape = f"float[2,{SIDE}]"
    model = parse(f"g ({shape} a0, {shape} b0) => ({shape} y) {{ {' '.join(steps)} {ends} }}")
    drawn = np.random.default_rng(0)
    for k in range(LAYERS):
        weight = drawn.standard_normal((SIDE, SIDE), np.float32) * np.float32(SIDE**-0.5)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{k}"))
    path = tmp_path_factory.mktemp("lent") / "shared.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(params=["", "nothing was compiled"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr("onnxremat.session.held.missing", lambda: request.param)


def feeds() -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(1)
    return {name: drawn.standard_normal((2, SIDE), np.float32) for name in ("a0", "b0")}


def test_the_session_computes_the_same_and_keeps_no_page_of_the_file(
    file: Path, compiled: None
) -> None:
    content = read_light(file).content
    session = open_light(file, content, session_options(TUNED), TUNED)
    session._model_path = str(file)
    wanted = ort.InferenceSession(file, session_options(TUNED)).run(None, feeds())
    assert np.array_equal(session.run(None, feeds())[0], wanted[0])
    assert str(file.resolve()) not in Path("/proc/self/maps").read_text()
    session.set_providers(["CPUExecutionProvider"])  # with options that refer to nothing lent
    assert np.array_equal(session.run(None, feeds())[0], wanted[0])


def test_only_sound_weights_of_the_file_are_lent(file: Path) -> None:
    model = onnx.ModelProto.FromString(read_light(file).content)
    lent = LentWeights(file, model.SerializeToString())
    assert sorted(lent._values) == sorted(f"w{k}" for k in range(LAYERS))
    assert lent._values["w3"].shape() == [SIDE, SIDE]
    kept, free = lent.kept()
    assert (kept, free) == (set(), {lent.whole})
    wrong = model.graph.initializer
    wrong[0].external_data[0].value = "another.data"
    wrong[1].data_type = onnx.TensorProto.BFLOAT16
    wrong[2].dims[0] += 1
    wrong[3].external_data[1].value = str(file.stat().st_size)
    lent = LentWeights(file, model.SerializeToString())
    assert sorted(lent._values) == sorted(f"w{k}" for k in range(4, LAYERS))
    assert LentWeights(file, b"").whole is None


CHILD = """
    import sys
    import numpy as np, onnxruntime as ort
    import onnxremat.memory.lent
    from pathlib import Path
    from onnxremat.graph.wire import read_light
    from onnxremat.ort.providers import tiny_model
    from onnxremat.ort.session import TUNED, session_options
    from onnxremat.session import held
    from onnxremat.memory.taken import status

    held.missing = lambda: sys.argv[2]
    ort.InferenceSession(tiny_model()).run(None, {"x": np.ones(1, np.float32)})
    file = Path(sys.argv[1])
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    held.open_light(file, read_light(file).content, session_options(TUNED), TUNED)
    print(status("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc")
def test_weights_that_several_kernels_pack_are_there_once(file: Path) -> None:
    """Without lending it is twice the file. A thread sees to letting go, and is late where a busy
    machine does not run it: what counts is that it is in time when it runs."""
    words = [sys.executable, "-c", textwrap.dedent(CHILD), str(file), "nothing was compiled"]
    rises = (int(subprocess.check_output(words)) for _ in range(12))
    assert any(rise < 1.7 * file.stat().st_size for rise in rises)
