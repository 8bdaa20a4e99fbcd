"""What models take whose weights onnxruntime holds twice, or wider than their file has them.

Decoders and encoders of transformers, random weights, as PyTorch's exporter writes them: with an
embedding that is the last layer, too, and in half precision. Per net: bytes of weights in the file,
what a process takes for the original and at the smallest budget that is found, predicted and as
``verify`` measures it, and the time of a run against the original's, in turns, one thread.

    python tools/bench_weights.py [--nets gpt2 ...] [--seconds 20]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.modules["torchvision"] = None  # type: ignore[assignment]  # transformers does without

import onnx  # noqa: E402
import torch  # noqa: E402
import transformers as hf  # noqa: E402

from onnxremat import api  # noqa: E402
from onnxremat.device.host import processor_name  # noqa: E402
from onnxremat.planner.options import PlanOptions  # noqa: E402
from tests.zoo.registry import Called  # noqa: E402

MIB = 1 << 20
SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
WIDE: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "vocab_size": 8000,
}  # fmt: skip


def _gpt2() -> tuple[torch.nn.Module, int, int]:
    config = hf.GPT2Config(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    return hf.GPT2LMHeadModel(config), 50257, 512


def _qwen2() -> tuple[torch.nn.Module, int, int]:
    config = hf.Qwen2Config(
        **SMALL, num_hidden_layers=3, num_key_value_heads=2, vocab_size=50000,
        tie_word_embeddings=True,
    )  # fmt: skip
    return hf.Qwen2ForCausalLM(config), 50000, 8


def _bert() -> tuple[torch.nn.Module, int, int]:
    return hf.BertForMaskedLM(hf.BertConfig(**SMALL, num_hidden_layers=2)), 30522, 32


def _half() -> tuple[torch.nn.Module, int, int]:
    config = hf.Qwen2Config(
        **WIDE, num_hidden_layers=4, num_key_value_heads=2, tie_word_embeddings=False
    )
    return hf.Qwen2ForCausalLM(config).to(torch.float16), 8000, 64


NETS = {"gpt2": _gpt2, "qwen2": _qwen2, "bert": _bert, "half": _half}


def exported(name: str, folder: Path) -> Path:
    """A net as a file."""
    torch.manual_seed(0)
    net, words, tokens = NETS[name]()
    keep = {} if name == "bert" else {"use_cache": False}
    called = Called(net, "input_ids", "logits", **keep).eval()
    file = folder / f"{name}.onnx"
    torch.onnx.export(
        called, (torch.randint(0, words, (1, tokens)),), str(file), dynamo=True, verbose=False,
        input_names=["input_ids"],
    )  # fmt: skip
    return file


def row(name: str, seconds: float, folder: Path) -> str:
    """A line of the table."""
    file, out = exported(name, folder), folder / "out.onnx"
    stored = onnx.load(file).graph.initializer
    settings = api.Settings(threads=1)
    result = api.optimize(
        file, budget="min", settings=settings, options=PlanOptions(time_limit=30),
        bench_seconds=seconds,
    )  # fmt: skip
    result.save(out)
    found = api.verify(file, out, settings=settings)
    facts = result.facts()
    assert found.process is not None
    original = facts["baseline_peak_bytes"] + facts["baseline_beside_bytes"]
    columns = [
        name,
        f"{sum(len(t.raw_data) for t in stored) / MIB:.1f}",
        f"{original / MIB:.1f}",
        f"{result.candidate.process / MIB:.1f}",
        f"{found.process / MIB:.1f}",
        f"{1 + facts['overhead_to_original']:.2f}",
        "yes" if found.ok else "NO",
    ]
    return "| " + " | ".join(columns) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nets", nargs="*", choices=tuple(NETS), default=list(NETS))
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"processor: {processor_name()}, one thread")
    print("| net | weights, MiB | original | least, predicted | measured | time | verified |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name in given.nets:
        with tempfile.TemporaryDirectory() as folder:
            print(row(name, given.seconds, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
