"""MobileNetV2: Sandler et al., "Inverted Residuals and Linear Bottlenecks", 2018."""

from models.builder import GraphBuilder, Value
from models.spec import architecture

# expansion, output channels, blocks, stride of the first block
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
BRANCH_GAIN = 0.7


def scaled(channels: int, width: float) -> int:
    """The paper's channel count: a multiple of 8 that is at least 90% of channels * width."""
    exact = channels * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded


def _conv_bn_relu6(
    g: GraphBuilder,
    x: Value,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    gain: float = 2.0,
) -> Value:
    """Convolution 0, batch norm 1 and Clip(0, 6) 2 of the present scope."""
    y = g.conv(x, channels, kernel, stride=stride, groups=groups, gain=gain, name="0")
    y = g.batch_norm(y, name="1")
    with g.scope("2"):
        return g.op("Clip", y, g.scalar(0.0, "min"), g.scalar(6.0, "max"), shape=y.shape)


def _inverted_residual(
    g: GraphBuilder, x: Value, channels: int, stride: int, expansion: int
) -> Value:
    """[N, C, H, W] to [N, channels, H/stride, W/stride]: expand, depthwise, linear project."""
    hidden = x.shape[1] * expansion
    residual = stride == 1 and x.shape[1] == channels
    y, layer = x, 0
    with g.scope("conv"):
        if expansion != 1:
            with g.scope(layer):
                y = _conv_bn_relu6(g, y, hidden, 1, gain=1.0)
            layer += 1
        with g.scope(layer):
            y = _conv_bn_relu6(g, y, hidden, 3, stride=stride, groups=hidden)
        y = g.conv(y, channels, 1, name=str(layer + 1))
        y = g.batch_norm(y, name=str(layer + 2), gain=BRANCH_GAIN if residual else 1.0)
    return g.op("Add", x, y) if residual else y


def mobilenetv2(g: GraphBuilder, *, size: int, width: float, classes: int) -> None:
    """[N, 3, size, size] to ``logits`` [N, classes]; ``width`` is the paper's multiplier."""
    x, layer = g.image_input(size), 0
    with g.scope("features"):
        with g.scope(layer):
            x = _conv_bn_relu6(g, x, scaled(32, width), 3, stride=2)
        for expansion, channels, count, first_stride in STAGES:
            for index in range(count):
                layer += 1
                with g.scope(layer):
                    stride = first_stride if index == 0 else 1
                    x = _inverted_residual(g, x, scaled(channels, width), stride, expansion)
        with g.scope(layer + 1):
            x = _conv_bn_relu6(g, x, scaled(1280, max(1.0, width)), 1, gain=1.0)
    x = g.flatten(g.global_average_pool(x))
    with g.scope("classifier"):
        g.output(g.linear(x, classes, name="1"), "logits")


SPECS = (
    architecture(
        "mobilenetv2", "MobileNetV2", mobilenetv2, batch=8, size=128, width=1.0, classes=1000
    ),
)
