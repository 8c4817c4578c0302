# SPDX-License-Identifier: Apache-2.0
"""The projects, by the names of their modules here, and the rule that selects them and their programs."""

from __future__ import annotations

__all__ = ["MODULES", "RULE"]

RULE = """
## Selection

The projects are thirty packages among the 15,000 most downloaded of the Python Package Index (October 2026) that
depend on torch or have a part for torch, and whose documentation calls models, layers, losses or functions on tensors.
Packages that need torchvision, torchaudio, a compiler, a GPU, or downloaded weights or data for these calls are left
out. nflows is not among the 15,000, and was named in a review.

The programs are the examples of a project's README in its order and, if there are fewer than sixteen, entries of the
lists in its documentation. There are at most sixteen of a project, and forty of Transformers, of which `nox -s models`
runs 150 others. Sizes are smaller, and weights are random. The list was fixed before `thunder.jit` first ran it: a
program that fails stays in it.
"""

# In the order of downloads.
MODULES = (
    "transformers", "sentence_transformers", "accelerate", "einops", "torchmetrics", "peft", "pytorch_lightning",
    "diffusers", "kornia", "pytorch_metric_learning", "torch_geometric", "torchsde", "tensordict",
    "vector_quantize_pytorch", "x_transformers", "e3nn", "pyro", "gpytorch", "linear_operator", "torchdiffeq",
    "botorch", "rotary_embedding_torch", "curated_transformers", "monai", "captum", "local_attention", "roma", "entmax",
    "vit_pytorch", "nflows",
)  # fmt: skip
