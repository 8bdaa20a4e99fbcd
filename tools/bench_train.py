"""Training-step time and peak memory against PyTorch eager, paired.

    python tools/bench_train.py --nets resnet18 bert --threads 1 2 --rounds 3

Each round runs every contender once, in its own process, one after the other; times are medians
over rounds of the median step of a process. Memory is the rise of the resident peak over what
was resident before the first step: activations, gradients and the runtime's buffers.
PyTorch is needed for its side only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
NETS: dict[str, dict[str, Any]] = {
    "resnet18": {"batch": 8, "size": 224},
    "mobilenetv2": {"batch": 16, "size": 224},
    "bert": {"batch": 32, "sequence": 128, "hidden": 256, "layers": 4, "heads": 4},
    "vit": {"batch": 8, "size": 224},
}
CONTENDERS = ("torch", "ours")
ALL = (*CONTENDERS, "blocked")


def resident(key: str) -> float:
    """A memory figure of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(key)


def measure(step: Callable[[], float], seconds: float) -> dict[str, Any]:
    """Time and memory of repeated steps."""
    base = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    losses = [step(), step()]
    wall, cpu, start = [], [], time.monotonic()
    while len(wall) < 4 or (time.monotonic() - start < seconds and len(wall) < 30):
        begin, used = time.perf_counter(), time.process_time()
        losses.append(step())
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
    return {
        "wall": statistics.median(wall),
        "cpu": statistics.median(cpu),
        "peak": resident("VmHWM") - base,
        "losses": [round(loss, 5) for loss in losses[:4]],
    }


def data(net: str) -> tuple[Any, dict[str, np.ndarray], np.ndarray]:
    """The model, its inputs and labels."""
    sys.path.insert(0, str(ROOT))
    import models

    model = models.build(net, **NETS[net])
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    labels = np.random.default_rng(0).integers(0, shape[-1], shape[:-1])
    return model, models.feeds(model), labels


# ---- ours ------------------------------------------------------------------------------------


def ours(net: str, threads: int, seconds: float, blocked: bool = False) -> dict[str, Any]:
    """A step of the emitted graph through the Trainer; ``blocked`` for this machine only."""
    from onnxremat.grad import differentiate
    from onnxremat.grad.blocked import block_size
    from onnxremat.run.train import Trainer

    model, feeds, labels = data(net)
    block = block_size() if blocked else 0
    graph = differentiate(model, optimizer="sgd", dropout=False, blocked=block)
    trainer = Trainer(graph, model, threads=threads, rate=0.01)
    del model, graph
    batch = {**feeds, trainer.training.target: labels}
    return measure(lambda: trainer.step(batch), seconds)


# ---- PyTorch -----------------------------------------------------------------------------------


def torch_step(net: str, threads: int, seconds: float) -> dict[str, Any]:
    """A step of the same net, weights and data in PyTorch eager."""
    import torch
    from onnx import numpy_helper

    torch.set_num_threads(threads)
    model, feeds, labels = data(net)
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    values = {name: torch.tensor(a) for name, a in stored.items() if a.dtype == np.float32}
    parameters = [
        value.requires_grad_(True)
        for name, value in values.items()
        if value.dim() and "running" not in name and not name.startswith("/")
    ]
    del model, stored
    inputs = {name: torch.tensor(value) for name, value in feeds.items()}
    targets, forward = torch.tensor(labels), FORWARDS[net]
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        y = forward(torch, values, inputs)
        flat = y.reshape(-1, y.shape[-1])
        loss = torch.nn.functional.cross_entropy(flat, targets.reshape(-1))
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return measure(step, seconds)


def _norm(torch: Any, p: Any, name: str, x: Any) -> Any:
    return torch.nn.functional.batch_norm(
        x, p[f"{name}.running_mean"], p[f"{name}.running_var"], p[f"{name}.weight"],
        p[f"{name}.bias"], True, 0.1, 1e-5,
    )  # fmt: skip


def _conv(torch: Any, p: Any, name: str, x: Any, stride: int = 1, groups: int = 1) -> Any:
    w = p[f"{name}.weight"]
    return torch.nn.functional.conv2d(x, w, None, stride, w.shape[-1] // 2, 1, groups)


def resnet18(torch: Any, p: Any, inputs: Any) -> Any:
    """ResNet-18 of the functional API: what the module's forward does."""
    x = torch.relu(_norm(torch, p, "bn1", _conv(torch, p, "conv1", inputs["input"], 2)))
    x = torch.nn.functional.max_pool2d(x, 3, 2, 1)
    for stage in range(1, 5):
        for block in range(2):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = torch.relu(
                _norm(torch, p, f"{name}.bn1", _conv(torch, p, f"{name}.conv1", x, stride))
            )
            y = _norm(torch, p, f"{name}.bn2", _conv(torch, p, f"{name}.conv2", y))
            if f"{name}.downsample.0.weight" in p:
                x = _conv(torch, p, f"{name}.downsample.0", x, stride)
                x = _norm(torch, p, f"{name}.downsample.1", x)
            x = torch.relu(x + y)
    x = torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
    return torch.nn.functional.linear(x, p["fc.weight"], p["fc.bias"])


def mobilenetv2(torch: Any, p: Any, inputs: Any) -> Any:
    """MobileNetV2 of the functional API."""
    relu6 = torch.nn.functional.relu6
    x = relu6(_norm(torch, p, "features.0.1", _conv(torch, p, "features.0.0", inputs["input"], 2)))
    strides = [1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1]
    for k, stride in enumerate(strides, start=1):
        name, y, part = f"features.{k}.conv", x, 0
        if f"{name}.3.weight" in p:
            y = relu6(_norm(torch, p, f"{name}.0.1", _conv(torch, p, f"{name}.0.0", y)))
            part = 1
        depth = f"{name}.{part}"
        groups = p[f"{depth}.0.weight"].shape[0]
        y = _conv(torch, p, f"{depth}.0", y, stride, groups)
        y = relu6(_norm(torch, p, f"{depth}.1", y))
        y = _norm(torch, p, f"{name}.{part + 2}", _conv(torch, p, f"{name}.{part + 1}", y))
        x = x + y if stride == 1 and x.shape == y.shape else y
    x = relu6(_norm(torch, p, "features.18.1", _conv(torch, p, "features.18.0", x)))
    x = torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
    return torch.nn.functional.linear(x, p["classifier.1.weight"], p["classifier.1.bias"])


def _linear(torch: Any, p: Any, name: str, x: Any) -> Any:
    return torch.nn.functional.linear(x, p[f"{name}.weight"].T, p[f"{name}.bias"])


def _layer_norm(torch: Any, p: Any, name: str, x: Any, epsilon: float) -> Any:
    weight = p[f"{name}.weight"]
    return torch.nn.functional.layer_norm(x, weight.shape, weight, p[f"{name}.bias"], epsilon)


def _attend(torch: Any, q: Any, k: Any, v: Any, bias: Any = 0.0) -> Any:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
    mixed = torch.softmax(scores, -1) @ v
    return mixed.transpose(1, 2).flatten(2)


def bert(torch: Any, p: Any, inputs: Any) -> Any:
    """BERT's encoder of the functional API, attention written out."""
    ids, heads = inputs["input_ids"], NETS["bert"]["heads"]
    bias = (1.0 - inputs["attention_mask"][:, None, None].float()) * torch.finfo(torch.float32).min
    x = torch.nn.functional.embedding(ids, p["embeddings.word_embeddings.weight"])
    kinds = p["embeddings.token_type_embeddings.weight"]
    x = x + torch.nn.functional.embedding(inputs["token_type_ids"], kinds)
    x = x + p["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = _layer_norm(torch, p, "embeddings.LayerNorm", x, 1e-12)
    for k in range(NETS["bert"]["layers"]):
        name = f"encoder.layer.{k}"
        query, key, value = (
            _linear(torch, p, f"{name}.attention.self.{part}", x)
            .unflatten(-1, (heads, -1))
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = _attend(torch, query, key, value, bias)
        x = x + _linear(torch, p, f"{name}.attention.output.dense", mixed)
        x = _layer_norm(torch, p, f"{name}.attention.output.LayerNorm", x, 1e-12)
        y = torch.nn.functional.gelu(_linear(torch, p, f"{name}.intermediate.dense", x))
        x = x + _linear(torch, p, f"{name}.output.dense", y)
        x = _layer_norm(torch, p, f"{name}.output.LayerNorm", x, 1e-12)
    return x


def vit(torch: Any, p: Any, inputs: Any) -> Any:
    """ViT-tiny of the functional API, attention written out."""
    filters, heads = p["patch_embed.proj.weight"], 3
    x = torch.nn.functional.conv2d(inputs["input"], filters, p["patch_embed.proj.bias"], 16)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([p["cls_token"].expand(x.shape[0], -1, -1), x], 1) + p["pos_embed"]
    for k in range(12):
        name = f"blocks.{k}"
        y = _linear(torch, p, f"{name}.attn.qkv", _layer_norm(torch, p, f"{name}.norm1", x, 1e-6))
        q, key, v = y.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + _linear(torch, p, f"{name}.attn.proj", _attend(torch, q, key, v))
        y = _linear(torch, p, f"{name}.mlp.fc1", _layer_norm(torch, p, f"{name}.norm2", x, 1e-6))
        x = x + _linear(torch, p, f"{name}.mlp.fc2", torch.nn.functional.gelu(y))
    x = _layer_norm(torch, p, "norm", x, 1e-6)
    return torch.nn.functional.linear(x[:, 0], p["head.weight"], p["head.bias"])


FORWARDS = {"resnet18": resnet18, "mobilenetv2": mobilenetv2, "bert": bert, "vit": vit}


# ---- driver ------------------------------------------------------------------------------------


def run_child(net: str, who: str, threads: int, seconds: float) -> dict[str, Any]:
    """One contender in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--child", who, "--nets", net,
               "--threads", str(threads), "--seconds", str(seconds)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{net} {who}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def compare(net: str, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Medians of all contenders over rounds, and the ratio ours / PyTorch."""
    found: dict[str, list[dict[str, Any]]] = {who: [] for who in CONTENDERS}
    for _ in range(rounds):
        for who in CONTENDERS:
            found[who].append(run_child(net, who, threads, seconds))
    row: dict[str, Any] = {"net": net, "threads": threads}
    for who, results in found.items():
        for key in ("wall", "cpu", "peak"):
            row[f"{who}_{key}"] = round(statistics.median(r[key] for r in results), 3)
        row[f"{who}_losses"] = results[0]["losses"]
    for key in ("wall", "cpu", "peak"):
        ratios = [a[key] / b[key] for a, b in zip(found["ours"], found["torch"], strict=True)]
        row[f"ratio_{key}"] = round(statistics.median(ratios), 3)
    return row


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--child", choices=ALL)
    arguments = parser.parse_args()
    if arguments.child:
        run = {"torch": torch_step, "ours": ours, "blocked": partial(ours, blocked=True)}
        found = run[arguments.child](arguments.nets[0], arguments.threads[0], arguments.seconds)
        print(json.dumps(found))
        return
    for threads in arguments.threads:
        for net in arguments.nets:
            print(
                json.dumps(compare(net, threads, arguments.rounds, arguments.seconds)), flush=True
            )


if __name__ == "__main__":
    main()
