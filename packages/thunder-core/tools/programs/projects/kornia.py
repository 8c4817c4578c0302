# SPDX-License-Identifier: Apache-2.0
"""Kornia: the README's example, and functions and modules of each part of the documentation."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from programs.program import Project

PROJECT = Project("kornia", rank=2451, requires=["kornia==0.9.*"])


def _image(channels: int = 3) -> torch.Tensor:
    return torch.rand(1, channels, 16, 20, requires_grad=True)


def _images(*channels: int) -> Any:
    return lambda: tuple(_image(each) for each in channels or (3,))


def _function(name: str, inputs: Any, **options: Any) -> None:
    def build() -> Any:
        module, _, function = name.rpartition(".")
        found = getattr(importlib.import_module(f"kornia.{module}"), function)
        return (lambda *args: found(*args, **options)), inputs

    PROJECT.add(name, f"documentation, kornia.{name}", build)


def _module(name: str, inputs: Any, *args: Any, **options: Any) -> None:
    def build() -> Any:
        module, _, cls = name.rpartition(".")
        return getattr(importlib.import_module(f"kornia.{module}"), cls)(*args, **options), inputs

    PROJECT.add(name, f"documentation, kornia.{name}", build)


@PROJECT.program("augmentation pipeline", "README, quick start")
def _pipeline() -> Any:
    import kornia

    aug = kornia.augmentation.AugmentationSequential(
        kornia.augmentation.RandomHorizontalFlip(p=0.5),
        kornia.augmentation.ColorJiggle(0.2, 0.2, 0.2, 0.1, p=0.8),
        kornia.augmentation.RandomAffine(degrees=10.0, p=1.0),
    )
    return aug, lambda: (torch.rand(2, 3, 16, 20),)


for _name in ("rgb_to_grayscale", "rgb_to_hsv", "hsv_to_rgb", "rgb_to_lab", "rgb_to_yuv"):
    _function(f"color.{_name}", _images())
_function("enhance.adjust_brightness", _images(), factor=0.2)
_function("enhance.equalize", lambda: (torch.rand(1, 3, 16, 20),))
_function("enhance.equalize_clahe", lambda: (torch.rand(1, 1, 16, 16),), grid_size=(2, 2))
_function("filters.gaussian_blur2d", _images(), kernel_size=(3, 3), sigma=(1.5, 1.5))
_function("filters.median_blur", _images(), kernel_size=(3, 3))
_function("filters.sobel", _images())
_function("filters.canny", lambda: (torch.rand(1, 1, 16, 20),))
_function("filters.bilateral_blur", _images(), kernel_size=(3, 3), sigma_color=0.1, sigma_space=(1.5, 1.5))
_function("morphology.dilation", lambda: (_image(1), torch.ones(3, 3)))
_function("geometry.transform.rotate", lambda: (_image(), torch.tensor([45.0])))
_function("geometry.transform.resize", _images(), size=(8, 10))
_function("geometry.transform.warp_perspective", lambda: (_image(), torch.eye(3)[None] + 0.01 * torch.randn(1, 3, 3)),
          dsize=(16, 20))  # fmt: skip
_function("geometry.conversions.axis_angle_to_rotation_matrix", lambda: (torch.randn(4, 3, requires_grad=True),))
_function("geometry.homography.find_homography_dlt", lambda: (torch.rand(1, 6, 2), torch.rand(1, 6, 2)))
_function("feature.harris_response", _images(1))
_function("feature.match_nn", lambda: (torch.randn(6, 8), torch.randn(7, 8)))
_function("losses.ssim_loss", _images(3, 3), window_size=5)
_function("losses.dice_loss", lambda: (torch.randn(2, 4, 6, 6, requires_grad=True), torch.randint(4, (2, 6, 6))))
_function("losses.focal_loss", lambda: (torch.randn(2, 4, 6, 6, requires_grad=True), torch.randint(4, (2, 6, 6))),
          alpha=0.5, reduction="mean")  # fmt: skip
_function("metrics.mean_iou", lambda: (torch.randint(4, (2, 6, 6)), torch.randint(4, (2, 6, 6))), num_classes=4)
_module("augmentation.RandomErasing", lambda: (torch.rand(2, 3, 16, 20),), p=1.0)
_module("augmentation.RandomResizedCrop", lambda: (torch.rand(2, 3, 16, 20),), size=(8, 8))
_module("augmentation.Normalize", lambda: (torch.rand(2, 3, 16, 20),), mean=torch.zeros(3), std=torch.ones(3))
_module("contrib.ExtractTensorPatches", _images(), window_size=4, stride=2)
