"""From a PyTorch module to an ONNX file that can be trained.

module -> exporter of PyTorch (pytorch.py) -> names restored, facts written (restore.py) -> file
file + module -> parameters and gradients compared (check.py)

PyTorch is imported on first use; it is the ``torch`` extra.
"""
