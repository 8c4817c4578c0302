# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's recipes: the fp8 format and the scaling of each tensor.

A `Scheme` holds the formats of the input, the weight and the gradient of a linear layer. Traces print these formats.
`e4m3` has one scale per tensor; `e4m3 1x128` and `e4m3 128x128` have one scale per block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from thunder.extend import ThunderError
from thunder_ex_te.probe import kernels

__all__ = ["Delayed", "Quantization", "Scheme", "scheme_of"]


class Quantization(NamedTuple):
    """The quantization of a tensor: format, block size, whether scales are powers of two, and the minimum of amax."""

    kind: str
    power_2: bool = False
    epsilon: float = 0.0


class Delayed(NamedTuple):
    """The method that computes scales from the amax history."""

    length: int
    algorithm: str
    margin: int
    reduce: bool


class Scheme(NamedTuple):
    """A recipe. `split`: whether forward, input gradient and weight gradient use the split accumulator."""

    input: Quantization
    weight: Quantization
    grad: Quantization
    split: tuple[bool, bool, bool]
    delayed: Delayed | None = None


def scheme_of(recipe: Any) -> Scheme:
    """Return the scheme of a recipe. Raise ThunderError with the reason if the recipe is not supported."""
    recipes = kernels().recipes
    name = type(recipe).__name__
    if not isinstance(recipe, recipes.Recipe):
        raise ThunderError(
            f"te_recipe must be one of TransformerEngine's recipes, such as Float8CurrentScaling() of "
            f"transformer_engine.common.recipe, not {recipe!r:.60}"
        )
    if recipe.mxfp8() or recipe.nvfp4():
        raise ThunderError(
            f"te_recipe={name}: this format needs a GPU of compute capability 10.0 or newer, and thunder-ex-te runs on "
            "Hopper (9.0). Recipes that run there are Float8CurrentScaling, DelayedScaling and Float8BlockScaling"
        )
    if getattr(recipe, "backward_override", None) is not None:
        raise ThunderError(
            f"te_recipe={name}(backward_override={recipe.backward_override!r}): gradients are computed in fp8 too; "
            "leave out backward_override"
        )
    if getattr(recipe, "fp8_dpa", False) or getattr(recipe, "fp8_mha", False):
        raise ThunderError(
            f"te_recipe={name}: linear layers run in fp8, attention does not; leave out fp8_dpa and fp8_mha"
        )
    if not (recipe.delayed() or recipe.float8_current_scaling() or recipe.float8_block_scaling()):
        raise ThunderError(
            f"te_recipe={name} is not supported. Supported recipes are Float8CurrentScaling, DelayedScaling and "
            "Float8BlockScaling"
        )
    forward, backward = _types(recipe)
    if recipe.delayed():
        scheme = Quantization(forward), Quantization(forward), Quantization(backward)
        return Scheme(*scheme, (False, True, True), _delayed(recipe))
    if recipe.float8_current_scaling():
        ends = "", "", ""
    else:
        dims = recipe.x_block_scaling_dim, recipe.w_block_scaling_dim, recipe.grad_block_scaling_dim
        ends = tuple(" 1x128" if d == 1 else " 128x128" for d in dims)  # type: ignore[assignment]
    parameters = recipe.fp8_quant_fwd_inp, recipe.fp8_quant_fwd_weight, recipe.fp8_quant_bwd_grad
    found = [
        Quantization(kind + end, bool(p.power_2_scale), float(p.amax_epsilon))
        for kind, end, p in zip((forward, forward, backward), ends, parameters)
    ]
    products = recipe.fp8_gemm_fprop, recipe.fp8_gemm_dgrad, recipe.fp8_gemm_wgrad
    forward_split, of_input, of_weight = (bool(each.use_split_accumulator) for each in products)
    return Scheme(found[0], found[1], found[2], (forward_split, of_input, of_weight))


def _types(recipe: Any) -> tuple[str, str]:
    """Return the formats of forward and backward. TransformerEngine itself rejects a recipe with only E5M2."""
    return "e4m3", "e5m2" if recipe.fp8_format.name == "HYBRID" else "e4m3"


def _delayed(recipe: Any) -> Delayed:
    if callable(recipe.amax_compute_algo) or recipe.scaling_factor_compute_algo is not None:
        raise ThunderError(
            "te_recipe=DelayedScaling: scales are computed by TransformerEngine's kernel, from the largest ('max') or "
            "the last ('most_recent') value of the history; custom functions are not supported"
        )
    return Delayed(recipe.amax_history_len, recipe.amax_compute_algo, recipe.margin, recipe.reduce_amax)
