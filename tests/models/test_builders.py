"""The test models: valid, runnable, deterministic, and of the published sizes."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

import models
from models import light
from models.__main__ import main
from models.spec import Argument

LIGHT = light.names()
BUILT = tuple(name for name in models.names() if name not in LIGHT)

# Sizes that keep the runs of whole models below some milliseconds.
SMALL: dict[str, dict[str, Argument]] = {
    "bert": {"sequence": 12, "hidden": 32, "layers": 2, "heads": 4, "vocab": 50},
    "gpt2": {"sequence": 12, "hidden": 32, "layers": 2, "heads": 4, "vocab": 50},
    "llama": {"sequence": 12, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 50},
    "vit": {"size": 32, "hidden": 32, "layers": 2, "heads": 4},
    "convnext": {"size": 64, "width": 16, "deep": 2},
    "resnet18": {"size": 64, "width": 16},
    "resnet34": {"size": 64, "width": 16},
    "resnet50": {"size": 64, "width": 16},
    "resnet20": {"size": 16, "blocks": 1},
    "vgg16": {"size": 32, "width": 8, "hidden": 64},
    "vgg19": {"size": 32, "width": 8, "hidden": 64},
    "unet": {"size": 32, "width": 8},
    "densenet121": {"size": 64, "growth": 8},
    "mobilenetv2": {"size": 64},
    "inception": {"size": 64},
    "squeezenet": {"size": 64},
    "shufflenet": {"size": 64},
    "lenet": {},
    "mlp": {"width": 32, "features": 16},
}

# Trainable parameters as torchvision and the Hugging Face and timm model hubs give them.
PUBLISHED: list[tuple[str, dict[str, Argument], int]] = [
    ("lenet", {}, 61_706),
    ("resnet18", {"width": 64}, 11_689_512),
    ("resnet34", {"width": 64}, 21_797_672),
    ("resnet50", {"width": 64}, 25_557_032),
    ("mobilenetv2", {}, 3_504_872),
    ("vgg16", {"size": 224, "width": 64, "hidden": 4096}, 138_357_544),
    ("vgg19", {"size": 224, "width": 64, "hidden": 4096}, 143_667_240),
    ("densenet121", {}, 7_978_856),
    ("squeezenet", {}, 1_235_496),
    ("shufflenet", {"width": 0.5}, 1_366_792),
    ("shufflenet", {"width": 1.0}, 2_278_604),
    ("unet", {"width": 32, "classes": 1}, 7_763_041),
    ("convnext", {"width": 96}, 28_589_128),
    ("convnext", {"width": 96, "deep": 27}, 50_223_688),
    ("vit", {}, 5_717_416),
    ("vit", {"hidden": 768, "heads": 12}, 86_567_656),
    ("bert", {"hidden": 768, "layers": 12, "heads": 12, "vocab": 30522}, 109_482_240),
    ("gpt2", {"hidden": 768, "layers": 12, "heads": 12, "vocab": 50257}, 124_439_808),
    (
        "llama",
        {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000},
        6_738_415_616,
    ),
    (
        "llama",
        {"hidden": 2048, "layers": 22, "heads": 32, "kv_heads": 4, "ffn": 5632, "vocab": 32000},
        1_100_048_384,
    ),
]


@cache
def default_model(name: str) -> onnx.ModelProto:
    return models.build(name)


def run(
    model: onnx.ModelProto, arrays: dict[str, NDArray[Any]] | None = None
) -> list[NDArray[Any]]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, models.feeds(model) if arrays is None else arrays))


def content(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def declared_shapes(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    return [
        tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for info in model.graph.output
    ]


# ---- every built model -------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT)
def test_default_model_is_valid_and_runs(name: str) -> None:
    model = default_model(name)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 9
    assert model.ByteSize() < 60 * 2**20
    outputs = run(model)
    assert [output.shape for output in outputs] == declared_shapes(model)
    for output in outputs:
        assert output.dtype == np.float32
        assert np.isfinite(output).all()
        assert 0.1 < output.std() < 20
        assert output.std(axis=0).mean() > 1e-3, "the inputs of a batch make no difference"


@pytest.mark.parametrize("name", [name for name in BUILT if name != "lenet"])
def test_default_model_has_worthwhile_activations(name: str) -> None:
    total, peak = models.activation_bytes(default_model(name))
    assert 10 * 2**20 < peak < 200 * 2**20
    assert total > 2 * peak


@pytest.mark.parametrize("name", BUILT)
def test_names_are_unique_and_telling(name: str) -> None:
    graph = default_model(name).graph
    names = [node.name for node in graph.node]
    assert len(set(names)) == len(names)
    for node in graph.node:
        assert node.name.startswith("/")
        assert node.name.rsplit("/", 1)[1].startswith(node.op_type)
    used = {tensor for node in graph.node for tensor in node.input}
    assert used.issuperset(tensor.name for tensor in graph.initializer)


@pytest.mark.parametrize("name", BUILT)
def test_bytes_depend_on_the_seed_alone(name: str) -> None:
    first = content(models.build(name, **SMALL[name]))
    assert first == content(models.build(name, seed=0, **SMALL[name]))
    assert first != content(models.build(name, seed=1, **SMALL[name]))


@pytest.mark.parametrize("name", BUILT)
def test_symbolic_batch_computes_what_a_static_one_does(name: str) -> None:
    static = models.build(name, batch=3, **SMALL[name])
    symbolic = models.build(name, batch=2, symbolic_batch=True, **SMALL[name])
    onnx.checker.check_model(symbolic, full_check=True)
    for info in (*symbolic.graph.input, *symbolic.graph.output):
        assert info.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert {len(array) for array in models.feeds(symbolic).values()} == {2}
    arrays = models.feeds(symbolic, batch=3)
    for one, other in zip(run(static, arrays), run(symbolic, arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BUILT)
def test_without_weights_only_the_values_are_gone(name: str) -> None:
    full = models.build(name, **SMALL[name])
    bare = models.build(name, weights=False, **SMALL[name])
    onnx.checker.check_model(bare, full_check=True)
    assert [node.name for node in bare.graph.node] == [node.name for node in full.graph.node]
    assert models.parameter_count(bare) == models.parameter_count(full) > 0
    with pytest.raises(ValueError, match="weights=False"):
        models.feeds(bare)


# ---- sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "sizes", "count"), PUBLISHED)
def test_published_parameter_count(name: str, sizes: dict[str, Argument], count: int) -> None:
    assert models.parameter_count(models.build(name, weights=False, **sizes)) == count


def test_inception_differs_from_torchvision_by_its_5x5_convolutions() -> None:
    """torchvision has 3x3 convolutions in the 5x5 branch, and 6,624,904 parameters."""
    model = models.build("inception", weights=False)
    excess = 0
    for info in model.graph.input:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        if shape[2:] == [5, 5]:
            excess += math.prod(shape[:2]) * (5 * 5 - 3 * 3)
    assert models.parameter_count(model) - excess == 6_624_904


def test_untied_head_adds_its_weight() -> None:
    tied, untied = (
        models.parameter_count(models.build("gpt2", weights=False, tied=tied))
        for tied in (True, False)
    )
    assert untied - tied == 8192 * 256


def test_activation_bytes_of_a_perceptron_by_hand() -> None:
    model = models.build("mlp", batch=10, features=3, width=4, layers=2, classes=5)
    total, peak = models.activation_bytes(model)
    assert total == 10 * 4 * (3 + 4 * 4 + 5)
    assert peak == 10 * 4 * (4 + 5)


# ---- what the networks compute -----------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_decoder_is_causal(name: str) -> None:
    model = models.build(name, **SMALL[name])
    arrays = models.feeds(model)
    changed = {key: array.copy() for key, array in arrays.items()}
    changed["input_ids"][:, -1] = (changed["input_ids"][:, -1] + 1) % 50
    before, after = run(model, arrays)[0], run(model, changed)[0]
    np.testing.assert_allclose(before[:, :-1], after[:, :-1], rtol=1e-4, atol=1e-5)
    assert np.abs(before[:, -1] - after[:, -1]).max() > 0.01


def test_bert_ignores_masked_tokens() -> None:
    model = models.build("bert", **SMALL["bert"])
    arrays = models.feeds(model)
    arrays["attention_mask"][:] = 1
    arrays["attention_mask"][:, 5] = 0
    changed = {key: array.copy() for key, array in arrays.items()}
    changed["input_ids"][:, 5] = (changed["input_ids"][:, 5] + 1) % 50
    before, after = run(model, arrays)[0], run(model, changed)[0]
    others = [at for at in range(12) if at != 5]
    np.testing.assert_allclose(before[:, others], after[:, others], rtol=1e-4, atol=1e-5)
    assert np.abs(before[:, 5] - after[:, 5]).max() > 0.01


def test_rotary_positions_tell_the_order_of_tokens() -> None:
    """Without positions, the last of some tokens would not see how the others are ordered."""
    model = models.build("llama", **{**SMALL["llama"], "batch": 1})
    ids = np.arange(12, dtype=np.int64)[None]
    swapped = ids.copy()
    swapped[0, [2, 7]] = swapped[0, [7, 2]]
    one, other = (run(model, {"input_ids": order})[0][0, -1] for order in (ids, swapped))
    assert np.abs(one - other).max() > 1e-3


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "convnext"])
def test_gelu_forms_agree(name: str) -> None:
    built = {kind: models.build(name, gelu=kind, **SMALL[name]) for kind in ("erf", "tanh", "op")}
    assert {model.opset_import[0].version for model in built.values()} == {18, 20}
    assert any(node.op_type == "Gelu" for node in built["op"].graph.node)
    arrays = models.feeds(built["erf"])
    outputs = {kind: run(model, arrays)[0] for kind, model in built.items()}
    np.testing.assert_allclose(outputs["op"], outputs["erf"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs["tanh"], outputs["erf"], rtol=0.02, atol=0.02)


# ---- feeds -------------------------------------------------------------------------------


def test_feeds_are_seeded_and_in_range() -> None:
    model = models.build("bert", **SMALL["bert"])
    arrays = models.feeds(model, seed=3)
    again, other = models.feeds(model, seed=3), models.feeds(model, seed=4)
    assert sorted(arrays) == ["attention_mask", "input_ids", "token_type_ids"]
    for key, array in arrays.items():
        np.testing.assert_array_equal(array, again[key])
        assert (array != other[key]).any()
        assert array.min() >= 0
        assert array.max() < (50 if key == "input_ids" else 2)


def test_feeds_refuses_what_it_cannot_know() -> None:
    model = models.build("gpt2", symbolic_batch=True, **SMALL["gpt2"])
    del model.metadata_props[:]
    with pytest.raises(ValueError, match="give a size for dimension 'batch'"):
        models.feeds(model)
    model.graph.input[0].doc_string = ""
    with pytest.raises(ValueError, match="input_ids has no 'range"):
        models.feeds(model, batch=1)


# ---- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet19", {}, "unknown model 'resnet19'; known are resnet18"),
        ("resnet18", {"sizes": 64}, "resnet18 takes no argument 'sizes'; it takes batch, size"),
        ("resnet18", {"size": "64"}, "size must be of type int"),
        ("resnet18", {"batch": True}, "batch must be of type int"),
        ("resnet18", {"batch": 0}, "batch must be at least 1"),
        ("resnet18", {"seed": -1}, "seed must be at least 0"),
        ("squeezenet", {"size": 8}, "size too small"),
        ("unet", {"size": 100}, "not a multiple of 16"),
        ("vit", {"patch": 15}, "not a multiple of the patch"),
        ("vit", {"heads": 5}, "not a multiple of the 5 heads"),
        ("shufflenet", {"width": 0.7}, "must be one of"),
        ("bert", {"gelu": "fast"}, "unknown gelu 'fast'"),
        ("bert", {"sequence": 513}, "longer than the 512 positions"),
        ("llama", {"kv_heads": 3}, "multiple of kv_heads"),
        ("light_resnet50", {"batch": 2}, "takes no argument 'batch'"),
    ],
)
def test_wrong_arguments_are_named(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, **arguments)


def test_defaults_are_a_copy() -> None:
    sizes = models.defaults("resnet18")
    assert sizes["classes"] == 1000
    sizes["classes"] = 1
    assert models.defaults("resnet18")["classes"] == 1000


# ---- command line ------------------------------------------------------------------------


def test_command_line_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.onnx"
    sizes = ["--batch", "3", "--size", "64", "--width", "8", "--symbolic-batch"]
    assert main(["resnet18", str(out), *sizes]) == 0
    assert "69 nodes" in capsys.readouterr().out
    expected = models.build("resnet18", batch=3, size=64, width=8, symbolic_batch=True)
    assert content(onnx.load(out)) == content(expected)


def test_command_line_lists_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(models.names())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nonet", "x.onnx"], "invalid choice: 'nonet'"),
        (["resnet18", "x.onnx", "--sequence", "3"], "unrecognized arguments: --sequence 3"),
        (["resnet18", "x.onnx", "--size", "big"], "invalid int value: 'big'"),
        (["unet", "x.onnx", "--size", "100"], "not a multiple of 16"),
        (["mlp", "no/such/folder/x.onnx"], "No such file or directory"),
        ([], "give a model's NAME"),
    ],
)
def test_command_line_errors(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_readme_has_the_table_of_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(models.__file__).with_name("README.md").read_text(encoding="utf-8")
    assert main(["--table"]) == 0
    for row in capsys.readouterr().out.splitlines():
        assert row in readme.splitlines(), "run python -m models --table"


# ---- the light models --------------------------------------------------------------------


@pytest.mark.parametrize("name", LIGHT)
def test_light_model_gives_the_shipped_outputs(name: str) -> None:
    model = models.build(name)
    onnx.checker.check_model(model, full_check=True)
    arrays = models.feeds(model)
    assert [array.shape for array in arrays.values()] == [(1, 3, 224, 224)]
    for output, expected in zip(run(model, arrays), light.expected_outputs(name), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("name", ["light_shufflenet", "light_squeezenet", "light_densenet121"])
def test_light_model_with_seeded_weights(name: str) -> None:
    model = models.build(name, seeded=True)
    onnx.checker.check_model(model, full_check=True)
    assert content(model) == content(models.build(name, seeded=True))
    assert all(node.op_type != "ConstantOfShape" for node in model.graph.node)
    (output,) = run(model)
    assert output.shape == declared_shapes(model)[0]
    assert np.isfinite(output).all()
    assert output.std() > 1e-4
    assert output.max() < 0.5 or name == "light_densenet121"  # which ends before its softmax


def test_nine_light_models() -> None:
    assert len(LIGHT) == 9
