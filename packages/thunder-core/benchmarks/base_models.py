# SPDX-License-Identifier: Apache-2.0
"""Sixteen models of base size, for the benchmarks of training steps: what they are, and a batch for each.

All but the U-Net are Transformers' models with random weights. `tiny` models have the same structure with small sizes,
to try a benchmark on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["MODELS", "Model", "for_eager"]

Batch = dict[str, torch.Tensor]


class Model(NamedTuple):
    """How to build a model and its batch, both with `tiny` as argument, and what the table says of it."""

    build: Callable[[bool], nn.Module]
    batch: Callable[[bool], Batch]
    about: str


def for_eager(model: nn.Module) -> nn.Module:
    """Let a model scan its sequence step by step: `associative_scan` in eager mode takes half a minute per step."""
    for module in model.modules():
        if hasattr(module, "use_associative_scan"):
            module.use_associative_scan = False
    return model


def of_transformers(name: str, config: str, tiny: dict[str, Any], **sizes: Any) -> Callable[[bool], nn.Module]:
    """Return what builds a model of Transformers from its configuration, without dropout and caches."""

    def build(small: bool) -> nn.Module:
        import transformers  # type: ignore[import-not-found]

        options = {**sizes, **(tiny if small else {})}
        made = getattr(transformers, config)(**options)
        for key in vars(made):
            if key.endswith(("dropout", "_pdrop", "layerdrop", "dropout_prob", "dropout_rate", "drop_path_rate")):
                setattr(made, key, 0.0)
        made.use_cache = False
        return getattr(transformers, name)(made)

    return build


def tokens(count: int, length: int, vocabulary: int, tiny: int = 97, labels: str = "labels") -> Callable[[bool], Batch]:
    """Return what draws token ids, which are the labels, too."""

    def batch(small: bool) -> Batch:
        ids = torch.randint(0, tiny if small else vocabulary, (2, 16) if small else (count, length))
        return {"input_ids": ids, labels: ids}

    return batch


def images(count: int, size: int, classes: int = 1000, tiny: int = 32) -> Callable[[bool], Batch]:
    """Return what draws images and their classes."""

    def batch(small: bool) -> Batch:
        number, width = (2, tiny) if small else (count, size)
        labels = torch.randint(0, 2 if small else classes, (number,))
        return {"pixel_values": torch.randn(number, 3, width, width), "labels": labels}

    return batch


def segments(count: int, size: int) -> Callable[[bool], Batch]:
    """Return what draws images and a class for each of their pixels."""

    def batch(small: bool) -> Batch:
        number, width = (2, 64) if small else (count, size)
        labels = torch.randint(0, 2 if small else 150, (number, width, width))
        return {"pixel_values": torch.randn(number, 3, width, width), "labels": labels}

    return batch


def pairs(small: bool) -> Batch:
    """Draw images, and a caption for each."""
    number = 2 if small else 64
    captions = torch.randint(3, 97 if small else 49405, (number, 16 if small else 77))
    captions[:, -1] = 98 if small else 49407
    width = 32 if small else 224
    return {"input_ids": captions, "pixel_values": torch.randn(number, 3, width, width)}


def speech(small: bool) -> Batch:
    """Draw spectra, and tokens for each."""
    number, length, labels = (2, 32, 8) if small else (8, 3000, 128)
    return {
        "input_features": torch.randn(number, 80, length),
        "labels": torch.randint(0, 97 if small else 50000, (number, labels)),
    }


def sound(small: bool) -> Batch:
    """Draw sounds, and a class for each."""
    shape = (2, 1600) if small else (8, 80000)
    return {"input_values": torch.randn(shape), "labels": torch.randint(0, 2, shape[:1])}


class ClipLoss(nn.Module):
    """CLIP that is asked for its loss."""

    def __init__(self, clip: nn.Module) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, **batch: torch.Tensor) -> Any:
        """Return the outputs, with the contrastive loss."""
        return self.clip(**batch, return_loss=True)


class Block(nn.Module):
    """GroupNorm, SiLU and a convolution, twice, and a residual."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result."""
        y = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class UNet(nn.Module):
    """A U-Net as in diffusion models, without attention; its loss is the distance to the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Block(a, b) for a, b in zip([width, *widths], widths)])
        self.middle = Block(widths[-1], widths[-1])
        self.up = nn.ModuleList([Block(2 * b, a) for a, b in zip([width, *widths[:-1]], widths)][::-1])
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x, kept = self.first(pixel_values), []
        for block in self.down:
            kept.append(x := block(x))
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return F.mse_loss(self.last(x), pixel_values)


# fmt: off
_DECODER = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
_TRANSFORMER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}

MODELS = {
    "GPT-2": Model(
        of_transformers(
            "GPT2LMHeadModel", "GPT2Config",
            {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
        ),
        tokens(8, 512, 50257),
        "124M, 8 x 512 tokens",
    ),
    "Llama": Model(
        of_transformers(
            "LlamaForCausalLM", "LlamaConfig", _DECODER, vocab_size=32000, hidden_size=2048, intermediate_size=5632,
            num_hidden_layers=8, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
            max_position_embeddings=2048,
        ),
        tokens(2, 1024, 32000),
        "8 layers of a 1B model, 2 x 1024 tokens",
    ),
    "Qwen3": Model(
        of_transformers(
            "Qwen3ForCausalLM", "Qwen3Config", _DECODER, vocab_size=32000, hidden_size=1024, intermediate_size=3072,
            num_hidden_layers=14, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        ),
        tokens(4, 1024, 32000),
        "14 layers of a 0.6B model, 4 x 1024 tokens",
    ),
    "Mixtral": Model(
        of_transformers(
            "MixtralForCausalLM", "MixtralConfig", {**_DECODER, "num_local_experts": 4}, vocab_size=32000,
            hidden_size=1024, intermediate_size=1792, num_hidden_layers=4, num_attention_heads=16,
            num_key_value_heads=4, head_dim=64, num_local_experts=8,
        ),
        tokens(4, 512, 32000),
        "4 layers, 8 experts, 4 x 512 tokens",
    ),
    "BERT": Model(
        of_transformers("BertForMaskedLM", "BertConfig", {**_TRANSFORMER, "vocab_size": 97}),
        tokens(16, 256, 30522),
        "base, 16 x 256 tokens",
    ),
    "T5": Model(
        of_transformers(
            "T5ForConditionalGeneration", "T5Config",
            {"vocab_size": 97, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
            decoder_start_token_id=0,
        ),
        tokens(16, 256, 32128),
        "small, 16 x 256 tokens",
    ),
    "ViT": Model(
        of_transformers(
            "ViTForImageClassification", "ViTConfig",
            {**_TRANSFORMER, "image_size": 32, "num_labels": 2}, num_labels=1000
        ),
        images(32, 224),
        "base, 32 images",
    ),
    "Swin": Model(
        of_transformers(
            "SwinForImageClassification", "SwinConfig",
            {"image_size": 64, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
             "num_labels": 2},
            num_labels=1000,
        ),
        images(32, 224, tiny=64),
        "tiny, 32 images",
    ),
    "ConvNeXt": Model(
        of_transformers(
            "ConvNextForImageClassification", "ConvNextConfig",
            {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 2}, num_labels=1000,
        ),
        images(32, 224, tiny=64),
        "tiny, 32 images",
    ),
    "SegFormer": Model(
        of_transformers(
            "SegformerForSemanticSegmentation", "SegformerConfig",
            {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16, "num_labels": 2},
            num_labels=150,
        ),
        segments(4, 512),
        "b0, 4 images of 512 pixels",
    ),
    "ResNet": Model(
        of_transformers(
            "ResNetForImageClassification", "ResNetConfig",
            {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 2},
            num_labels=1000,
        ),
        images(64, 224, tiny=64),
        "50, 64 images",
    ),
    "U-Net": Model(lambda tiny: UNet(8 if tiny else 64), images(8, 128), "64 to 256 channels, 8 images of 128 pixels"),
    "CLIP": Model(
        lambda tiny: ClipLoss(
            of_transformers(
                "CLIPModel", "CLIPConfig",
                {
                    "text_config": {**_TRANSFORMER, "vocab_size": 99, "eos_token_id": 98},
                    "vision_config": {**_TRANSFORMER, "image_size": 32, "patch_size": 8},
                    "projection_dim": 16,
                },
            )(tiny)
        ),
        pairs,
        "base with patches of 32 pixels, 64 pairs",
    ),
    "Whisper": Model(
        of_transformers(
            "WhisperForConditionalGeneration", "WhisperConfig",
            {
                "vocab_size": 97, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
                "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 16,
                "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
            },
            d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
            encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        ),
        speech,
        "base, 8 x 30 seconds",
    ),
    "Wav2Vec2": Model(
        of_transformers(
            "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config",
            {**_TRANSFORMER, "conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2],
             "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16},
            mask_time_prob=0.0, num_labels=2,
        ),
        sound,
        "base, 8 x 5 seconds",
    ),
    "Mamba": Model(
        of_transformers(
            "MambaForCausalLM", "MambaConfig",
            {"vocab_size": 97, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2},
            vocab_size=32000, hidden_size=768, state_size=16, num_hidden_layers=2,
        ),
        tokens(1, 128, 32000),
        "2 layers of the 130M model, 128 tokens",
    ),
}
# fmt: on
