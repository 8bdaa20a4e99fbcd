"""Plain multilayer perceptron: Linear and ReLU in turn."""

from models.builder import GraphBuilder
from models.spec import architecture


def mlp(g: GraphBuilder, *, features: int, width: int, layers: int, classes: int) -> None:
    """``input`` [N, features] through ``layers`` hidden layers to ``logits`` [N, classes]."""
    x = g.float_input("input", (g.batch, features))
    with g.scope("layers"):
        for layer in range(layers):
            x = g.linear(x, width, gain=2.0, name=str(2 * layer))
            x = g.relu(x, str(2 * layer + 1))
    g.output(g.linear(x, classes, name="head"), "logits")


SPECS = (
    architecture(
        "mlp",
        "Multilayer perceptron",
        mlp,
        batch=4096,
        features=256,
        width=512,
        layers=8,
        classes=10,
    ),
)
