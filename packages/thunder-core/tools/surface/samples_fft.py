# SPDX-License-Identifier: Apache-2.0
"""Samples of Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from surface.samples import Maker, calls
from thunder.core.samples import SampleInput


def _complex(make: Maker, *shape: int) -> torch.Tensor:
    return make(*shape, dtype=torch.complex64 if make.dtype is torch.float32 else torch.complex128)


@calls("torch.fft.fft", "torch.fft.ifft", "torch.fft.hfft")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 8))
    yield SampleInput(_complex(make, 3, 8), 6, 0, norm="ortho")


@calls("torch.fft.rfft", "torch.fft.ihfft")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 8))
    yield SampleInput(make(3, 8), 6, 0, norm="ortho")


@calls("torch.fft.irfft")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(_complex(make, 3, 5))
    yield SampleInput(_complex(make, 3, 5), 7, 1, norm="forward")


@calls("torch.fft.fft2", "torch.fft.ifft2", "torch.fft.fftn", "torch.fft.ifftn")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4, 5))
    yield SampleInput(_complex(make, 2, 4, 5), (3, 4), (0, 1))


@calls("torch.fft.rfft2", "torch.fft.rfftn", "torch.fft.ihfft2", "torch.fft.ihfftn")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4, 5))
    yield SampleInput(make(2, 4, 5), (3, 4), (0, 1))


@calls("torch.fft.irfft2", "torch.fft.irfftn", "torch.fft.hfft2", "torch.fft.hfftn")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(_complex(make, 2, 4, 5))
    yield SampleInput(_complex(make, 2, 4, 5), (3, 6), (0, 1))


@calls("torch.fft.fftshift", "torch.fft.ifftshift")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 5))
    yield SampleInput(make(4, 5), 1)


@calls("torch.fft.fftfreq", "torch.fft.rfftfreq")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(5)
    yield SampleInput(6, 0.5, dtype=torch.float64)


@calls("torch.stft", "torch.Tensor.stft")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(40), 8, return_complex=True, window=torch.hann_window(8))
    yield SampleInput(make(2, 40), 8, 4, center=False, return_complex=True, window=torch.ones(8))


@calls("torch.istft", "torch.Tensor.istft")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(_complex(make, 5, 9), 8, window=torch.hann_window(8))
    yield SampleInput(_complex(make, 2, 5, 9), 8, 4, window=torch.ones(8), length=30)
