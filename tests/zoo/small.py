"""Settings that make nets of timm and transformers small and still."""

from __future__ import annotations

import torch
import transformers as hf

from tests.zoo.libraries import timm
from tests.zoo.registry import Called

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64, "max_position_embeddings": 32}  # fmt: skip
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 5}


def timm_net(name: str, **settings: object) -> torch.nn.Module:
    """A net of timm for ten classes."""
    return timm.create_model(name, num_classes=10, **settings)


def classifier(kind: type, config: hf.PretrainedConfig) -> torch.nn.Module:
    """Of whole texts."""
    return Called(kind(config), "input_ids attention_mask", "logits")


def decoder(
    kind: type, config: hf.PretrainedConfig, names: str = "input_ids attention_mask"
) -> torch.nn.Module:
    """Of the next word."""
    # Without a mask they look for packed sequences, which PyTorch's legacy exporter does not know.
    return Called(kind(config), names, "logits", use_cache=False)
