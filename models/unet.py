"""U-Net: Ronneberger et al., "Convolutional Networks for Biomedical Image Segmentation", 2015.

Convolutions are padded and batch-normalized, so that the mask has the size of the image and
the skips need no cropping.
"""

from models.builder import GraphBuilder, Value
from models.spec import architecture


def _double_conv(g: GraphBuilder, x: Value, channels: int) -> Value:
    """[N, C, H, W] to [N, channels, H, W]."""
    for index in (1, 2):
        x = g.conv(x, channels, 3, name=f"conv{index}")
        x = g.relu(g.batch_norm(x, name=f"norm{index}"), f"relu{index}")
    return x


def unet(
    g: GraphBuilder, *, size: int, width: int, levels: int, channels: int, classes: int
) -> None:
    """[N, channels, size, size] to ``mask`` [N, classes, size, size]; the paper's width 64."""
    if size % 2**levels:
        raise ValueError(f"size {size} is not a multiple of {2**levels}, as {levels} levels need")
    x = g.image_input(size, channels)
    skips: list[Value] = []
    for level in range(levels):
        with g.scope(f"encoder{level + 1}"):
            skips.append(_double_conv(g, x, width * 2**level))
        x = g.max_pool(skips[-1], 2, stride=2, name=f"pool{level + 1}")
    with g.scope("bottleneck"):
        x = _double_conv(g, x, width * 2**levels)
    for level in reversed(range(levels)):
        x = g.conv_transpose(x, width * 2**level, 2, name=f"upconv{level + 1}")
        with g.scope(f"decoder{level + 1}"):
            x = _double_conv(g, g.concat([x, skips[level]], axis=1), width * 2**level)
    g.output(g.conv(x, classes, 1, bias=True, name="conv"), "mask")


SPECS = (
    architecture(
        "unet", "U-Net", unet, batch=2, size=128, width=32, levels=4, channels=3, classes=2
    ),
)
