"""The zoo: architectures of torchvision, timm and transformers at toy size, and own ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers as hf

from tests.zoo import experts, later, others, own  # noqa: F401  (they enter their nets)
from tests.zoo.libraries import torchvision
from tests.zoo.registry import (
    ARCHITECTURES,
    Architecture,
    Called,
    architecture,
    images,
    ones,
    reals,
    tokens,
)
from tests.zoo.small import SMALL, STILL, classifier, decoder, timm_net

__all__ = ["ARCHITECTURES", "Architecture"]

tv = torchvision.models
Net = torch.nn.Module

# ---- torchvision -----------------------------------------------------------------------------


@architecture("torchvision", images(32), sample=True)
def resnet18() -> Net:
    net = tv.resnet.ResNet(tv.resnet.BasicBlock, [2, 1, 1, 1], num_classes=10)
    return _without(net, "layer3", "layer4", fc=torch.nn.Linear(128, 10))


def _without(net: Net, *parts: str, **other: Net) -> Net:
    """A net without its widest parts, and with a head that fits."""
    for name in parts:
        setattr(net, name, torch.nn.Identity())
    for name, part in other.items():
        setattr(net, name, part)
    return net


@architecture("torchvision", images(32), rate=1e-3)
def mobilenet_v3() -> Net:
    from torchvision.models.mobilenetv3 import InvertedResidualConfig as Block

    blocks = [
        Block(16, 3, 16, 16, True, "RE", 2, 1, 1.0), Block(16, 3, 48, 24, False, "RE", 2, 1, 1.0),
        Block(24, 5, 64, 24, True, "HS", 1, 1, 1.0), Block(24, 5, 72, 32, True, "HS", 2, 1, 1.0),
    ]  # fmt: skip
    return tv.MobileNetV3(blocks, 64, num_classes=10, dropout=0.0)


@architecture("torchvision", images(32), rate=1e-3, sample=True)
def efficientnet_b0() -> Net:
    from torchvision.models.efficientnet import MBConvConfig as Block

    blocks = [
        Block(1, 3, 1, 16, 16, 1), Block(4, 3, 2, 16, 24, 2), Block(4, 5, 2, 24, 32, 2),
    ]  # fmt: skip
    return tv.EfficientNet(blocks, 0.0, stochastic_depth_prob=0.0, num_classes=10, last_channel=64)


@architecture("torchvision", images(32))
def convnext() -> Net:
    from torchvision.models.convnext import CNBlockConfig as Block

    return tv.ConvNeXt([Block(16, 32, 2), Block(32, None, 2)], num_classes=10)


@architecture("torchvision", images(32))
def densenet() -> Net:
    return tv.DenseNet(8, (2, 3, 2), 16, num_classes=10)


@architecture("torchvision", images(64), rate=1e-3)
def shufflenet() -> Net:
    return tv.ShuffleNetV2([2, 2, 2], [16, 16, 32, 64, 64], num_classes=10)


@architecture("torchvision", images(48))
def squeezenet() -> Net:
    return tv.SqueezeNet("1_1", num_classes=10, dropout=0.0)


@architecture("torchvision", images(32), rate=1e-3)
def googlenet() -> Net:
    net = tv.GoogLeNet(
        num_classes=10, aux_logits=False, init_weights=False, dropout=0.0, dropout_aux=0.0
    )
    parts = [f"inception{n}" for n in ("3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b")]
    return _without(net, *parts, fc=torch.nn.Linear(256, 10))


@architecture("torchvision", images(80, batch=2), rate=1e-5)
def inception_v3() -> Net:
    net = tv.Inception3(num_classes=10, aux_logits=False, init_weights=False, dropout=0.0)
    return torch.nn.Sequential(*list(net.children())[:9], net.avgpool, torch.nn.Flatten(),
                               torch.nn.Linear(288, 10))  # fmt: skip


@architecture("torchvision", images(32))
def regnet() -> Net:
    from torchvision.models.regnet import BlockParams

    blocks = BlockParams.from_init_params(
        depth=4, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25
    )
    return tv.RegNet(blocks, num_classes=10, stem_width=16)


# Small maps, few images or a higher rate make steps that PyTorch itself takes otherwise in float64.
@architecture("torchvision", images(64, batch=8), rate=1e-7)
def mnasnet() -> Net:
    return tv.MNASNet(0.35, num_classes=10, dropout=0.0)


@architecture("torchvision", images(32), rate=1e-3)
def vgg_bn() -> Net:
    layers = tv.vgg.make_layers([8, "M", 16, "M", 32, 32, "M"], batch_norm=True)
    net = tv.VGG(layers, num_classes=10, dropout=0.0)
    net.avgpool = torch.nn.AdaptiveAvgPool2d(2)
    net.classifier[0], net.classifier[3] = torch.nn.Linear(128, 64), torch.nn.Linear(64, 64)
    net.classifier[6] = torch.nn.Linear(64, 10)
    return net


@architecture("torchvision", images(32))
def vit() -> Net:
    return tv.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10)


@architecture("torchvision", images(32), sample=True)
def swin() -> Net:
    return tv.SwinTransformer([2, 2], 16, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0,
                              num_classes=10)  # fmt: skip


@architecture("torchvision", images(32, batch=2), rate=1e-3)
def maxvit() -> Net:
    return tv.MaxVit((32, 32), 16, 4, [16, 32], [1, 1], 8, stochastic_depth_prob=0.0,
                     num_classes=10)  # fmt: skip


@architecture("torchvision", images(32), rate=1e-3)
def fcn() -> Net:
    net = tv.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=5)
    return _segmentation(net, tv.segmentation.fcn.FCNHead)


@architecture("torchvision", images(32), rate=1e-3)
def deeplab_v3() -> Net:
    net = tv.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=5)
    return _segmentation(net, _deeplab_head)


def _deeplab_head(wide: int, classes: int) -> Net:
    pyramid = tv.segmentation.deeplabv3.ASPP(wide, (2, 3), 32)
    return torch.nn.Sequential(pyramid, torch.nn.BatchNorm2d(32), torch.nn.Conv2d(32, classes, 1))


def _segmentation(net: Net, head: Callable[[int, int], Net]) -> Net:
    """The segmentation model on a small backbone."""
    small = tv.resnet.ResNet(tv.resnet.BasicBlock, [1, 1, 1, 1], num_classes=5)
    net.backbone = tv._utils.IntermediateLayerGetter(small, {"layer2": "out"})
    net.classifier = head(128, 5)
    for each in net.modules():
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0
    return Called(net, "x", "out")


# ---- timm ------------------------------------------------------------------------------------


@architecture("timm", images(32), sample=True)
def deit_distilled() -> Net:
    return timm_net("deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, depth=2,
                 embed_dim=32, num_heads=4)  # fmt: skip


@architecture("timm", images(32))
def cait() -> Net:
    return timm_net("cait_xs24_384", img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4)


@architecture("timm", images(32))
def xcit() -> Net:
    return timm_net("xcit_nano_12_p8_224", img_size=32, patch_size=8, depth=2, embed_dim=32,
                 num_heads=4)  # fmt: skip


@architecture("timm", images(32))
def beit() -> Net:
    return timm_net("beit_base_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=32,
                 num_heads=4)  # fmt: skip


@architecture("timm", images(32))
def swin_v2() -> Net:
    return timm_net("swinv2_tiny_window8_256", img_size=32, patch_size=2, window_size=4,
                 embed_dim=16, depths=(2, 1), num_heads=(2, 4))  # fmt: skip


@architecture("timm", images(64), rate=1e-3)
def levit() -> Net:
    return timm_net("levit_128s", img_size=64, embed_dim=(32, 48, 64), key_dim=8,
                 num_heads=(2, 3, 4), depth=(1, 1, 1))  # fmt: skip


@architecture("timm", images(32))
def poolformer() -> Net:
    from timm.models.metaformer import GroupNorm1, MetaFormer, Pooling

    return MetaFormer(num_classes=10, depths=(1, 1, 1, 1), dims=(16, 16, 32, 32),
                      token_mixers=Pooling, downsample_norm=None, norm_layers=GroupNorm1,
                      res_scale_init_values=None, layer_scale_init_values=1e-5,
                      use_mlp_head=False)  # fmt: skip


@architecture("timm", images(64, batch=2), rate=1e-3)
def coatnet() -> Net:
    return timm_net("coatnet_rmlp_nano_rw_224", img_size=64, embed_dim=(16, 32, 64, 64),
                 depths=(1, 1, 1, 1), stem_width=(8, 16))  # fmt: skip


@architecture("timm", images(32))
def mixer() -> Net:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(10, 32, patch_size=8, num_blocks=2, embed_dim=32)


@architecture("timm", images(32))
def resmlp() -> Net:
    from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

    return MlpMixer(10, 32, patch_size=8, num_blocks=2, embed_dim=32, block_layer=ResBlock,
                    norm_layer=Affine, mlp_ratio=4)  # fmt: skip


@architecture("timm", images(32), rate=1e-3)
def convmixer() -> Net:
    from timm.models.convmixer import ConvMixer

    return ConvMixer(24, 2, kernel_size=5, patch_size=4, num_classes=10)


@architecture("timm", images(32, batch=2))
def nfnet() -> Net:
    from timm.models.nfnet import NfCfg, NormFreeNet

    cfg = NfCfg(depths=(1, 1, 1, 1), channels=(16, 24, 32, 32), stem_type="3x3", stem_chs=16,
                group_size=8, attn_layer="se", attn_kwargs={"rd_ratio": 0.5}, num_features=48,
                bottle_ratio=0.5)  # fmt: skip
    return NormFreeNet(cfg, num_classes=10)


@architecture("timm", images(32, batch=2))
def volo() -> Net:
    from timm.models.volo import VOLO

    return VOLO([1, 1, 1, 1], img_size=32, num_classes=10, patch_size=8, stem_hidden_dim=8,
                embed_dims=[16, 32, 32, 32], num_heads=[2, 4, 4, 4])  # fmt: skip


@architecture("timm", images(64, batch=2), rate=1e-3)
def mobilevit() -> Net:
    return timm_net("mobilevit_xxs")


@architecture("timm", images(64, batch=2))
def edgenext() -> Net:
    return timm_net("edgenext_xx_small", dims=(16, 16, 32, 32), depths=(1, 1, 1, 1),
                 heads=(2, 2, 2, 2))  # fmt: skip


@architecture("timm", images(32), rate=1e-3)
def repvgg() -> Net:
    from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg

    blocks = tuple(ByoBlockCfg(type="rep", d=2, c=c, s=2, gs=0) for c in (16, 32))
    return ByobNet(ByoModelCfg(blocks=blocks, stem_type="rep", stem_chs=16), num_classes=10)


@architecture("timm", images(64, batch=2), rate=1e-3)
def hrnet() -> Net:
    from timm.models.hrnet import HighResolutionNet

    def stage(branches: int, block: str, channels: tuple[int, ...]) -> dict[str, object]:
        return {"num_modules": 1, "num_branches": branches, "block_type": block,
                "num_blocks": (1,) * branches, "num_channels": channels,
                "fuse_method": "SUM"}  # fmt: skip

    cfg = {
        "stem_width": 16,
        "stage1": stage(1, "BOTTLENECK", (8,)),
        "stage2": stage(2, "BASIC", (8, 16)),
        "stage3": stage(3, "BASIC", (8, 16, 24)),
        "stage4": stage(4, "BASIC", (8, 16, 24, 32)),
    }
    net = HighResolutionNet(cfg, num_classes=10)
    return _Branches(
        _without(net, "incre_modules", "downsamp_modules", "final_layer", "classifier")
    )


class _Branches(torch.nn.Module):
    """HRNet with a small head: its own is far wider than its smallest branches."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net, self.head = net, torch.nn.Linear(8 + 16 + 24 + 32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.net
        x = n.act2(n.bn2(n.conv2(n.act1(n.bn1(n.conv1(x))))))
        return self.head(torch.cat([y.mean((2, 3)) for y in n.stages(x)], 1))


@architecture("timm", images(32))
def eva() -> Net:
    return timm_net("eva02_tiny_patch14_224", img_size=32, patch_size=8, depth=2, embed_dim=32,
                 num_heads=4)  # fmt: skip


# ---- transformers: text ----------------------------------------------------------------------


@architecture("transformers", tokens(12), ones(2, 12), sample=True)
def bert() -> Net:
    return classifier(hf.BertForSequenceClassification, hf.BertConfig(**SMALL, **STILL))


@architecture("transformers", tokens(12), ones(2, 12))
def roberta() -> Net:
    return classifier(hf.RobertaForSequenceClassification, hf.RobertaConfig(**SMALL, **STILL))


@architecture("transformers", tokens(12), ones(2, 12))
def distilbert() -> Net:
    config = hf.DistilBertConfig(vocab_size=64, dim=32, n_layers=2, n_heads=4, hidden_dim=64,
                                 max_position_embeddings=32, dropout=0.0, attention_dropout=0.0,
                                 seq_classif_dropout=0.0, num_labels=5)  # fmt: skip
    return classifier(hf.DistilBertForSequenceClassification, config)


@architecture("transformers", tokens(12), ones(2, 12))
def electra() -> Net:
    config = hf.ElectraConfig(**SMALL, **STILL, embedding_size=16)
    return classifier(hf.ElectraForSequenceClassification, config)


@architecture("transformers", tokens(12), ones(2, 12))
def albert() -> Net:
    config = hf.AlbertConfig(**SMALL, **STILL, embedding_size=16, classifier_dropout_prob=0.0)
    return classifier(hf.AlbertForSequenceClassification, config)


@architecture("transformers", tokens(12), ones(2, 12))
def mpnet() -> Net:
    return classifier(hf.MPNetForSequenceClassification, hf.MPNetConfig(**SMALL, **STILL))


@architecture("transformers", tokens(12), ones(2, 12))
def deberta() -> Net:
    config = hf.DebertaV2Config(**SMALL, **STILL, relative_attention=True, pos_att_type="p2c|c2p",
                                position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True,
                                pooler_hidden_size=32, pooler_dropout=0.0)  # fmt: skip
    return classifier(hf.DebertaV2ForSequenceClassification, config)


@architecture("transformers", tokens(16))
def fnet() -> Net:
    config = hf.FNetConfig(**{**SMALL, "num_attention_heads": 4}, hidden_dropout_prob=0.0,
                           num_labels=5)  # fmt: skip
    return Called(hf.FNetForSequenceClassification(config), "input_ids", "logits")


@architecture("transformers", tokens(12), ones(2, 12), sample=True)
def gpt2() -> Net:
    config = hf.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4,
                           resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    return decoder(hf.GPT2LMHeadModel, config)


@architecture("transformers", tokens(12), ones(2, 12))
def opt() -> Net:
    config = hf.OPTConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, ffn_dim=64,
                          max_position_embeddings=32, num_attention_heads=4, dropout=0.0,
                          word_embed_proj_dim=32)  # fmt: skip
    return decoder(hf.OPTForCausalLM, config)


@architecture("transformers", tokens(12), ones(2, 12))
def bloom() -> Net:
    config = hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    return decoder(hf.BloomForCausalLM, config)


@architecture("transformers", tokens(12), ones(2, 12))
def gpt_neox() -> Net:
    return decoder(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**SMALL))


@architecture("transformers", tokens(12), ones(2, 12), sample=True)
def llama() -> Net:
    return decoder(hf.LlamaForCausalLM, hf.LlamaConfig(**SMALL, num_key_value_heads=2))


@architecture("transformers", tokens(12), ones(2, 12))
def mistral() -> Net:
    config = hf.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=6)
    return decoder(hf.MistralForCausalLM, config)


@architecture("transformers", tokens(12), ones(2, 12))
def qwen2() -> Net:
    config = hf.Qwen2Config(**SMALL, num_key_value_heads=2, tie_word_embeddings=True)
    return decoder(hf.Qwen2ForCausalLM, config)


@architecture("transformers", tokens(12), ones(2, 12))
def phi() -> Net:
    return decoder(hf.PhiForCausalLM, hf.PhiConfig(**SMALL))


@architecture("transformers", tokens(12))
def mamba() -> Net:
    config = hf.MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2)
    return decoder(hf.MambaForCausalLM, config, "input_ids")


@architecture("transformers", tokens(10), tokens(8))
def t5() -> Net:
    config = hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                         dropout_rate=0.0)  # fmt: skip
    net = hf.T5ForConditionalGeneration(config)
    return Called(net, "input_ids decoder_input_ids", "logits", use_cache=False)


@architecture("transformers", tokens(10), tokens(8))
def bart() -> Net:
    config = hf.BartConfig(vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2,
                           encoder_ffn_dim=64, decoder_ffn_dim=64, encoder_attention_heads=4,
                           decoder_attention_heads=4, max_position_embeddings=32,
                           dropout=0.0)  # fmt: skip
    net = hf.BartForConditionalGeneration(config)
    return Called(net, "input_ids decoder_input_ids", "logits", use_cache=False)


# ---- transformers: sound and images ----------------------------------------------------------


@architecture("transformers", reals(2, 16, 24), tokens(8))
def whisper() -> Net:
    config = hf.WhisperConfig(vocab_size=64, d_model=32, num_mel_bins=16, encoder_layers=1,
                              decoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=64,
                              decoder_attention_heads=4, decoder_ffn_dim=64,
                              max_source_positions=12, max_target_positions=16, dropout=0.0,
                              pad_token_id=0, bos_token_id=1, eos_token_id=2,
                              decoder_start_token_id=1)  # fmt: skip
    net = hf.WhisperForConditionalGeneration(config)
    return Called(net, "input_features decoder_input_ids", "logits", use_cache=False)


@architecture("transformers", reals(2, 400))
def wav2vec2() -> Net:
    config = hf.Wav2Vec2Config(vocab_size=16, hidden_size=32, num_hidden_layers=2,
                               num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16),
                               conv_stride=(5, 4), conv_kernel=(10, 4), num_conv_pos_embeddings=4,
                               num_conv_pos_embedding_groups=2, hidden_dropout=0.0,
                               attention_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0,
                               final_dropout=0.0, activation_dropout=0.0)  # fmt: skip
    return Called(hf.Wav2Vec2ForCTC(config), "input_values", "logits")


@architecture("transformers", images(32, batch=2), reals(2, 16), loss="mse")
def vitmae() -> Net:
    config = hf.ViTMAEConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                             intermediate_size=64, image_size=32, patch_size=8,
                             decoder_num_attention_heads=4, decoder_hidden_size=32,
                             decoder_num_hidden_layers=1, decoder_intermediate_size=64,
                             hidden_dropout_prob=0.0, mask_ratio=0.5)  # fmt: skip
    net = hf.ViTMAEForPreTraining(config)
    # Frozen tables of sines and cosines, which pretrained weights have and a fresh net has not.
    net.vit.embeddings.patch_embeddings.projection._is_hf_initialized = False
    net.vit.embeddings.initialize_weights()
    net.decoder.initialize_weights(net.vit.embeddings.patch_embeddings.num_patches)
    return Called(net, "pixel_values noise", "logits")


@architecture("transformers", images(64, batch=2))
def segformer() -> Net:
    config = hf.SegformerConfig(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 2],
                                hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2],
                                num_attention_heads=[1, 2], mlp_ratios=[2, 2],
                                decoder_hidden_size=32, hidden_dropout_prob=0.0,
                                classifier_dropout_prob=0.0, drop_path_rate=0.0,
                                num_labels=5)  # fmt: skip
    return Called(hf.SegformerForSemanticSegmentation(config), "pixel_values", "logits")
