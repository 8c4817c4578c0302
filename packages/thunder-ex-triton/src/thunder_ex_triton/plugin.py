# SPDX-License-Identifier: Apache-2.0
"""The plugin's hooks. Each hook imports its modules when it runs, so importing this file is cheap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from thunder.plugins import Availability, ConformanceProfile, hookimpl
from thunder_ex_triton import __version__
from thunder_ex_triton.probe import interpreting, why_not

if TYPE_CHECKING:
    from thunder.extend import Executor
    from thunder.plugins import Env, PluginRegistry

CROSS_ENTROPY = "triton_crossentropy"
FUSION = "triton"
# The dtypes of the fusion tests under the interpreter. bfloat16 is missing because the interpreter flushes its
# subnormals to zero, and truncates where hardware rounds to nearest.
FUSED = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


@hookimpl
def thunder_probe(env: Env) -> Availability:
    """Check for an NVIDIA GPU and Triton, or for Triton's interpreter."""
    return Availability.unless(why_not(env))


@hookimpl
def thunder_register_executors(registry: PluginRegistry) -> None:
    """Register both executors as defaults."""
    from thunder.extend import NewResults, OperatorExecutor
    from thunder_ex_triton.fusion.executor import TritonFusion

    losses = OperatorExecutor(CROSS_ENTROPY, version=__version__, memory=NewResults())
    registry.register_executor(losses, default=True, priority=30)
    registry.register_executor(TritonFusion(FUSION, version=__version__), default=True, priority=20)


@hookimpl
def thunder_register_implementations(registry: PluginRegistry) -> None:
    """Register cross-entropy, attention of few queries, argmax, gradients of embeddings, pooling, and resampling."""
    from thunder_ex_triton import argmax, decode_attention, embedding, max_pooling, pooling, resize
    from thunder_ex_triton.cross_entropy import implementation

    implementation.register(registry, CROSS_ENTROPY)
    argmax.register(registry, FUSION)
    decode_attention.register(registry, FUSION)
    embedding.register(registry, FUSION)
    max_pooling.register(registry, FUSION)
    pooling.register(registry, FUSION)
    resize.register(registry, FUSION)


@hookimpl
def thunder_register_transforms(registry: PluginRegistry) -> None:
    """Register autotuning and the passes: cross-entropy, masks, images, products, sums of rows, random, routing."""
    from thunder_ex_triton import (
        attention_masks,
        cached_attention,
        channels_last,
        contiguous_norms,
        indexed_rows,
        resized_images,
    )
    from thunder_ex_triton.convolutions import operators as convolutions
    from thunder_ex_triton.cross_entropy import casts, linear_passes
    from thunder_ex_triton.fusion import autotune, random
    from thunder_ex_triton.matmul import batched, matvec, padding, skinny
    from thunder_ex_triton.routing import passes as routing

    linear_passes.register(registry, CROSS_ENTROPY)
    casts.register(registry, CROSS_ENTROPY)
    attention_masks.register(registry, FUSION)
    cached_attention.register(registry, FUSION)
    channels_last.register(registry, FUSION)
    contiguous_norms.register(registry, FUSION)
    convolutions.register(registry, FUSION)
    matvec.register(registry, FUSION)
    skinny.register(registry, FUSION)
    batched.register(registry, FUSION)
    padding.register(registry, FUSION)
    indexed_rows.register(registry, FUSION)
    resized_images.register(registry, FUSION)
    random.register(registry, FUSION)
    routing.register(registry, FUSION)
    autotune.register(registry)


@hookimpl
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile:
    """Return the devices, dtypes and tolerances of the conformance tests.

    The interpreter truncates when it rounds to bfloat16.
    """
    from thunder_ex_triton.cross_entropy.implementation import DTYPES
    from thunder_ex_triton.samples import fusion_opinfos, loss_opinfos

    is_cross_entropy = executor.name == CROSS_ENTROPY
    tolerances = {"bfloat16": (1.6e-2, 1e-3)} if interpreting() else {}
    if not is_cross_entropy:  # sums are computed in another order, and functions come from libdevice
        tolerances["float32"] = (5e-6, 1e-5)
    return ConformanceProfile(
        devices=("cpu",) if interpreting() else ("cuda",),
        dtypes=DTYPES if is_cross_entropy else FUSED if interpreting() else None,
        tolerances=tolerances,
        known_failures=() if is_cross_entropy else Path(__file__).with_name("known_failures.toml"),
        opinfos=loss_opinfos if is_cross_entropy else fusion_opinfos,
    )


@hookimpl
def thunder_save_region(region: Any) -> tuple[str, Any] | None:
    """Describe a fusion by the source of its kernels, their launches and the hashes of their binaries."""
    from thunder_ex_triton.fusion.region import FusedRegion
    from thunder_ex_triton.saved_regions import LoadedRegion, save_region

    if isinstance(region, LoadedRegion):
        return "thunder_ex_triton.saved_regions", region.data
    return ("thunder_ex_triton.saved_regions", save_region(region)) if isinstance(region, FusedRegion) else None
