# SPDX-License-Identifier: Apache-2.0
"""The kernels that implement operations without conditions (`runtime/kernels/`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.symbol import Symbol
from thunder.executors.torchex.base import torch_impl
from thunder.runtime import decisions
from thunder.runtime.kernels import (
    attention,
    creation,
    elementwise,
    indexing,
    losses,
    matmul,
    nn,
    normalization,
    random,
    reductions,
    shape,
    sorting,
)
from thunder.runtime.kernels.table import kernels

__all__: list[str] = []

_IMPLEMENTATIONS: tuple[tuple[Symbol, Callable[..., Any]], ...] = (
    (prims.decide, decisions.decide),
    # -- creation
    (prims.full, creation.full),
    (prims.empty, creation.empty),
    (prims.iota, creation.iota),
    (prims.tensor_from_sequence, creation.tensor_from_sequence),
    # -- random numbers
    *[(getattr(prims, name), kernels[name]) for name in random.DISTRIBUTIONS],
    (ltorch.normal, random.normal_of),
    (prims.randint, random.randint),
    (prims.bernoulli_tensor, random.bernoulli_tensor),
    (prims.rrelu_noise, random.rrelu_noise),
    (prims.rng_state, random.rng_state),
    (prims.exchange_rng_state, random.exchange_rng_state),
    (prims.barrier, random.barrier),
    # -- elementwise
    (prims.div, elementwise.div),
    (ltorch.isclose, elementwise.isclose),
    (prims.maximum, elementwise.maximum),
    (prims.minimum, elementwise.minimum),
    (prims.missing_gradient, elementwise.missing_gradient),
    # -- shapes, memory and indexing
    (prims.broadcast_in_dim, shape.broadcast_in_dim),
    (prims.pad, shape.pad),
    (prims.as_strided, shape.as_strided),
    (prims.stride_order, shape.stride_order),
    (prims.clone_in_order, shape.clone_in_order),
    (prims.assign_value, shape.assign_value),
    (prims.copy_, shape.copy_),
    (prims.slice, indexing.slice_),
    (prims.slice_scatter, indexing.slice_scatter),
    (prims.index, indexing.index),
    (prims.index_put, indexing.index_put),
    (ltorch.setitem, indexing.setitem),
    # -- reductions, scans and sorting
    (prims.sum, reductions.sum),
    (prims.prod, reductions.prod),
    (prims.var, reductions.var),
    (prims.var_mean, reductions.var_mean),
    (prims.sort, sorting.sort),
    (prims.cumsum, sorting.cumsum),
    (prims.cumprod, sorting.cumprod),
    (prims.linear_recurrence, sorting.linear_recurrence),
    # -- matrix products and networks
    (ltorch.grouped_mm_left_grad, matmul.grouped_mm_left_grad),
    (ltorch.grouped_mm_right_grad, matmul.grouped_mm_right_grad),
    (prims.convolution_input_grad, nn.convolution_input_grad),
    (prims.convolution_weight_grad, nn.convolution_weight_grad),
    (prims.max_pool, nn.max_pool),
    (prims.max_pool_backward, nn.max_pool_backward),
    (prims.avg_pool, nn.avg_pool),
    (prims.avg_pool_backward, nn.avg_pool_backward),
    (prims.adaptive_avg_pool, nn.adaptive_avg_pool),
    (prims.adaptive_avg_pool_backward, nn.adaptive_avg_pool_backward),
    (prims.adaptive_max_pool, nn.adaptive_max_pool),
    (prims.adaptive_max_pool_backward, nn.adaptive_max_pool_backward),
    (prims.embedding_backward, nn.embedding_backward),
    (prims.resize, nn.resize),
    (prims.resize_backward, nn.resize_backward),
    (prims.dropout_noise, nn.dropout_noise),
    (prims.native_dropout, nn.native_dropout),
    (ltorch.dropout_backward, nn.dropout_backward),
    (prims.attention_dropout, attention.attention_dropout),
    (prims.attention_dropout_backward, attention.attention_dropout_backward),
    # -- normalization and losses
    (ltorch.softmax_backward, normalization.softmax_backward),
    (ltorch.log_softmax_backward, normalization.log_softmax_backward),
    (ltorch.layer_norm_forward, normalization.layer_norm_forward),
    (ltorch.layer_norm_backward, normalization.layer_norm_backward),
    (ltorch.rms_norm_backward, normalization.rms_norm_backward),
    (ltorch.group_norm_forward, normalization.group_norm_forward),
    (ltorch.group_norm_backward, normalization.group_norm_backward),
    (ltorch.batch_norm_forward, normalization.batch_norm_forward),
    (ltorch.batch_norm_backward, normalization.batch_norm_backward),
    (ltorch.instance_norm_forward, normalization.instance_norm_forward),
    (ltorch.instance_norm_backward, normalization.instance_norm_backward),
    (ltorch.nll_loss_forward, losses.nll_loss_forward),
    (ltorch.nll_loss_backward, losses.nll_loss_backward),
)

for _sym, _kernel in _IMPLEMENTATIONS:
    torch_impl(_sym)(_kernel)
