# SPDX-License-Identifier: Apache-2.0
"""MONAI: networks and losses of the documentation's lists, in its order."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("monai", rank=6495, requires=["monai==1.6.*"])


def _net(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    def build() -> Any:
        import monai.networks.nets as nets

        return getattr(nets, name)(**options), lambda: (torch.randn(shape),)

    PROJECT.add(name, f"documentation, networks.nets.{name}", build)


def _loss(name: str, **options: Any) -> None:
    def build() -> Any:
        import monai.losses

        def inputs() -> Any:
            return torch.randn(2, 3, 8, 8, requires_grad=True), torch.randint(3, (2, 1, 8, 8))

        return getattr(monai.losses, name)(to_onehot_y=True, **options), inputs

    PROJECT.add(name, f"documentation, losses.{name}", build, trains=True)


_loss("DiceLoss", softmax=True)
_loss("GeneralizedDiceLoss", softmax=True)
_loss("DiceCELoss", softmax=True)
_loss("DiceFocalLoss", softmax=True)
_loss("FocalLoss")
_loss("TverskyLoss", softmax=True)
_net("AHNet", {"layers": (3, 4, 6, 3), "spatial_dims": 2}, (1, 1, 128, 128))  # the smallest image for four poolings
_net("DenseNet", {"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "init_features": 8, "growth_rate": 4,
     "block_config": (1, 1)}, (1, 1, 32, 32))  # fmt: skip
_net("SegResNet", {"spatial_dims": 2, "init_filters": 8}, (1, 1, 32, 32))
_net("ResNet", {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [4, 8, 8, 8], "spatial_dims": 2,
     "n_input_channels": 1}, (1, 1, 32, 32))  # fmt: skip
_net("DynUNet", {"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "kernel_size": [3, 3, 3],
     "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [4, 8, 8]}, (1, 1, 16, 16))  # fmt: skip
_net("BasicUNet", {"spatial_dims": 2, "features": (4, 4, 8, 8, 8, 4)}, (1, 1, 32, 32))
_net("UNet", {"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "channels": (4, 8, 16), "strides": (2, 2),
     "num_res_units": 1}, (1, 1, 32, 32))  # fmt: skip
_net("AttentionUnet", {"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "channels": (4, 8, 16),
     "strides": (2, 2)}, (1, 1, 32, 32))  # fmt: skip
_net("UNETR", {"in_channels": 1, "out_channels": 2, "img_size": (32, 32), "feature_size": 4, "hidden_size": 24,
     "mlp_dim": 48, "num_heads": 4, "spatial_dims": 2}, (1, 1, 32, 32))  # fmt: skip
_net("SwinUNETR", {"in_channels": 1, "out_channels": 2, "feature_size": 12, "spatial_dims": 2}, (1, 1, 64, 64))
