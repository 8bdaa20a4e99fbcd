"""Nets of the zoo that came last: what none before them had (caches as inputs, FFTs, recurrent
layers over images, weight normalisation with an LSTM), at toy size."""

from __future__ import annotations

import torch
import transformers as hf
from torch import nn

from tests.zoo.others import ENDS, KEYS, PATCHES, text, vision
from tests.zoo.registry import Called, architecture, images, reals, tokens
from tests.zoo.small import SMALL, classifier, decoder

Net = nn.Module
GPT = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}

# ---- transformers: text ----------------------------------------------------------------------

text(
    "mpt",
    decoder,
    hf.MptForCausalLM,
    lambda: hf.MptConfig(vocab_size=64, d_model=32, n_heads=4, n_layers=2, max_seq_len=32),
)
text("codegen", decoder, hf.CodeGenForCausalLM, lambda: hf.CodeGenConfig(**GPT, rotary_dim=4))
text("gpt_bigcode", decoder, hf.GPTBigCodeForCausalLM, lambda: hf.GPTBigCodeConfig(**GPT))
text(
    "cohere",
    decoder,
    hf.CohereForCausalLM,
    lambda: hf.CohereConfig(**SMALL, **KEYS, **ENDS, use_qk_norm=True),
)
text("falcon_mamba", decoder, hf.FalconMambaForCausalLM,
     lambda: hf.FalconMambaConfig(vocab_size=64, hidden_size=16, state_size=4,
                                  num_hidden_layers=2))  # fmt: skip
text("recurrent_gemma", decoder, hf.RecurrentGemmaForCausalLM,
     lambda: hf.RecurrentGemmaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=3,
                                     intermediate_size=64, num_attention_heads=4, lru_width=32,
                                     attention_window_size=8, head_dim=8,
                                     num_key_value_heads=1))  # fmt: skip
text("modernbert", classifier, hf.ModernBertForSequenceClassification,
     lambda: hf.ModernBertConfig(**SMALL, num_labels=5, local_attention=6, pad_token_id=0,
                                 global_attn_every_n_layers=2,
                                 attn_implementation="eager"))  # fmt: skip
text("prophetnet", decoder, hf.ProphetNetForCausalLM,
     lambda: hf.ProphetNetConfig(vocab_size=64, hidden_size=32, decoder_ffn_dim=64,
                                 num_decoder_layers=1, num_decoder_attention_heads=4,
                                 max_position_embeddings=32, ngram=2, num_buckets=8,
                                 relative_max_distance=16, is_decoder=True))  # fmt: skip


class _Cached(nn.Module):
    """Words after others, whose keys and values are inputs."""

    def __init__(self) -> None:
        super().__init__()
        still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.net = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, **still))

    def forward(self, words: torch.Tensor, *known: torch.Tensor) -> torch.Tensor:
        cache = hf.DynamicCache()
        for layer in range(2):
            cache.update(known[2 * layer], known[2 * layer + 1], layer)
        return self.net(input_ids=words, past_key_values=cache, use_cache=True).logits


@architecture("transformers", tokens(6), *(4 * [reals(2, 4, 5, 8)]))
def gpt2_cached() -> Net:
    return _Cached()


# ---- transformers: sound, images, films, actions ---------------------------------------------


@architecture("transformers", images(32, batch=2), loss="mse", rate=1e-3)
def clip_vision() -> Net:
    about = {name: value for name, value in PATCHES.items() if name != "num_labels"}
    net = hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**about, projection_dim=16))
    return Called(net, "pixel_values", "image_embeds")


@architecture("transformers", images(64, batch=1), loss="mse", rate=1e-3)
def sam_vision() -> Net:
    config = hf.SamVisionConfig(hidden_size=32, output_channels=16, num_hidden_layers=2,
                                num_attention_heads=2, image_size=64, patch_size=8, mlp_dim=64,
                                window_size=3, global_attn_indexes=[1])  # fmt: skip
    return Called(hf.SamVisionModel(config), "pixel_values", "last_hidden_state")


@architecture("transformers", reals(2, 4, 3, 32, 32), rate=1e-3)
def timesformer() -> Net:
    net = hf.TimesformerForVideoClassification(hf.TimesformerConfig(**PATCHES, num_frames=4))
    return Called(net, "pixel_values", "logits")


class _Codec(nn.Module):
    """Sound to a code and back: convolutions with weight normalisation, an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        config = hf.EncodecConfig(num_filters=4, upsampling_ratios=[4, 2], hidden_size=16,
                                  codebook_dim=16, codebook_size=8, num_lstm_layers=1,
                                  num_residual_layers=1)  # fmt: skip
        net = hf.EncodecModel(config)
        self.encoder, self.decoder = net.encoder, net.decoder

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(sound))


@architecture("transformers", reals(2, 1, 320), loss="mse", rate=1e-3)
def encodec() -> Net:
    return _Codec()


class _Actions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = hf.DecisionTransformerConfig(state_dim=4, act_dim=3, hidden_size=32, n_layer=2,
                                              n_head=4, n_positions=64, max_ep_len=32,
                                              resid_pdrop=0.0, embd_pdrop=0.0,
                                              attn_pdrop=0.0)  # fmt: skip
        self.net = hf.DecisionTransformerModel(config)

    def forward(
        self, states: torch.Tensor, actions: torch.Tensor, returns: torch.Tensor
    ) -> torch.Tensor:
        made = self.net(states=states, actions=actions, rewards=returns, returns_to_go=returns,
                        timesteps=torch.arange(6)[None].expand(2, 6),
                        attention_mask=torch.ones(2, 6))  # fmt: skip
        return made.action_preds


@architecture("transformers", reals(2, 6, 4), reals(2, 6, 3), reals(2, 6, 1), loss="mse")
def decision_transformer() -> Net:
    return _Actions()


# ---- timm, own -------------------------------------------------------------------------------

vision("sequencer", "sequencer2d_s", 32, layers=(1, 1, 1, 1), embed_dims=(16, 16, 16, 16),
       hidden_sizes=(8, 8, 8, 8), patch_sizes=(4, 2, 1, 1))  # fmt: skip
vision("starnet", "starnet_s1", base_dim=8, depths=(1, 1, 1, 1))
vision("pit", "pit_ti_224", 32, img_size=32, patch_size=8, stride=4, base_dims=(8, 8, 8),
       depth=(1, 1, 1), heads=(1, 2, 4))  # fmt: skip


class _Spectrum(nn.Module):
    """Frequencies weighed by complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 24), nn.Linear(24, 8)
        self.weight = nn.Parameter(torch.randn(13, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.fft.rfft(self.first(x), dim=-1, norm="ortho")
        found = found * torch.view_as_complex(self.weight)
        return self.last(torch.fft.irfft(found, n=24, dim=-1, norm="ortho"))


@architecture("own", reals(2, 24), loss="mse", rate=1e-3, sample=True)
def spectrum() -> Net:
    return _Spectrum()
