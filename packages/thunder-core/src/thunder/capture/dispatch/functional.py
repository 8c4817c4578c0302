# SPDX-License-Identifier: Apache-2.0
"""Functions of `torch.nn.functional` that write to an argument (e.g. running statistics), `bilinear`, and losses."""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch.opaque import call_opaque
from thunder.capture.dispatch.registry import handles
from thunder.capture.dispatch.writing import assign
from thunder.capture.tensors.tracer import Tracer, needs_grad
from thunder.torch import private

__all__: list[str] = []


# -- normalization with running statistics ----------------------------------------------------------------------------
def _running_statistics(
    tracer: Tracer, sym: Any, input: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    out, new_mean, new_var = tracer.call_symbol(sym, (input, weight, bias, mean, var, momentum, eps), {})
    with torch.no_grad():
        for target, value in ((mean, new_mean), (var, new_var)):
            if target is not None and value is not None:
                assign(tracer, target, value.detach(), "batch_norm")
    return out


@handles(torch.batch_norm)
def _batch_norm(
    tracer: Tracer, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    if training:
        return _running_statistics(
            tracer, ltorch.batch_norm_train, input, weight, bias, running_mean, running_var, momentum, eps
        )
    return tracer.call_symbol(
        ltorch.batch_norm, (input, running_mean, running_var, weight, bias, False, momentum, eps), {}
    )


@handles(torch.nn.functional.batch_norm)
def _f_batch_norm(
    tracer: Tracer, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    return _batch_norm(tracer, input, weight, bias, running_mean, running_var, training, momentum, eps)


@handles(torch.instance_norm)
def _instance_norm(
    tracer: Tracer, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    return _f_instance_norm(tracer, input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


@handles(torch.nn.functional.instance_norm)
def _f_instance_norm(
    tracer: Tracer, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if use_input_stats and running_mean is not None:
        return _running_statistics(
            tracer, ltorch.instance_norm_train, input, weight, bias, running_mean, running_var, momentum, eps
        )
    call = (input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return tracer.call_symbol(ltorch.instance_norm, call, {})


# -- embeddings with max_norm -----------------------------------------------------------------------------------------
@handles(torch.nn.functional.embedding, traced=True)
def _embedding(
    tracer: Tracer, input: Any, weight: Any, padding_idx: Any = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    if max_norm is not None:
        _shorten(tracer, weight, input, max_norm, norm_type)
    if sparse and torch.is_grad_enabled() and needs_grad(weight):
        fall_back("the program calls embedding with sparse=True, whose gradient is sparse")
    return tracer.call_symbol(ltorch.embedding, (input, weight, padding_idx, None, 2.0, scale_grad_by_freq), {})


def _shorten(tracer: Tracer, weight: Any, indices: Any, max_norm: float, norm_type: float) -> None:
    with torch.no_grad():
        used = torch.zeros(weight.shape[0], dtype=torch.bool, device=weight.device)
        used = used.index_fill(0, indices.reshape(-1), True)
        norms = torch.linalg.vector_norm(weight, norm_type, dim=1)
        scale = torch.where(used & (norms > max_norm), max_norm / (norms + 1e-7), 1.0)
        assign(tracer, weight, weight * scale[:, None], "embedding")


@handles(torch.embedding_renorm_, traced=True)
def _embedding_renorm_(tracer: Tracer, weight: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    _shorten(tracer, weight, indices, max_norm, norm_type)
    return weight


# -- products of three tensors ----------------------------------------------------------------------------------------
@handles(torch.nn.functional.bilinear, torch.bilinear)
def _bilinear(tracer: Tracer, input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    # torch differentiates the product as one operation. Autocast casts inside of it, so that backward is not cast.
    device = input1.device.type
    if torch.is_autocast_enabled(device) and device not in ltorch.bilinear.facts.autocast:
        return call_opaque(tracer, torch.bilinear, (input1, input2, weight, bias), {})
    return NotImplemented


# -- products inside of operations ------------------------------------------------------------------------------------
@handles(torch.affine_grid_generator, torch.linalg.pinv, torch.pinverse)
def _multiplies_inside(tracer: Tracer, input: Any, *args: Any, **kwargs: Any) -> Any:
    # Autocast casts the product inside of torch's kernel, but not inside of the function that fake tensors run.
    if torch.is_autocast_enabled(input.device.type):
        fall_back("the program calls affine_grid or pinv under autocast, whose result's dtype no trace knows")
    return NotImplemented


# -- losses -----------------------------------------------------------------------------------------------------------
@handles(torch.nn.functional.l1_loss)
def _l1_loss(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    return tracer.call_symbol(ltorch.l1_loss, args, {"weight": private.l1_loss_weight(), **kwargs})
