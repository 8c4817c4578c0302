# SPDX-License-Identifier: Apache-2.0
"""vit-pytorch: the first models of the README, in its order, with smaller images and widths.

The package imports torchvision for one of its models. Its modules are imported here without its `__init__`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import torch

from programs.program import Project

PROJECT = Project("vit-pytorch", rank=12127, requires=["vit-pytorch==1.26.*", "einops"], without_dependencies=True)

if "vit_pytorch" not in sys.modules and (_spec := importlib.util.find_spec("vit_pytorch")) is not None:
    sys.modules["vit_pytorch"] = types.ModuleType("vit_pytorch")
    sys.modules["vit_pytorch"].__path__ = list(_spec.submodule_search_locations or ())

_VIT = {"num_classes": 10, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64}
_DROPOUT = {"dropout": 0.1, "emb_dropout": 0.1}


def _add(name: str, path: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    """Add the model that `path` names (`module.Class`), called with an image or a video of a shape."""
    module, _, cls = path.rpartition(".")

    def build() -> Any:
        model = getattr(importlib.import_module(f"vit_pytorch.{module}"), cls)(**options)
        return model, lambda: (torch.randn(shape),)

    PROJECT.add(name, f"README, {name}", build)


IMG = (1, 3, 64, 64)
TWO = (2, 3, 64, 64)  # for a batch norm of one position, which cannot train on one image
_SQUARE = {"image_size": 64, "patch_size": 16, **_VIT}
_add("ViT", "vit.ViT", {**_SQUARE, **_DROPOUT}, IMG)
_add("Simple ViT", "simple_vit.SimpleViT", _SQUARE, IMG)


@PROJECT.program("NaViT", "README, NaViT")
def _navit() -> Any:
    from vit_pytorch.na_vit import NaViT

    model = NaViT(**_SQUARE, **_DROPOUT, token_dropout_prob=0.1)

    def inputs() -> Any:
        rows = [[(64, 64), (32, 32)], [(32, 64), (64, 32)], [(16, 64)]]
        return ([[torch.randn(3, *size) for size in row] for row in rows],)

    return model, inputs


@PROJECT.program("NaViT, grouped", "README, NaViT with group_images")
def _navit_grouped() -> Any:
    from vit_pytorch.na_vit import NaViT

    model = NaViT(**_SQUARE, **_DROPOUT, token_dropout_prob=0.1)
    sizes = [(64, 64), (32, 32), (32, 64), (64, 32), (16, 64)]
    return model, lambda: {
        "batched_images": [torch.randn(3, *size) for size in sizes],
        "group_images": True,
        "group_max_seq_len": 16,
    }


@PROJECT.program("NaViT, nested tensors", "README, NaViT based on nested tensors")
def _navit_nested() -> Any:
    from vit_pytorch.na_vit_nested_tensor import NaViT

    model = NaViT(**_SQUARE, dropout=0.0, emb_dropout=0.0, token_dropout_prob=0.1)
    sizes = [(64, 64), (32, 32), (32, 64), (64, 32), (16, 64)]
    return model, lambda: ([torch.randn(3, *size) for size in sizes],)


_add("DistillableViT", "distill.DistillableViT", {**_SQUARE, **_DROPOUT}, IMG)
_add("Deep ViT", "deepvit.DeepViT", {**_SQUARE, **_DROPOUT}, IMG)
_add("CaiT", "cait.CaiT", {**_SQUARE, **_DROPOUT, "cls_depth": 2, "layer_dropout": 0.05}, IMG)
_add("Token-to-Token ViT", "t2t.T2TViT", {"dim": 32, "image_size": 64, "depth": 2, "heads": 4, "mlp_dim": 64,
     "num_classes": 10, "t2t_layers": ((7, 4), (3, 2), (3, 2))}, IMG)  # fmt: skip
_CCT = {"embedding_dim": 48, "n_conv_layers": 2, "kernel_size": 7, "stride": 2, "padding": 3, "pooling_kernel_size": 3,
        "pooling_stride": 2, "pooling_padding": 1, "num_layers": 3, "num_heads": 6, "mlp_ratio": 3.0, "num_classes": 10,
        "positional_embedding": "learnable"}  # fmt: skip
_add("CCT", "cct.CCT", {"img_size": (64, 96), **_CCT}, (1, 3, 64, 96))
_add("CCT 14", "cct.cct_14", {k: v for k, v in {"img_size": 64, **_CCT, "n_conv_layers": 1}.items()
     if k not in ("embedding_dim", "num_layers", "num_heads", "mlp_ratio")}, IMG)  # fmt: skip
_CROSS = {"image_size": 64, "num_classes": 10, "depth": 2, "sm_dim": 24, "sm_patch_size": 8, "sm_enc_depth": 1,
          "sm_enc_heads": 2, "sm_enc_mlp_dim": 32, "lg_dim": 32, "lg_patch_size": 16, "lg_enc_depth": 2,
          "lg_enc_heads": 2, "lg_enc_mlp_dim": 32, "cross_attn_depth": 2, "cross_attn_heads": 2,
          **_DROPOUT}  # fmt: skip
_add("Cross ViT", "cross_vit.CrossViT", _CROSS, IMG)
_add("PiT", "pit.PiT", {"image_size": 56, "patch_size": 14, "dim": 32, "num_classes": 10, "depth": (1, 2, 1),
     "heads": 4, "mlp_dim": 64, **_DROPOUT}, (1, 3, 56, 56))  # fmt: skip
_add("LeViT", "levit.LeViT", {"image_size": 64, "num_classes": 10, "stages": 3, "dim": (16, 24, 32), "depth": 2,
     "heads": (2, 3, 4), "mlp_mult": 2, "dropout": 0.1}, TWO)  # fmt: skip
_CVT = {"num_classes": 10, "s1_emb_dim": 16, "s1_emb_kernel": 7, "s1_emb_stride": 4, "s1_proj_kernel": 3,
        "s1_kv_proj_stride": 2, "s1_heads": 1, "s1_depth": 1, "s1_mlp_mult": 4, "s2_emb_dim": 32, "s2_emb_kernel": 3,
        "s2_emb_stride": 2, "s2_proj_kernel": 3, "s2_kv_proj_stride": 2, "s2_heads": 3, "s2_depth": 2,
        "s2_mlp_mult": 4, "s3_emb_dim": 48, "s3_emb_kernel": 3, "s3_emb_stride": 2, "s3_proj_kernel": 3,
        "s3_kv_proj_stride": 2, "s3_heads": 4, "s3_depth": 3, "s3_mlp_mult": 4, "dropout": 0.0}  # fmt: skip
_add("CvT", "cvt.CvT", _CVT, IMG)
_add("Twins SVT", "twins_svt.TwinsSVT", {"num_classes": 10, "s1_emb_dim": 16, "s1_patch_size": 4,
     "s1_local_patch_size": 4, "s1_global_k": 4, "s1_depth": 1, "s2_emb_dim": 24, "s2_patch_size": 2,
     "s2_local_patch_size": 4, "s2_global_k": 4, "s2_depth": 1, "s3_emb_dim": 32, "s3_patch_size": 2,
     "s3_local_patch_size": 2, "s3_global_k": 2, "s3_depth": 2, "s4_emb_dim": 48, "s4_patch_size": 2,
     "s4_local_patch_size": 2, "s4_global_k": 2, "s4_depth": 2, "peg_kernel_size": 3, "dropout": 0.0},
     IMG)  # fmt: skip
_add("RegionViT", "regionvit.RegionViT", {"dim": (16, 24, 32, 48), "depth": (1, 1, 2, 1), "window_size": 7,
     "num_classes": 10, "tokenize_local_3_conv": False, "use_peg": False}, (1, 3, 224, 224))  # fmt: skip
_add("CrossFormer", "crossformer.CrossFormer", {"num_classes": 10, "dim": (16, 24, 32, 48), "depth": (1, 1, 2, 1),
     "global_window_size": (8, 4, 2, 1), "local_window_size": 7}, (1, 3, 224, 224))  # fmt: skip
_add("ScalableViT", "scalable_vit.ScalableViT", {"num_classes": 10, "dim": 16, "heads": (2, 2, 4, 4),
     "depth": (1, 1, 2, 1), "ssa_dim_key": (8, 8, 8, 8), "reduction_factor": (8, 4, 2, 1),
     "window_size": (64, 32, None, None), "dropout": 0.1}, (1, 3, 256, 256))  # fmt: skip
_add("SepViT", "sep_vit.SepViT", {"num_classes": 10, "dim": 16, "dim_head": 8, "heads": (1, 2, 4, 8),
     "depth": (1, 1, 2, 1), "window_size": 7, "dropout": 0.1}, (1, 3, 224, 224))  # fmt: skip
_add("MaxViT", "max_vit.MaxViT", {"num_classes": 10, "dim_conv_stem": 16, "dim": 16, "dim_head": 8,
     "depth": (1, 1, 1, 1), "window_size": 7, "mbconv_expansion_rate": 4, "mbconv_shrinkage_rate": 0.25,
     "dropout": 0.1}, (2, 3, 224, 224))  # fmt: skip
_add("NesT", "nest.NesT", {"image_size": 64, "patch_size": 4, "dim": 24, "heads": 3, "num_hierarchies": 3,
     "block_repeats": (1, 1, 2), "num_classes": 10}, IMG)  # fmt: skip
_add("MobileViT", "mobile_vit.MobileViT", {"image_size": (64, 64), "dims": [24, 32, 40],
     "channels": [8, 12, 16, 16, 20, 20, 24, 24, 32, 32, 64], "num_classes": 10}, IMG)  # fmt: skip
_add("XCiT", "xcit.XCiT", {**_SQUARE, **_DROPOUT, "cls_depth": 2, "layer_dropout": 0.05,
     "local_patch_kernel_size": 3}, IMG)  # fmt: skip


@PROJECT.program("SimMIM", "README, Simple Masked Image Modeling")
def _simmim() -> Any:
    from vit_pytorch.simmim import SimMIM
    from vit_pytorch.vit import ViT

    return SimMIM(encoder=ViT(**_SQUARE), masking_ratio=0.5), lambda: (torch.randn(2, 3, 64, 64),)


@PROJECT.program("MAE", "README, Masked Autoencoder")
def _mae() -> Any:
    from vit_pytorch.mae import MAE
    from vit_pytorch.vit import ViT

    model = MAE(encoder=ViT(**_SQUARE), masking_ratio=0.75, decoder_dim=24, decoder_depth=2)
    return model, lambda: (torch.randn(2, 3, 64, 64),)


@PROJECT.program("MPP", "README, Masked Patch Prediction")
def _mpp() -> Any:
    from vit_pytorch.mpp import MPP
    from vit_pytorch.vit import ViT

    model = MPP(transformer=ViT(**_SQUARE, **_DROPOUT), patch_size=16, dim=32, mask_prob=0.15, random_patch_prob=0.30,
                replace_prob=0.50)  # fmt: skip
    return model, lambda: (torch.empty(4, 3, 64, 64).uniform_(0.0, 1.0),)


@PROJECT.program("MP3", "README, Masked Position Prediction")
def _mp3() -> Any:
    from vit_pytorch.mp3 import MP3, ViT

    model = MP3(vit=ViT(**_SQUARE, dropout=0.1), masking_ratio=0.75)
    return model, lambda: (torch.randn(4, 3, 64, 64),)


_add("Adaptive token sampling", "ats_vit.ViT", {**_SQUARE, **_DROPOUT, "max_tokens_per_depth": (16, 8)}, (4, 3, 64, 64))
_add("Patch merger", "vit_with_patch_merger.ViT", {**_SQUARE, **_DROPOUT, "depth": 3, "patch_merge_layer": 2,
     "patch_merge_num_tokens": 4}, (4, 3, 64, 64))  # fmt: skip
_add("PatchMerger", "vit_with_patch_merger.PatchMerger", {"dim": 32, "num_tokens_out": 8}, (4, 64, 32))
_add("ViT for small datasets", "vit_for_small_dataset.ViT", {**_SQUARE, **_DROPOUT}, (4, 3, 64, 64))
_add("SPT", "vit_for_small_dataset.SPT", {"dim": 32, "patch_size": 16, "channels": 3}, (4, 3, 64, 64))
_3D = {"image_size": 32, "frames": 4, "image_patch_size": 8, "frame_patch_size": 2, **_VIT}
_add("3D ViT", "vit_3d.ViT", {**_3D, **_DROPOUT}, (2, 3, 4, 32, 32))
_add("3D Simple ViT", "simple_vit_3d.SimpleViT", _3D, (2, 3, 4, 32, 32))
_add("3D CCT", "cct_3d.CCT", {"img_size": 32, "num_frames": 8, "frame_kernel_size": 3, **_CCT}, (1, 3, 8, 32, 32))
_add("ViViT", "vivit.ViT", {**{k: v for k, v in _3D.items() if k != "depth"}, "spatial_depth": 2, "temporal_depth": 2,
     "variant": "factorized_encoder"}, (2, 3, 4, 32, 32))  # fmt: skip
_add("Parallel ViT", "parallel_vit.ViT", {**_SQUARE, **_DROPOUT, "num_parallel_branches": 2}, (4, 3, 64, 64))


@PROJECT.program("Learnable memory ViT", "README, Learnable Memory ViT with an Adapter")
def _memory() -> Any:
    from vit_pytorch.learnable_memory_vit import Adapter, ViT

    model = Adapter(vit=ViT(**_SQUARE, **_DROPOUT), num_classes=2, num_memories_per_layer=5)
    return model, lambda: (torch.randn(4, 3, 64, 64),)


@PROJECT.program("Recorder", "README, Accessing Attention")
def _recorder() -> Any:
    from vit_pytorch.recorder import Recorder
    from vit_pytorch.vit import ViT

    return Recorder(ViT(**_SQUARE, **_DROPOUT)), lambda: (torch.randn(IMG),)


@PROJECT.program("Extractor", "README, Accessing Embeddings")
def _extractor() -> Any:
    from vit_pytorch.extractor import Extractor
    from vit_pytorch.vit import ViT

    return Extractor(ViT(**_SQUARE, **_DROPOUT)), lambda: (torch.randn(IMG),)


@PROJECT.program("Extractor of CrossViT", "README, Accessing Embeddings of multi_scale_encoder")
def _extractor_cross() -> Any:
    from vit_pytorch.cross_vit import CrossViT
    from vit_pytorch.extractor import Extractor

    return Extractor(CrossViT(**_CROSS), layer_name="multi_scale_encoder"), lambda: (torch.randn(IMG),)


_JET = {"image_size": 56, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 3, "heads": 4, "dim_head": 8,
        "mlp_dim": 64, "window_size": 7}  # fmt: skip
_add("JetViT, sampled", "jet_vit.JetViT", {**_JET, "attn_layers": [("WA", "LA")] * 3}, (1, 3, 56, 56))
_add("JetViT", "jet_vit.JetViT", {**_JET, "attn_layers": ["LA", "WA", "FA"]}, (1, 3, 56, 56))
_add("ViT-5", "vit_5.ViT", {**_SQUARE, **_DROPOUT, "dim_head": 8, "num_registers": 4}, (2, 3, 64, 64))


@PROJECT.program("Efficient ViT", "README, Combining with other Transformer improvements")
def _efficient() -> Any:
    from vit_pytorch.efficient import ViT
    from x_transformers import Encoder

    encoder = Encoder(dim=32, depth=2, heads=4, ff_glu=True, residual_attn=True)
    return ViT(dim=32, image_size=64, patch_size=16, num_classes=10, transformer=encoder), lambda: (torch.randn(IMG),)


_add(
    "ViT, rectangular",
    "vit.ViT",
    {**_SQUARE, **_DROPOUT, "image_size": (64, 32), "patch_size": (16, 8)},
    (1, 3, 64, 32),
)
