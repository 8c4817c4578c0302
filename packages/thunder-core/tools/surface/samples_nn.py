# SPDX-License-Identifier: Apache-2.0
"""Samples of functions of neural networks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from surface.samples import Maker, calls
from thunder.core.samples import SampleInput


# -- sampling from images ---------------------------------------------------------------------------------------------
@calls("torch.affine_grid_generator", "torch.nn.functional.affine_grid")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 2, 3), [2, 1, 3, 4], False)


@calls("torch.nn.functional.grid_sample")
def _(make: Maker) -> Iterator[SampleInput]:
    for mode in ("bilinear", "nearest", "bicubic"):
        yield SampleInput(make(2, 3, 4, 5), make(2, 3, 2, 2, low=-1, high=1), mode=mode, align_corners=False)
    yield SampleInput(
        make(2, 3, 4, 5, 2), make(2, 3, 2, 2, 3, low=-1, high=1), padding_mode="border", align_corners=True
    )


@calls("torch.grid_sampler", "torch.grid_sampler_2d")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 3, 4, 5), make(2, 3, 2, 2, low=-1, high=1), 0, 0, False)


@calls("torch.grid_sampler_3d")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 3, 4, 5, 2), make(2, 3, 2, 2, 3, low=-1, high=1), 0, 0, False)


@calls("torch.nn.functional.upsample", "torch.nn.functional.upsample_bilinear",
       "torch.nn.functional.upsample_nearest")  # fmt: skip
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(1, 2, 3, 4), (5, 6))
    yield SampleInput(make(1, 2, 3, 4), scale_factor=2)


@calls("torch.native_channel_shuffle", "torch.nn.functional.native_channel_shuffle")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(1, 4, 3, 3), 2)


# -- pooling ----------------------------------------------------------------------------------------------------------
@calls("torch.nn.functional.fractional_max_pool2d", "torch.nn.functional.fractional_max_pool2d_with_indices")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(1, 2, 8, 8), 2, output_size=(4, 4))
    yield SampleInput(make(1, 2, 8, 8), 2, output_ratio=(0.5, 0.5), _random_samples=make.unit(1, 2, 2))


@calls("torch.nn.functional.fractional_max_pool3d", "torch.nn.functional.fractional_max_pool3d_with_indices")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(1, 2, 6, 6, 6), 2, output_size=(3, 3, 3))
    yield SampleInput(make(1, 2, 6, 6, 6), 2, output_size=(3, 3, 3), _random_samples=make.unit(1, 2, 3))


@calls("torch.nn.functional.max_unpool1d")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(*torch.nn.functional.max_pool1d(make(1, 2, 8), 2, return_indices=True), 2)


@calls("torch.nn.functional.max_unpool2d")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(*torch.nn.functional.max_pool2d(make(1, 2, 4, 6), 2, return_indices=True), 2)


@calls("torch.nn.functional.max_unpool3d")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(*torch.nn.functional.max_pool3d(make(1, 2, 4, 4, 4), 2, return_indices=True), 2)


# -- normalization ----------------------------------------------------------------------------------------------------
@calls("torch.batch_norm")
def _(make: Maker) -> Iterator[SampleInput]:
    for training in (True, False):
        yield SampleInput(make(4, 3), make(3), make(3), make(3), make.unit(3), training, 0.1, 1e-5, True)


@calls("torch.instance_norm")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3, 5), make(3), make(3), make(3), make.unit(3), True, 0.1, 1e-5, True)
    yield SampleInput(make(4, 3, 5), None, None, make(3), make.unit(3), False, 0.1, 1e-5, True)


@calls("torch.nn.functional.instance_norm")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3, 5), make(3), make.unit(3), make(3), make(3))
    yield SampleInput(make(4, 3, 5), make(3), make.unit(3), use_input_stats=False)
    yield SampleInput(make(4, 3, 5))


@calls("torch.native_batch_norm")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3), make(3), make(3), make(3), make.unit(3), False, 0.1, 1e-5)
    yield SampleInput(make(4, 3), make(3), make(3), None, None, True, 0.1, 1e-5)


@calls("torch.native_group_norm")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4, 3), make(4), make(4), 2, 4, 3, 2, 1e-5)


@calls("torch.native_layer_norm")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4), (4,), make(4), make(4), 1e-5)


# -- embeddings -------------------------------------------------------------------------------------------------------
@calls("torch.embedding")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 3), make.ints(2, 4, high=5))
    yield SampleInput(make(5, 3), make.ints(2, 4, high=5), 1, True, False)


@calls("torch.embedding_renorm_")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 3), make.ints(4, high=5), 1.0, 2.0)


@calls("torch.embedding_bag")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 3), make.ints(4, high=5), torch.tensor([0, 2]))


@calls("torch.nn.functional.embedding_bag")
def _(make: Maker) -> Iterator[SampleInput]:
    for mode in ("mean", "sum", "max"):
        yield SampleInput(make.ints(2, 4, high=5), make(5, 3), mode=mode)
    yield SampleInput(make.ints(5, high=5), make(5, 3), torch.tensor([0, 2]), mode="sum", per_sample_weights=make(5))


# -- recurrent layers -------------------------------------------------------------------------------------------------
def _weights(make: Maker, gates: int, inputs: int = 3, hidden: int = 2) -> list[torch.Tensor]:
    n = gates * hidden
    shapes = ((n, inputs), (n, hidden), (n,), (n,))
    return [make(*shape, low=-1, high=1) for shape in shapes]


@calls("torch.rnn_relu", "torch.rnn_tanh")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 1, 3), make(1, 1, 2), _weights(make, 1), True, 1, 0.0, True, False, False)


@calls("torch.gru")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 1, 3), make(1, 1, 2), _weights(make, 3), True, 1, 0.0, True, False, False)


@calls("torch.lstm")
def _(make: Maker) -> Iterator[SampleInput]:
    state = [make(1, 1, 2), make(1, 1, 2)]
    yield SampleInput(make(4, 1, 3), state, _weights(make, 4), True, 1, 0.0, True, False, False)
    two = [make(2, 1, 2), make(2, 1, 2)]
    layers = [*_weights(make, 4), *_weights(make, 4, inputs=2)]
    yield SampleInput(make(4, 1, 3), two, layers, True, 2, 0.5, True, False, False)  # with dropout


@calls("torch.rnn_relu_cell", "torch.rnn_tanh_cell")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3), make(4, 2), *_weights(make, 1))


@calls("torch.gru_cell")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3), make(4, 2), *_weights(make, 3))


@calls("torch.lstm_cell")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3), [make(4, 2), make(4, 2)], *_weights(make, 4))


# -- matmuls -----------------------------------------------------------------------------------------------------------
@calls("torch.conv_tbc", "torch.nn.functional.conv_tbc")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 2, 3), make(2, 3, 4), make(4))


@calls("torch.nn.functional.grouped_mm")
def _(make: Maker) -> Iterator[SampleInput]:
    kind = torch.bfloat16
    yield SampleInput(make(2, 16, 16, dtype=kind), make(2, 16, 16, dtype=kind))


@calls("torch.nn.functional.multi_head_attention_forward")
def _(make: Maker) -> Iterator[SampleInput]:
    q, k, v = (make(4, 2, 6) for _ in range(3))
    yield SampleInput(
        q, k, v, 6, 2, make(18, 6), make(18), None, None, False, 0.0, make(6, 6), make(6), need_weights=True
    )


# -- losses -----------------------------------------------------------------------------------------------------------
@calls("torch.ctc_loss", "torch.nn.functional.ctc_loss")
def _(make: Maker) -> Iterator[SampleInput]:
    x = make(6, 2, 4).log_softmax(-1)
    yield SampleInput(x, make.ints(2, 3, low=1, high=4), torch.tensor([6, 5]), torch.tensor([3, 2]))
    yield SampleInput(x, make.ints(2, 3, low=1, high=4), [6, 5], [3, 2])


@calls("torch.nn.functional.linear_cross_entropy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3), make(5, 3), make.ints(4, high=5))


@calls("torch.margin_ranking_loss")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4), make(4), make(4).sign())


@calls("torch.nn.functional.multilabel_margin_loss")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4), torch.tensor([[3, 0, -1, 1], [1, -1, 0, 2]]))


@calls("torch.poisson_nll_loss")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, low=-1, high=1), make.unit(4), True, False, 1e-8, 1)


@calls("torch.nn.functional.triplet_margin_with_distance_loss")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4), make(2, 4), make(2, 4))


# -- random numbers and quantization -----------------------------------------------------------------------------------
@calls("torch.nn.functional.gumbel_softmax")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4))
    yield SampleInput(make(2, 4), hard=True)


@calls("torch.fake_quantize_per_tensor_affine")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4), 0.1, 1, 0, 255)


@calls("torch.fake_quantize_per_channel_affine")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4), torch.tensor([0.1, 0.2]), torch.tensor([1, 2], dtype=torch.int32), 0, 0, 255)


@calls("torch.fused_moving_avg_obs_fake_quant")
def _(make: Maker) -> Iterator[SampleInput]:
    on = torch.ones(1, dtype=torch.int64)
    extremes = torch.tensor([-1.0]), torch.tensor([1.0])
    yield SampleInput(
        make(2, 4), on, on.clone(), *extremes, torch.ones(1), torch.zeros(1, dtype=torch.int32), 0.01, 0, 255, 0
    )
