"""torchvision and timm, imported also where torchvision's compiled operators do not load.

They do not where PyTorch is a build for the CPU and torchvision one for CUDA. The zoo needs none
of them, only their declarations.
"""

from __future__ import annotations

import warnings

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import torchvision
    except RuntimeError:
        declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    import timm

__all__ = ["timm", "torchvision"]
