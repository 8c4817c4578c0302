# SPDX-License-Identifier: Apache-2.0
"""Sample calls, written by hand, of torch's public names that have no samples in thunder.

`@calls("torch.linalg.det", …)` decorates a generator `(make) -> SampleInput…`. Several names may share the same calls.
The families are in the files `samples_*.py` in this folder.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator

import torch

from thunder.core.samples import SampleInput
from thunder.tests.make_tensor import TensorMaker, seeded

__all__ = ["SAMPLES", "Maker", "calls", "samples_by_hand"]

Generator = Callable[["Maker"], Iterator[SampleInput]]

SAMPLES: dict[str, Generator] = {}


class Maker(TensorMaker):
    """`make_tensor`, with methods for the special tensors that these functions need."""

    def ints(self, *shape: int, low: int = 0, high: int = 9) -> torch.Tensor:
        """Return integers."""
        return self(*shape, dtype=torch.int64, low=low, high=high)

    def bools(self, *shape: int) -> torch.Tensor:
        """Return booleans."""
        return self(*shape, dtype=torch.bool)

    def unit(self, *shape: int) -> torch.Tensor:
        """Return numbers between zero and one."""
        return self(*shape, low=0.05, high=0.95)

    def regular(self, *shape: int) -> torch.Tensor:
        """Return invertible matrices with distinct singular values and eigenvalues."""
        return self(*shape, low=-1, high=1) + _diagonal(*shape[-2:]).to(self.dtype)

    def positive(self, *shape: int) -> torch.Tensor:
        """Return symmetric positive definite matrices."""
        a = self(*shape, low=-1, high=1)
        return a @ a.mT + torch.eye(shape[-1], dtype=a.dtype) * 2


def _diagonal(n: int, k: int) -> torch.Tensor:
    out = torch.zeros(n, k)
    out.diagonal().copy_(torch.arange(2.0, 2.0 + min(n, k)))
    return out


def calls(*paths: str) -> Callable[[Generator], Generator]:
    """Register the calls that the decorated generator yields for these names."""

    def register(generator: Generator) -> Generator:
        for path in paths:
            SAMPLES[path] = generator
        return generator

    return register


def samples_by_hand(path: str, dtype: torch.dtype = torch.float32) -> list[SampleInput]:
    """Return the calls of a name. They are reproducible."""
    with seeded(zlib.crc32(path.encode())):
        return list(SAMPLES[path](Maker("cpu", dtype)))


for _family in ("metadata", "tensors", "linalg", "fft", "special", "nn"):
    importlib.import_module(f"surface.samples_{_family}")
