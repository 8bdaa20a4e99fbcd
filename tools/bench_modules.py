"""Training steps of nets of torchvision, timm and transformers against PyTorch eager, in turns.

Each net is taken as a user would: ``onnxremat.from_torch``, ``differentiate`` with blocked
convolutions, a ``Trainer``; plain SGD, nothing random. Both train in one process, each pair of
steps after the other; the first of two is not timed. Per net and thread count: medians, the median
of the ratios, and how far the first losses are apart.

    python tools/bench_modules.py [--nets efficientnet_b0 ...] [--threads 1 2] [--seconds 8]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from onnxremat.device.host import processor_name
from tests.zoo.libraries import timm, torchvision

Step = Callable[[], float]


def images(batch: int, size: int) -> torch.Tensor:
    """Normally distributed."""
    return torch.randn(batch, 3, size, size)


class Recurrent(torch.nn.Module):  # type: ignore[misc]
    """Two layers of LSTM, and a classifier of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.LSTM(64, 128, 2, batch_first=True)
        self.classes = torch.nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classes(self.layers(x)[0][:, -1])


def gpt2() -> tuple[torch.nn.Module, torch.Tensor]:
    """Three layers of width 384, 8,000 words."""
    import transformers as hf

    from tests.zoo.registry import Called

    config = hf.GPT2Config(
        n_layer=3, n_embd=384, n_head=6, vocab_size=8000, n_positions=256, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    net = Called(hf.GPT2LMHeadModel(config), "input_ids", "logits", use_cache=False)
    return net, torch.randint(0, 8000, (2, 128))


NETS: dict[str, Callable[[], tuple[torch.nn.Module, torch.Tensor]]] = {
    "resnet34": lambda: (torchvision.models.resnet34(), images(4, 224)),
    "googlenet": lambda: (
        torchvision.models.googlenet(aux_logits=False, init_weights=False), images(4, 224)
    ),
    "efficientnet_b0": lambda: (torchvision.models.efficientnet_b0(), images(4, 224)),
    "mobilenet_v3": lambda: (torchvision.models.mobilenet_v3_large(), images(4, 224)),
    "shufflenet_v2": lambda: (torchvision.models.shufflenet_v2_x1_0(), images(8, 224)),
    "regnety": lambda: (timm.create_model("regnety_004"), images(4, 224)),
    "convnext": lambda: (timm.create_model("convnext_atto"), images(4, 224)),
    "swin": lambda: (
        timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 2, 1), drop_path_rate=0),
        images(2, 224),
    ),
    "vit": lambda: (timm.create_model("vit_small_patch16_224", depth=4), images(4, 224)),
    "gpt2": gpt2,
    "lstm": lambda: (Recurrent(), torch.randn(16, 64, 64)),
}  # fmt: skip


def still(module: torch.nn.Module) -> None:
    """Without anything random."""
    for each in module.modules():
        if "drop" in type(each).__name__.lower() or type(each).__name__ == "StochasticDepth":
            for name in ("p", "drop_prob"):
                if hasattr(each, name):
                    setattr(each, name, 0.0)
    module.train()


def steps(name: str, threads: int) -> tuple[Step, Step]:
    """Our step of a net, and PyTorch's."""
    import onnxremat
    from onnxremat.grad import Settings, differentiate
    from onnxremat.ort.blocks import block_size

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    module, given = NETS[name]()
    still(module)
    model = onnxremat.from_torch(module, (given,))
    source = model.graph.input[0].name
    step = differentiate(model, settings=Settings(optimizer="sgd", blocked=block_size()))
    trainer = onnxremat.Trainer(step, weights=module, rate=1e-4, threads=threads)
    with torch.no_grad():
        shape = model_shape(module, given)
    labels = torch.randint(0, shape[-1], shape[:-1], generator=torch.Generator().manual_seed(1))
    batch = {source: given.numpy(), trainer.training.target: labels.numpy()}
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def eager() -> float:
        optimizer.zero_grad(set_to_none=True)
        made = module(given)
        loss = torch.nn.functional.cross_entropy(
            made.reshape(-1, made.shape[-1]), labels.reshape(-1)
        )
        loss.backward()
        optimizer.step()
        return float(loss)

    return lambda: trainer.step(batch), eager


def model_shape(module: torch.nn.Module, given: torch.Tensor) -> tuple[int, ...]:
    """Of what the module returns; its running statistics stay as they are."""
    module.eval()
    shape = tuple(module(given).shape)
    module.train()
    return shape


def row(name: str, threads: int, seconds: float) -> str:
    """One line of the table."""
    both = steps(name, threads)
    first = [step() for step in both]
    times: list[list[float]] = [[], []]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times[0]) < 3:
        for step, found in zip(both, times, strict=True):
            step()
            begin = time.perf_counter()
            step()
            found.append(time.perf_counter() - begin)
    ours, eager = (1e3 * statistics.median(found) for found in times)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    off = abs(first[0] / first[1] - 1)
    return f"| {name} | {threads} | {eager:.0f} | {ours:.0f} | {ratio:.2f} | {off:.0e} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"processor: {processor_name()}, PyTorch {torch.__version__}")
    print("| net | threads | PyTorch eager, ms | ours, ms | ratio | first losses apart |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    for name in asked.nets:
        for threads in asked.threads:
            print(row(name, threads, asked.seconds), flush=True)


if __name__ == "__main__":
    main()
