"""From a PyTorch module to a model that can be trained, and back.

module -> exporter of PyTorch (pytorch.py) -> names restored, facts written (restore.py) -> model
model + module -> parameters and gradients compared (check.py)
trainer + module -> trained values under their names in the state dict (weights.py)

PyTorch is imported on first use; it is the ``torch`` extra.
"""
