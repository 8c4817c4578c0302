# SPDX-License-Identifier: Apache-2.0
"""Diffusers: models and schedulers of the documentation's lists, and the training step of its basic guide."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("diffusers", rank=1520, requires=["diffusers==0.42.*"])


def _model(name: str, options: dict[str, Any], inputs: Any) -> None:
    def build() -> Any:
        import diffusers

        return getattr(diffusers, name)(**options), inputs

    PROJECT.add(name, f"documentation, {name}", build)


def _noise(channels: int = 3, size: int = 16) -> torch.Tensor:
    return torch.randn(1, channels, size, size)


_UNET = {"sample_size": 16, "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
_model("UNet2DModel", {**_UNET, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
       "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
       lambda: {"sample": _noise(), "timestep": torch.tensor(10)})  # fmt: skip
_model("UNet2DConditionModel", {**_UNET, "cross_attention_dim": 8, "attention_head_dim": 4,
       "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
       "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")},
       lambda: {"sample": _noise(4), "timestep": 10, "encoder_hidden_states": torch.randn(1, 5, 8)})  # fmt: skip
_model("AutoencoderKL", {"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4,
       "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
       lambda: {"sample": _noise(), "sample_posterior": True})  # fmt: skip
_model("VQModel", {"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 3,
       "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
       lambda: (_noise(),))  # fmt: skip
_model("AutoencoderTiny", {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8),
       "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}, lambda: (_noise(),))  # fmt: skip
_model("DiTTransformer2DModel", {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2,
       "sample_size": 8, "patch_size": 2, "norm_num_groups": 4, "num_embeds_ada_norm": 10},
       lambda: {"hidden_states": _noise(4, 8), "timestep": torch.tensor([3]),
                "class_labels": torch.tensor([2])})  # fmt: skip
_model("PixArtTransformer2DModel", {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4,
       "out_channels": 8, "num_layers": 1, "sample_size": 8, "patch_size": 2, "norm_num_groups": 4,
       "cross_attention_dim": 16, "caption_channels": 8, "use_additional_conditions": False},
       lambda: {"hidden_states": _noise(4, 8), "encoder_hidden_states": torch.randn(1, 5, 8),
                "timestep": torch.tensor([3]),
                "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}})  # fmt: skip
_model("SD3Transformer2DModel", {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_layers": 1,
       "attention_head_dim": 8, "num_attention_heads": 2, "joint_attention_dim": 16, "caption_projection_dim": 16,
       "pooled_projection_dim": 8, "out_channels": 4},
       lambda: {"hidden_states": _noise(4, 8), "encoder_hidden_states": torch.randn(1, 5, 16),
                "pooled_projections": torch.randn(1, 8), "timestep": torch.tensor([3.0])})  # fmt: skip
_model("FluxTransformer2DModel", {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
       "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 16, "pooled_projection_dim": 8,
       "axes_dims_rope": (4, 4, 8)},
       lambda: {"hidden_states": torch.randn(1, 9, 4), "encoder_hidden_states": torch.randn(1, 5, 16),
                "pooled_projections": torch.randn(1, 8), "timestep": torch.tensor([0.5]),
                "img_ids": torch.rand(9, 3).round(), "txt_ids": torch.zeros(5, 3)})  # fmt: skip
_model("ControlNetModel", {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4,
       "cross_attention_dim": 8, "attention_head_dim": 4, "conditioning_embedding_out_channels": (8, 8),
       "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D")},
       lambda: {"sample": _noise(4), "timestep": 10, "encoder_hidden_states": torch.randn(1, 5, 8),
                "controlnet_cond": _noise(3, 32)})  # fmt: skip
_model("PriorTransformer", {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "embedding_dim": 8,
       "num_embeddings": 5, "additional_embeddings": 4},
       lambda: {"hidden_states": torch.randn(2, 8), "timestep": 3, "proj_embedding": torch.randn(2, 8),
                "encoder_hidden_states": torch.randn(2, 5, 8)})  # fmt: skip


def _scheduler(name: str) -> None:
    def build() -> Any:
        import diffusers

        scheduler = getattr(diffusers, name)(num_train_timesteps=100)
        scheduler.set_timesteps(10)

        def step(noise: Any, sample: Any) -> Any:
            return scheduler.step(noise, scheduler.timesteps[0], sample).prev_sample

        def fresh(noise: Any, sample: Any) -> Any:
            scheduler._step_index = None
            return step(noise, sample)

        return fresh, lambda: (_noise(), _noise())

    PROJECT.add(name, f"documentation, one step of {name}", build)


for _name in ("DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"):
    _scheduler(_name)


@PROJECT.program("training", "tutorial, train a diffusion model", trains=True)
def _training() -> Any:
    import diffusers

    model = diffusers.UNet2DModel(**_UNET, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                                  up_block_types=("AttnUpBlock2D", "UpBlock2D"))  # fmt: skip
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)

    def step(images: Any) -> Any:
        noise = torch.randn(images.shape)
        timesteps = torch.randint(0, 100, (images.shape[0],), dtype=torch.int64)
        noisy = scheduler.add_noise(images, noise, timesteps)
        return torch.nn.functional.mse_loss(model(noisy, timesteps, return_dict=False)[0], noise)

    return step, lambda: (torch.randn(2, 3, 16, 16),), model


@PROJECT.program("pipeline", "README, quickstart with a scheduler and a model")
def _pipeline() -> Any:
    import diffusers

    model = diffusers.UNet2DModel(**_UNET, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                                  up_block_types=("AttnUpBlock2D", "UpBlock2D"))  # fmt: skip
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(5)

    def denoise(sample: Any) -> Any:
        for t in scheduler.timesteps:
            with torch.no_grad():
                residual = model(sample, t).sample
            sample = scheduler.step(residual, t, sample).prev_sample
        return sample

    return denoise, lambda: (_noise(),), model
