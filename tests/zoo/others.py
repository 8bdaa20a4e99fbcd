"""More nets of the zoo, of families that came after its first list: at toy size, one line or two
each."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers as hf
from torch import nn

from tests.zoo.libraries import torchvision
from tests.zoo.registry import Called, architecture, images, ones, reals, tokens
from tests.zoo.small import SMALL, STILL, classifier, decoder, timm_net

Net = nn.Module
tv = torchvision.models

# ---- torchvision -----------------------------------------------------------------------------


@architecture("torchvision", reals(2, 3, 4, 24, 24), rate=1e-3)
def video_resnet() -> Net:
    from torchvision.models.video import resnet as video

    kinds = [video.Conv3DSimple, video.Conv2Plus1D, video.Conv3DSimple, video.Conv3DSimple]
    net = video.VideoResNet(video.BasicBlock, kinds, [1, 1, 1, 1], video.BasicStem, num_classes=10)
    net.layer3, net.layer4, net.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 10)
    return net


@architecture("torchvision", images(32))
def quantizable_mobilenet() -> Net:
    from torchvision.models.quantization.mobilenetv2 import QuantizableMobileNetV2

    blocks = [[1, 16, 1, 1], [6, 24, 2, 2]]
    return QuantizableMobileNetV2(
        num_classes=10, width_mult=0.25, inverted_residual_setting=blocks, dropout=0.0
    )


class _RetinaNet(nn.Module):
    """Frozen batch normalizations, a pyramid, two heads."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.detection.backbone_utils import BackboneWithFPN
        from torchvision.models.detection.retinanet import RetinaNetHead
        from torchvision.ops import FrozenBatchNorm2d

        small = tv.resnet.ResNet(
            tv.resnet.BasicBlock, [1, 1, 1, 1], num_classes=5, norm_layer=FrozenBatchNorm2d
        )
        self.body = BackboneWithFPN(small, {"layer1": "0", "layer2": "1"}, [64, 128], 16)
        self.head = RetinaNetHead(16, 2, 3, norm_layer=lambda wide: nn.GroupNorm(4, wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.head(list(self.body(x).values()))
        return torch.cat([found["cls_logits"], found["bbox_regression"]], -1)


@architecture("torchvision", images(32, batch=1), loss="mse", rate=1e-3)
def retinanet() -> Net:
    return _RetinaNet()


# ---- timm ------------------------------------------------------------------------------------

FOUR = {"depths": (1, 1, 1, 1)}
DIMS = {"embed_dims": (16, 16, 32, 32)}


def vision(name: str, model: str, size: int = 64, **settings: object) -> None:
    """Enter a net of timm for images of that size."""

    def build() -> Net:
        return timm_net(model, **settings)

    build.__name__ = name
    architecture("timm", images(size, batch=2), rate=1e-3)(build)


@architecture("timm", images(64, batch=2), rate=1e-3)
def fastvit() -> Net:
    from timm.models.fastvit import FastVit

    return FastVit(
        layers=(1, 1, 1, 1), embed_dims=(16, 16, 32, 32), mlp_ratios=(2, 2, 2, 2),
        token_mixers=("repmixer", "repmixer", "repmixer", "attention"), num_classes=10,
    )  # fmt: skip


@architecture("timm", images(64, batch=2), rate=1e-3)
def efficientformer_v2() -> Net:
    from timm.models.efficientformer_v2 import EfficientFormerV2

    return EfficientFormerV2(img_size=64, num_classes=10, num_vit=1, mlp_ratios=(2, 2, 2, 2),
                             **FOUR, **DIMS)  # fmt: skip


@architecture("timm", images(64, batch=2), rate=1e-3)
def tiny_vit() -> Net:
    from timm.models.tiny_vit import TinyVit

    return TinyVit(num_classes=10, num_heads=(1, 2, 2, 4), window_sizes=(4, 4, 4, 2), **FOUR,
                   **DIMS)  # fmt: skip


@architecture("timm", images(64, batch=2), rate=1e-3)
def focalnet() -> Net:
    from timm.models.focalnet import FocalNet

    return FocalNet(num_classes=10, embed_dim=16, **FOUR)


@architecture("timm", images(32, batch=2), rate=1e-3)
def nest() -> Net:
    from timm.models.nest import Nest

    return Nest(img_size=32, num_classes=10, embed_dims=(16, 16, 32), num_heads=(1, 2, 2),
                depths=(1, 1, 1), patch_size=2)  # fmt: skip


vision("hiera", "hiera_tiny_224", img_size=64, embed_dim=16, num_heads=1, stages=(1, 1, 1, 1))
vision("mambaout", "mambaout_femto", dims=(16, 16, 32, 32), **FOUR)
vision("davit", "davit_tiny", num_heads=(1, 2, 2, 4), window_size=4, **FOUR, **DIMS)
vision("pvt_v2", "pvt_v2_b0", num_heads=(1, 2, 2, 4), **FOUR, **DIMS)
vision("convit", "convit_tiny", 32, img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4,
       local_up_to_layer=2)  # fmt: skip
vision("visformer", "visformer_tiny", img_size=64, embed_dim=32, depth=(1, 1, 1), num_heads=2,
       init_channels=8)  # fmt: skip
vision("tnt", "tnt_s_patch16_224", 32, img_size=32, patch_size=8, embed_dim=32, inner_dim=8,
       depth=2, num_heads_inner=2, num_heads_outer=4)  # fmt: skip
vision("repvit", "repvit_m0_9", embed_dim=(16, 16, 32, 32), depth=(1, 1, 1, 1))
vision("swiftformer", "swiftformer_xs", layers=(1, 1, 1, 1), **DIMS)
vision("inception_next", "inception_next_atto", dims=(16, 24, 32, 48), **FOUR)

# ---- transformers: text ----------------------------------------------------------------------

KEYS = {"num_key_value_heads": 2}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
Config = Callable[[], hf.PretrainedConfig]


def text(name: str, make: Callable[[type, hf.PretrainedConfig], Net], kind: type,
         config: Config) -> None:  # fmt: skip
    """Enter a net of transformers for texts of twelve words."""

    def build() -> Net:
        return make(kind, config())

    build.__name__ = name
    architecture("transformers", tokens(12), ones(2, 12))(build)


text("qwen3", decoder, hf.Qwen3ForCausalLM,
     lambda: hf.Qwen3Config(**SMALL, **KEYS, head_dim=8, tie_word_embeddings=True))  # fmt: skip
text("gemma", decoder, hf.GemmaForCausalLM,
     lambda: hf.GemmaConfig(**SMALL, **KEYS, head_dim=8))  # fmt: skip
text("gemma3", decoder, hf.Gemma3ForCausalLM,
     lambda: hf.Gemma3TextConfig(**SMALL, **KEYS, head_dim=8, sliding_window=6,
                                 query_pre_attn_scalar=8))  # fmt: skip
text("phi3", decoder, hf.Phi3ForCausalLM, lambda: hf.Phi3Config(**SMALL, **KEYS, **ENDS))
text("olmo2", decoder, hf.Olmo2ForCausalLM, lambda: hf.Olmo2Config(**SMALL, **KEYS, **ENDS))
text("stablelm", decoder, hf.StableLmForCausalLM,
     lambda: hf.StableLmConfig(**SMALL, **KEYS, use_qkv_bias=True,
                               qk_layernorm=True))  # fmt: skip
text("gptj", decoder, hf.GPTJForCausalLM,
     lambda: hf.GPTJConfig(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4,
                           rotary_dim=4))  # fmt: skip
text("xglm", decoder, hf.XGLMForCausalLM,
     lambda: hf.XGLMConfig(vocab_size=64, d_model=32, ffn_dim=64, num_layers=2,
                           attention_heads=4, max_position_embeddings=32))  # fmt: skip
text("deberta_v1", classifier, hf.DebertaForSequenceClassification,
     lambda: hf.DebertaConfig(**SMALL, **STILL, relative_attention=True,
                              pos_att_type=["p2c", "c2p"], pooler_hidden_size=32))  # fmt: skip
text("convbert", classifier, hf.ConvBertForSequenceClassification,
     lambda: hf.ConvBertConfig(**SMALL, **STILL, embedding_size=16, head_ratio=2,
                               conv_kernel_size=3))  # fmt: skip
text("funnel", classifier, hf.FunnelForSequenceClassification,
     lambda: hf.FunnelConfig(vocab_size=64, block_sizes=[1, 1], num_decoder_layers=1, d_model=32,
                             n_head=4, d_head=8, d_inner=64, num_labels=5))  # fmt: skip
text("mobilebert", classifier, hf.MobileBertForSequenceClassification,
     lambda: hf.MobileBertConfig(**SMALL, **STILL, embedding_size=16, intra_bottleneck_size=16,
                                 num_feedforward_networks=2, true_hidden_size=16))  # fmt: skip
text("squeezebert", classifier, hf.SqueezeBertForSequenceClassification,
     lambda: hf.SqueezeBertConfig(**SMALL, **STILL, embedding_size=32))  # fmt: skip
text("layoutlm", classifier, hf.LayoutLMForSequenceClassification,
     lambda: hf.LayoutLMConfig(**SMALL, **STILL, max_2d_position_embeddings=32))  # fmt: skip
text("roformer", classifier, hf.RoFormerForSequenceClassification,
     lambda: hf.RoFormerConfig(**SMALL, **STILL, embedding_size=16))  # fmt: skip
text("xlnet", classifier, hf.XLNetForSequenceClassification,
     lambda: hf.XLNetConfig(vocab_size=64, d_model=32, n_layer=2, n_head=4, d_inner=64,
                            num_labels=5, use_mems_eval=False))  # fmt: skip
text("esm", classifier, hf.EsmForSequenceClassification,
     lambda: hf.EsmConfig(**SMALL, **STILL, position_embedding_type="rotary", pad_token_id=1,
                          emb_layer_norm_before=True))  # fmt: skip

text("lfm2", decoder, hf.Lfm2ForCausalLM,
     lambda: hf.Lfm2Config(**SMALL, **KEYS, **ENDS, conv_L_cache=3,
                           layer_types=["conv", "full_attention"]))  # fmt: skip


@architecture("transformers", tokens(12), rate=1e-3)
def rwkv() -> Net:
    config = hf.RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, context_length=32,
                           attention_hidden_size=32, intermediate_size=64)  # fmt: skip
    return decoder(hf.RwkvForCausalLM, config, "input_ids")


@architecture("transformers", tokens(16), ones(2, 16), rate=1e-3)
def canine() -> Net:
    """Words by hashing characters, and strides over these."""
    config = hf.CanineConfig(**{**SMALL, "max_position_embeddings": 64}, **STILL,
                             downsampling_rate=4, upsampling_kernel_size=4, num_hash_functions=4,
                             num_hash_buckets=32, local_transformer_stride=8)  # fmt: skip
    return classifier(hf.CanineForSequenceClassification, config)


@architecture("transformers", tokens(16), rate=1e-3)
def perceiver() -> Net:
    """Attention between a few latent rows and all words."""
    config = hf.PerceiverConfig(vocab_size=64, num_latents=8, d_latents=16, d_model=16,
                                num_blocks=1, num_self_attends_per_block=2, qk_channels=16,
                                num_self_attention_heads=2, num_cross_attention_heads=2,
                                max_position_embeddings=16, v_channels=16,
                                attention_probs_dropout_prob=0.0)  # fmt: skip
    return Called(hf.PerceiverForMaskedLM(config), "inputs", "logits")


# ---- transformers: sound and images ----------------------------------------------------------

PATCHES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "intermediate_size": 64, "image_size": 32, "patch_size": 8, "num_labels": 5}  # fmt: skip


@architecture("transformers", images(32, batch=2))
def dinov2() -> Net:
    config = hf.Dinov2Config(**PATCHES, use_swiglu_ffn=True)
    return Called(hf.Dinov2ForImageClassification(config), "pixel_values", "logits")


@architecture("transformers", images(32, batch=2))
def siglip() -> Net:
    config = hf.SiglipConfig(vision_config=dict(PATCHES), num_labels=5)
    return Called(hf.SiglipForImageClassification(config), "pixel_values", "logits")


@architecture("transformers", images(16, batch=2), loss="mse")
def swin2sr() -> Net:
    config = hf.Swin2SRConfig(image_size=16, embed_dim=16, depths=[1, 1], num_heads=[2, 2],
                              window_size=4, upscale=2)  # fmt: skip
    net = hf.Swin2SRForImageSuperResolution(config)
    return Called(net, "pixel_values", "reconstruction")


@architecture("transformers", reals(2, 400), tokens(8))
def speecht5() -> Net:
    config = hf.SpeechT5Config(vocab_size=64, hidden_size=32, encoder_layers=1, decoder_layers=1,
                               encoder_attention_heads=4, decoder_attention_heads=4,
                               encoder_ffn_dim=64, decoder_ffn_dim=64, conv_dim=(16, 16),
                               conv_stride=(5, 4), conv_kernel=(10, 4), num_conv_pos_embeddings=4,
                               num_conv_pos_embedding_groups=2, max_text_positions=32,
                               max_speech_positions=128)  # fmt: skip
    net = hf.SpeechT5ForSpeechToText(config)
    return Called(net, "input_values decoder_input_ids", "logits", use_cache=False)
