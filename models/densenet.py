"""DenseNet-121: Huang et al., "Densely Connected Convolutional Networks", 2016 (DenseNet-BC)."""

from models.builder import GraphBuilder, Value
from models.spec import architecture

BLOCKS = (6, 12, 24, 16)
BOTTLENECK = 4  # channels of a layer's 1x1 convolution, in growth rates


def _dense_layer(g: GraphBuilder, x: Value, growth: int) -> Value:
    """All features so far [N, C, H, W] to the ``growth`` new ones [N, growth, H, W]."""
    y = g.relu(g.batch_norm(x, name="norm1"), "relu1")
    y = g.conv(y, BOTTLENECK * growth, 1, name="conv1")
    y = g.relu(g.batch_norm(y, name="norm2"), "relu2")
    return g.conv(y, growth, 3, name="conv2")


def _dense_block(g: GraphBuilder, x: Value, layers: int, growth: int) -> Value:
    """[N, C, H, W] to [N, C + layers * growth, H, W]; each layer concatenates afresh."""
    features = [x]
    for index in range(layers):
        with g.scope(f"denselayer{index + 1}"):
            joined = g.concat(features, axis=1) if index else x
            features.append(_dense_layer(g, joined, growth))
    return g.concat(features, axis=1)


def densenet(g: GraphBuilder, *, size: int, growth: int, classes: int) -> None:
    """[N, 3, size, size] to ``logits`` [N, classes]; the stem has 2 * ``growth`` channels."""
    x = g.image_input(size)
    with g.scope("features"):
        x = g.conv(x, 2 * growth, 7, stride=2, name="conv0")
        x = g.relu(g.batch_norm(x, name="norm0"), "relu0")
        x = g.max_pool(x, 3, stride=2, padding=1, name="pool0")
        for block, layers in enumerate(BLOCKS):
            with g.scope(f"denseblock{block + 1}"):
                x = _dense_block(g, x, layers, growth)
            if block + 1 < len(BLOCKS):
                with g.scope(f"transition{block + 1}"):
                    x = g.relu(g.batch_norm(x, name="norm"))
                    x = g.conv(x, x.shape[1] // 2, 1, name="conv")
                    x = g.average_pool(x, 2, stride=2, name="pool")
        x = g.batch_norm(x, name="norm5")
    x = g.flatten(g.global_average_pool(g.relu(x)))
    g.output(g.linear(x, classes, name="classifier"), "logits")


SPECS = (
    architecture(
        "densenet121", "DenseNet-121", densenet, batch=8, size=96, growth=32, classes=1000
    ),
)
