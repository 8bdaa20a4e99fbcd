"""Mixtures of experts against PyTorch's autograd, experts that get no token among them."""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from onnxremat.grad import Adam, differentiate, training_of
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.trainer import Trainer
from tests.torch.experts import KINDS, WORDS, batches, net

EXPORTERS = ("dynamo", "legacy")
EXACT, STEPS, DECAY, RATE = 2e-5, 10, 0.01, {"sgd": 0.1, "adamw": 0.01}
CASES = [pytest.param(name, exporter, id=f"{name}-{exporter}")
         for name in KINDS for exporter in EXPORTERS]  # fmt: skip


@cache
def exported(name: str, exporter: str) -> onnx.ModelProto:
    """The file that PyTorch writes of a net, with its parameters' names."""
    file, words = io.BytesIO(), batches()[0]
    names = {"input_names": ["words"], "output_names": ["logits"], "verbose": False}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            if exporter == "dynamo":
                program = torch.onnx.export(net(name), (words,), dynamo=True, **names)
                return program.model_proto
            training = torch.onnx.TrainingMode.PRESERVE
            torch.onnx.export(net(name), (words,), file, dynamo=False, training=training,
                              do_constant_folding=False, opset_version=18, **names)  # fmt: skip
        finally:
            logging.disable(logging.NOTSET)
    return onnx.load_from_string(file.getvalue())


def loss_of(module: torch.nn.Module, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module(words).reshape(-1, WORDS), labels.reshape(-1))


def labels_of(words: torch.Tensor) -> torch.Tensor:
    """The next word, as it were."""
    return (words * 7 + torch.arange(words.shape[1])) % WORDS


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_gradients_of_every_parameter(name: str, exporter: str) -> None:
    model, module = exported(name, exporter), net(name)
    step = differentiate(model, optimizer=None)
    about = training_of(step)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert {parameter for parameter, _ in about.gradients} == set(dict(module.named_parameters()))
    session = open_session(step, session_options(Options(threads=1)))
    idle = 0
    for words in batches():
        labels = labels_of(words)
        module.zero_grad()
        loss_of(module, words, labels).backward()
        values = {parameter: stored[parameter] for parameter, _ in about.gradients}
        feeds = {"words": words.numpy(), about.target: labels.numpy(), **values}
        found = session.run([gradient for _, gradient in about.gradients], feeds)
        for (parameter, _), gradient in zip(about.gradients, found, strict=True):
            made = dict(module.named_parameters())[parameter].grad
            want = np.zeros_like(gradient) if made is None else made.numpy()
            if not want.any():
                idle += 1
                assert not gradient.any(), parameter
            assert np.linalg.norm(gradient - want) <= EXACT * (1e-3 + np.linalg.norm(want))
    assert idle


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_ten_steps(name: str, exporter: str, optimizer: str) -> None:
    model, module = exported(name, exporter), net(name)
    rate = RATE[optimizer]
    ours = "sgd" if optimizer == "sgd" else Adam(weight_decay=DECAY, decoupled=True)
    trainer = Trainer(differentiate(model, optimizer=ours), model, rate=rate, threads=1)
    made = (torch.optim.SGD(module.parameters(), rate) if optimizer == "sgd"
            else torch.optim.AdamW(module.parameters(), rate, weight_decay=DECAY))  # fmt: skip
    for k in range(STEPS):
        words = batches()[k % len(batches())]
        labels = labels_of(words)
        made.zero_grad(set_to_none=False)
        want = loss_of(module, words, labels)
        want.backward()
        for parameter in module.parameters():  # PyTorch leaves out what has no gradient
            parameter.grad = (
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
        made.step()
        feeds = {"words": words.numpy(), trainer.training.target: labels.numpy()}
        assert trainer.step(feeds) == pytest.approx(want.item(), rel=1e-4)
