"""How does a training step train? State in place, data, rates, checkpoints, evaluation."""
