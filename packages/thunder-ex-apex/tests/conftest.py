# SPDX-License-Identifier: Apache-2.0
"""Where apex cannot run, stand-ins compute on the CPU what its extensions do, with the same arguments and demands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from thunder.toolkit.testing import fallbacks_raise, is_ready, registered

os.environ.setdefault("THUNDER_VERIFY", "1")
os.environ.setdefault("THUNDER_STRICT", "1")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights and inputs are the same in each run, in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """A program that falls back to eager mode raises an error instead of a warning."""
    with fallbacks_raise():
        yield


class CrossEntropy:
    """What `xentropy_cuda` computes; it knows no rows that do not count, and reads what it is told to."""

    @classmethod
    def forward(cls, logits: Any, labels: Any, smoothing: float, half_to_float: bool) -> list[Any]:
        assert logits.ndim == 2 and labels.ndim == 1 and labels.dtype is torch.int64
        assert labels.is_contiguous() and logits.is_contiguous()
        assert half_to_float == (logits.dtype is torch.float16)
        assert logits.shape[1] >= 32, "it would read beyond the row"
        assert ((labels >= 0) & (labels < logits.shape[1])).all(), "it would read beyond the row"
        x = logits.float()
        most = x.amax(1)
        lse = most + (x - most[:, None]).exp().sum(1).log()
        of_label = x.gather(1, labels[:, None])[:, 0] - lse
        # As apex does: 0 times the sum of the logits is not left out.
        return [(lse - x.sum(1) / x.shape[1]) * smoothing - of_label * (1 - smoothing), lse]

    @classmethod
    def backward(cls, g: Any, logits: Any, lse: Any, labels: Any, smoothing: float) -> Any:
        assert g.dtype is torch.float32 and lse.dtype is torch.float32
        assert logits.is_contiguous(), "the gradient would be written in the wrong places"
        hit = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
        wanted = hit * (1 - smoothing) + smoothing / logits.shape[1]
        return (g[:, None] * ((logits.float() - lse[:, None]).exp() - wanted)).to(logits.dtype)


class Norms:
    """What `fused_layer_norm_cuda` computes, on a matrix, with statistics of one dimension."""

    @staticmethod
    def _matrix(x: Any, shape: list[int]) -> Any:
        assert x.is_contiguous() and isinstance(shape, list) and list(x.shape[x.ndim - len(shape) :]) == shape
        return x.reshape(-1, torch.Size(shape).numel()).to(torch.float64 if x.dtype is torch.float64 else torch.float32)

    @classmethod
    def forward_affine(cls, x: Any, shape: list[int], weight: Any, bias: Any, eps: float) -> list[Any]:
        m = cls._matrix(x, shape)
        mean, rstd = m.mean(1), (m.var(1, correction=0) + eps).rsqrt()
        out = (m - mean[:, None]) * rstd[:, None]
        if weight is not None:
            out = out * weight.reshape(-1) + bias.reshape(-1)
        return [out.to(x.dtype).reshape(x.shape), mean, rstd]

    @classmethod
    def forward(cls, x: Any, shape: list[int], eps: float) -> list[Any]:
        return cls.forward_affine(x, shape, None, None, eps)

    @classmethod
    def backward_affine(
        cls, g: Any, mean: Any, rstd: Any, x: Any, shape: list[int], weight: Any, bias: Any, eps: float, lean: bool
    ) -> list[Any]:
        assert mean.ndim == rstd.ndim == 1 and not lean
        normal = (cls._matrix(x, shape) - mean[:, None]) * rstd[:, None]
        return cls._backward(g, normal, rstd, x, shape, weight, bias, centred=True)

    @classmethod
    def backward(cls, g: Any, mean: Any, rstd: Any, x: Any, shape: list[int], eps: float, lean: bool) -> Any:
        return cls.backward_affine(g, mean, rstd, x, shape, None, None, eps, lean)[0]

    @classmethod
    def _backward(
        cls, g: Any, normal: Any, rstd: Any, x: Any, shape: list[int], weight: Any, bias: Any, *, centred: bool
    ) -> list[Any]:
        g = cls._matrix(g, shape)
        gx = g if weight is None else g * weight.reshape(-1)
        out = gx - normal * (gx * normal).mean(1, keepdim=True)
        if centred:
            out = out - gx.mean(1, keepdim=True)
        found = [(out * rstd[:, None]).to(x.dtype).reshape(x.shape)]
        for parameter, of in ((weight, g * normal), (bias, g)):
            found.append(None if parameter is None else of.sum(0).to(parameter.dtype).reshape(parameter.shape))
        return found

    @classmethod
    def rms_forward_affine(cls, x: Any, shape: list[int], weight: Any, eps: float) -> list[Any]:
        m = cls._matrix(x, shape)
        rstd = (m.square().mean(1) + eps).rsqrt()
        out = m * rstd[:, None]
        return [(out if weight is None else out * weight.reshape(-1)).to(x.dtype).reshape(x.shape), rstd]

    @classmethod
    def rms_forward(cls, x: Any, shape: list[int], eps: float) -> list[Any]:
        return cls.rms_forward_affine(x, shape, None, eps)

    @classmethod
    def rms_backward_affine(
        cls, g: Any, rstd: Any, x: Any, shape: list[int], weight: Any, eps: float, lean: bool
    ) -> list[Any]:
        assert rstd.ndim == 1 and not lean
        normal = cls._matrix(x, shape) * rstd[:, None]
        return cls._backward(g, normal, rstd, x, shape, weight, None, centred=False)[:2]

    @classmethod
    def rms_backward(cls, g: Any, rstd: Any, x: Any, shape: list[int], eps: float, lean: bool) -> Any:
        return cls.rms_backward_affine(g, rstd, x, shape, None, eps, lean)[0]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the executors `apex` and `apex_norm` run: a GPU with apex itself, or the CPU with the stand-ins."""
    from thunder_ex_apex import cross_entropy, norms, plugin, probe

    if is_ready("apex"):
        yield "cuda"
        return
    stand_ins = {probe.CROSS_ENTROPY: CrossEntropy, probe.NORMS: Norms}
    for module in (cross_entropy, norms):
        monkeypatch.setattr(module, "extension", stand_ins.__getitem__)
        monkeypatch.setattr(module, "unusable_device", lambda name, device: None)
    monkeypatch.setattr(plugin, "loads", lambda name: True)
    with registered("apex", plugin):
        yield "cpu"
