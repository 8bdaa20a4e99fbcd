"""ConvNeXt: Liu et al., "A ConvNet for the 2020s", 2022."""

from models.builder import GraphBuilder, Value, normal
from models.spec import architecture

EPSILON = 1e-6
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def _norm_channels(g: GraphBuilder, x: Value, name: str) -> Value:
    """LayerNorm over the channels of [N, C, H, W], between two transposes."""
    with g.scope(name):
        y = g.transpose(x, TO_LAST)
    y = g.layer_norm(y, name=name, epsilon=EPSILON)
    with g.scope(name):
        return g.transpose(y, TO_FIRST)


def _block(g: GraphBuilder, x: Value, gelu: str) -> Value:
    """Depthwise 7x7 and an inverted bottleneck, [N, C, H, W] to the same."""
    channels = x.shape[1]
    y = g.conv(x, channels, 7, groups=channels, bias=True, name="dwconv")
    y = g.transpose(y, TO_LAST)
    y = g.layer_norm(y, name="norm", epsilon=EPSILON)
    y = g.linear(y, 4 * channels, name="pwconv1")
    with g.scope("act"):
        y = g.gelu(y, gelu)
    y = g.linear(y, channels, name="pwconv2")
    # trained scales are small but not the paper's initial 1e-6, which would hide the branch
    y = g.op("Mul", g.weight("gamma", (channels,), normal(0.05, 0.5)), y)
    return g.op("Add", x, g.transpose(y, TO_FIRST))


def convnext(g: GraphBuilder, *, size: int, width: int, deep: int, classes: int, gelu: str) -> None:
    """[N, 3, size, size] to ``logits`` [N, classes].

    ``width`` is the first stage's channels (96 for Tiny), ``deep`` the third stage's blocks (9
    for Tiny, 27 for Small).
    """
    x = g.image_input(size)
    for stage, blocks in enumerate((3, 3, deep, 3)):
        with g.scope("downsample_layers", stage):
            if stage == 0:
                x = g.conv(x, width, 4, stride=4, padding=0, bias=True, name="0")
                x = _norm_channels(g, x, "1")
            else:
                x = _norm_channels(g, x, "0")
                channels = width * 2**stage
                x = g.conv(x, channels, 2, stride=2, padding=0, bias=True, name="1")
        for index in range(blocks):
            with g.scope("stages", stage, index):
                x = _block(g, x, gelu)
    x = g.flatten(g.global_average_pool(x))
    x = g.layer_norm(x, name="norm", epsilon=EPSILON)
    g.output(g.linear(x, classes, name="head"), "logits")


SPECS = (
    architecture(
        "convnext",
        "ConvNeXt",
        convnext,
        batch=8,
        size=128,
        width=48,
        deep=9,
        classes=1000,
        gelu="erf",
    ),
)
