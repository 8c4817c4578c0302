# SPDX-License-Identifier: Apache-2.0
"""The layouts in which norms compute images: what is a row or a column of a kernel, and where sums go.

An image has any number of dimensions of pixels after the dimensions of samples and channels. Numbers of channels have
the shape `(channels,)`, and numbers of each sample's channels the shape `(samples, channels)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.extend import dtypes

__all__ = ["ByChannel", "BySample", "ChannelsLast", "Layout", "LayoutOfSamples", "combined", "wide"]


def wide(x: Any) -> Any:
    """Convert a value to the dtype of its sums."""
    return ltorch.to(x, _wide_type(x))


def _wide_type(x: Any) -> torch.dtype:
    return torch.float64 if x.dtype is dtypes.float64 else torch.float32


def combined(means: Any, variances: Any, dims: Sequence[int]) -> tuple[Any, Any]:
    """Return the mean and variance of the union of sets of equal sizes. The dimensions are kept."""
    if all(means.shape[d] == 1 for d in dims):
        return means, variances
    mean = ltorch.mean(means, dims, keepdim=True)
    return mean, ltorch.mean(variances + (means - mean) * (means - mean), dims, keepdim=True)


class Layout(ABC):
    """Views of images in which a kernel computes them.

    Operations of a view with numbers compute in single precision by promotion. A cast of the image on its own would be
    a value that one kernel writes and another one reads.
    """

    def __init__(self, shape: Sequence[Any]):
        self.shape = tuple(shape)
        self.samples, self.channels, *pixels = self.shape
        self.pixels = math.prod(pixels)

    @abstractmethod
    def view(self, image: Any) -> Any:
        """Return the elements of an image in the order of this layout."""

    @abstractmethod
    def image(self, view: Any, dtype: Any) -> Any:
        """Return the image of a view, in another dtype."""

    @abstractmethod
    def of_channels(self, x: Any) -> Any:
        """Return numbers of channels with a shape that broadcasts to views."""

    @abstractmethod
    def line(self, view: Any, spread: Callable[[Any], Any], start: Any, slope: Any, offset: Any) -> Any:
        """Return `(view - start) * slope + offset`, of numbers that `spread` broadcasts. `offset` may be None."""

    @abstractmethod
    def statistics_of_batch(self, image: Any) -> tuple[Any, Any]:
        """Return the mean and variance of each channel."""

    @abstractmethod
    def sums_of_batch(self, view: Any) -> Any:
        """Return the sums over the samples and the pixels of each channel."""


class LayoutOfSamples(Layout):
    """A layout in which kernels also compute sums of each sample's channels."""

    @abstractmethod
    def of_samples(self, x: Any) -> Any:
        """Return numbers of each sample's channels with a shape that broadcasts to views."""

    @abstractmethod
    def statistics(self, image: Any) -> tuple[Any, Any]:
        """Return the means and variances of parts of each sample's channels, of shape `(samples, channels * parts)`."""

    @abstractmethod
    def sums(self, view: Any) -> Any:
        """Return the sums over the pixels of each sample's channels."""


class ChannelsLast(LayoutOfSamples):
    """Channels are the columns. Sums over the other dimensions are sums of columns, in one pass over the image.

    Images are multiplied by few numbers of each channel, so that kernels load few vectors.
    """

    def __init__(self, shape: Sequence[Any]):
        super().__init__(shape)
        rank = len(self.shape)
        self._last = (0, *range(2, rank), 1)
        self._second = (0, rank - 1, *range(1, rank - 1))
        self._images = tuple(range(rank - 1))  # the dimensions that are not channels
        self._pixels = self._images[1:]  # the dimensions that are neither samples nor channels

    def view(self, image: Any) -> Any:
        return image if image.ndim == 2 else ltorch.permute(image, self._last)

    def image(self, view: Any, dtype: Any) -> Any:
        found = ltorch.to(view, dtype)
        return found if view.ndim == 2 else ltorch.permute(found, self._second)

    def of_channels(self, x: Any) -> Any:
        return x

    def of_samples(self, x: Any) -> Any:
        return ltorch.reshape(x, (x.shape[0], *[1] * len(self._pixels), -1))

    def line(self, view: Any, spread: Callable[[Any], Any], start: Any, slope: Any, offset: Any) -> Any:
        return view * spread(slope) + spread(-start * slope if offset is None else offset - start * slope)

    def statistics(self, image: Any) -> tuple[Any, Any]:
        first = wide(ltorch.reshape(self._first(image, samples=self.samples), self.shape[:2]))
        return self._moments(image, first, self.of_samples(first), self._pixels, self.pixels)

    def statistics_of_batch(self, image: Any) -> tuple[Any, Any]:
        first = wide(ltorch.reshape(self._first(image, samples=1), (self.channels,)))
        return self._moments(image, first, first, self._images, self.samples * self.pixels)

    def _first(self, image: Any, samples: Any) -> Any:
        """Return the first element of each channel."""
        place = slice(samples), slice(None), *[slice(1)] * len(self._pixels)
        return image[place]

    def _moments(self, image: Any, first: Any, spread: Any, dims: Sequence[int], count: Any) -> tuple[Any, Any]:
        # Sums of distances from an element instead of from zero: the variance does not cancel if the mean is large.
        distance = self.view(image) - spread
        shift = ltorch.sum(distance, dims) / count
        squares = ltorch.sum(distance * distance, dims) / count
        return first + shift, ltorch.clamp(squares - shift * shift, min=0.0)

    def sums(self, view: Any) -> Any:
        return ltorch.sum(view, self._pixels, dtype=_wide_type(view))

    def sums_of_batch(self, view: Any) -> Any:
        return ltorch.sum(view, self._images, dtype=_wide_type(view))


class BySample(LayoutOfSamples):
    """The pixels of a sample's channel are a row, or `parts` rows if there are few channels and samples.

    Statistics and sums are reductions of rows. Sums over samples are those of small tensors of the rows' sums.
    """

    def __init__(self, shape: Sequence[Any], parts: int = 1):
        super().__init__(shape)
        self.parts = parts

    def view(self, image: Any) -> Any:
        # The dimension of parts is there if it has one element, too: a kernel reads all images by the same index.
        return ltorch.reshape(image, (self.samples, self.channels, self.parts, self.pixels // self.parts))

    def image(self, view: Any, dtype: Any) -> Any:
        return ltorch.reshape(ltorch.to(view, dtype), self.shape)

    def of_channels(self, x: Any) -> Any:
        return ltorch.reshape(x, (x.shape[0], 1, 1))

    def of_samples(self, x: Any) -> Any:
        return ltorch.reshape(x, (*x.shape, 1, 1))

    def line(self, view: Any, spread: Callable[[Any], Any], start: Any, slope: Any, offset: Any) -> Any:
        out = (view - spread(start)) * spread(slope)
        return out if offset is None else out + spread(offset)

    def statistics(self, image: Any) -> tuple[Any, Any]:
        variances, means = ltorch.var_mean(wide(self.view(image)), 3, correction=0)
        shape = self.samples, self.channels * self.parts
        return ltorch.reshape(means, shape), ltorch.reshape(variances, shape)

    def statistics_of_batch(self, image: Any) -> tuple[Any, Any]:
        means, variances = map(self._channels_first, self.statistics(image))
        mean, variance = combined(means, variances, (1,))
        return ltorch.squeeze(mean, 1), ltorch.squeeze(variance, 1)

    def sums(self, view: Any) -> Any:
        found = self._sums(view)
        return ltorch.squeeze(found, 2) if self.parts == 1 else ltorch.sum(found, 2)

    def sums_of_batch(self, view: Any) -> Any:
        return ltorch.sum(self._channels_first(self._sums(view)), 1)

    def _sums(self, view: Any) -> Any:
        return ltorch.sum(view, 3, dtype=_wide_type(view))

    def _channels_first(self, x: Any) -> Any:
        """Return numbers of rows as one row for each channel."""
        x = ltorch.permute(ltorch.reshape(x, (self.samples, self.channels, self.parts)), (1, 0, 2))
        return ltorch.reshape(x, (self.channels, self.samples * self.parts))


class ByChannel(Layout):
    """A channel's elements of all samples are a row. One kernel computes a norm of batches, and reads the image once.

    A row consists of as many pieces of memory as there are samples.
    """

    def view(self, image: Any) -> Any:
        return ltorch.permute(ltorch.reshape(image, (self.samples, self.channels, self.pixels)), (1, 0, 2))

    def image(self, view: Any, dtype: Any) -> Any:
        return ltorch.reshape(ltorch.permute(ltorch.to(view, dtype), (1, 0, 2)), self.shape)

    def of_channels(self, x: Any) -> Any:
        return ltorch.reshape(x, (x.shape[0], 1, 1))

    line = BySample.line

    def statistics_of_batch(self, image: Any) -> tuple[Any, Any]:
        variance, mean = ltorch.var_mean(wide(self.view(image)), (1, 2), correction=0)
        return mean, variance

    def sums_of_batch(self, view: Any) -> Any:
        return ltorch.sum(view, (1, 2), dtype=_wide_type(view))
