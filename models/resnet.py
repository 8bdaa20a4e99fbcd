"""Residual networks: He et al., "Deep Residual Learning for Image Recognition", 2015.

ResNet-50 puts the stride on the 3x3 convolution of a bottleneck ("v1.5"), as torchvision does.
"""

from models.builder import GraphBuilder, Value
from models.spec import architecture

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
BOTTLENECK_EXPANSION = 4


def _shortcut(g: GraphBuilder, x: Value, channels: int, stride: int) -> Value:
    """The identity, or a 1x1 projection where the shape changes."""
    if x.shape[1] == channels and stride == 1:
        return x
    with g.scope("downsample"):
        y = g.conv(x, channels, 1, stride=stride, name="0")
        return g.batch_norm(y, name="1")


def _basic_block(g: GraphBuilder, x: Value, width: int, stride: int, gain: float) -> Value:
    """[N, C, H, W] to [N, width, H/stride, W/stride] through two 3x3 convolutions."""
    y = g.relu(g.batch_norm(g.conv(x, width, 3, stride=stride, name="conv1"), name="bn1"))
    y = g.batch_norm(g.conv(y, width, 3, name="conv2"), name="bn2", gain=gain)
    return g.relu(g.op("Add", y, _shortcut(g, x, width, stride)))


def _bottleneck(g: GraphBuilder, x: Value, width: int, stride: int, gain: float) -> Value:
    """[N, C, H, W] to [N, 4*width, H/stride, W/stride] through 1x1, 3x3, 1x1 convolutions."""
    channels = BOTTLENECK_EXPANSION * width
    y = g.relu(g.batch_norm(g.conv(x, width, 1, name="conv1"), name="bn1"))
    y = g.relu(g.batch_norm(g.conv(y, width, 3, stride=stride, name="conv2"), name="bn2"))
    y = g.batch_norm(g.conv(y, channels, 1, name="conv3"), name="bn3", gain=gain)
    return g.relu(g.op("Add", y, _shortcut(g, x, channels, stride)))


def resnet(g: GraphBuilder, *, depth: int, size: int, width: int, classes: int) -> None:
    """[N, 3, size, size] to ``logits`` [N, classes]; ``width`` is the stem's channels (64)."""
    block = _bottleneck if depth >= 50 else _basic_block
    # Scaling every branch's end keeps the variance of the residual sums from doubling per block.
    gain = sum(BLOCKS[depth]) ** -0.5
    x = g.conv(g.image_input(size), width, 7, stride=2, name="conv1")
    x = g.relu(g.batch_norm(x, name="bn1"))
    x = g.max_pool(x, 3, stride=2, padding=1)
    for stage, count in enumerate(BLOCKS[depth]):
        for index in range(count):
            with g.scope(f"layer{stage + 1}", index):
                stride = 2 if stage > 0 and index == 0 else 1
                x = block(g, x, width * 2**stage, stride, gain)
    x = g.flatten(g.global_average_pool(x))
    g.output(g.linear(x, classes, name="fc"), "logits")


def small_resnet(
    g: GraphBuilder, *, size: int, channels: int, width: int, blocks: int, classes: int
) -> None:
    """[N, channels, size, size] to ``logits`` [N, classes]: the paper's network for small images
    (section 4.2), three stages of ``blocks`` basic blocks, 6 blocks + 2 layers in all."""
    gain = (3 * blocks) ** -0.5
    x = g.conv(g.image_input(size, channels), width, 3, name="conv1")
    x = g.relu(g.batch_norm(x, name="bn1"))
    for stage in range(3):
        for index in range(blocks):
            with g.scope(f"layer{stage + 1}", index):
                stride = 2 if stage > 0 and index == 0 else 1
                x = _basic_block(g, x, width * 2**stage, stride, gain)
    x = g.flatten(g.global_average_pool(x))
    g.output(g.linear(x, classes, name="fc"), "logits")


SPECS = (
    *(
        architecture(
            f"resnet{depth}",
            f"ResNet-{depth}",
            resnet,
            fixed={"depth": depth},
            batch=batch,
            size=128,
            width=width,
            classes=1000,
        )
        for depth, batch, width in ((18, 8, 64), (34, 8, 48), (50, 8, 48))
    ),
    architecture(
        "resnet20",
        "ResNet-20 for small images",
        small_resnet,
        batch=64,
        size=32,
        channels=3,
        width=16,
        blocks=3,
        classes=10,
    ),
)
