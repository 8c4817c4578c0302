# SPDX-License-Identifier: Apache-2.0
"""Models that make data: an autoencoder that draws, a GAN, diffusion, quantized codes, a flow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from zoo.entry import Entry, Inputs

__all__ = ["MODELS"]


class VAE(nn.Module):
    """Draws a code around what the encoder says; the loss is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 16), nn.Tanh())
        self.mean, self.log_variance = nn.Linear(16, 3), nn.Linear(16, 3)
        self.decode = nn.Sequential(nn.Linear(3, 16), nn.Softplus(), nn.Linear(16, 12))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.encode(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance) if self.training else mean
        logits = self.decode(code)
        reconstruction = F.binary_cross_entropy_with_logits(logits, x.sigmoid(), reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return {"loss": (reconstruction + divergence) / x.shape[0], "made": logits.sigmoid()}


class GAN(nn.Module):
    """Both losses of one step: the generator's, and the discriminator's on real and detached made data."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(4, 8, 4), nn.BatchNorm2d(8), nn.ReLU(True), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh()
        )
        self.discriminator = nn.Sequential(
            spectral_norm(nn.Conv2d(1, 8, 4, 2, 1)), nn.LeakyReLU(0.2, inplace=True), nn.Flatten(), nn.Linear(128, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.generator(torch.randn(x.shape[0], 4, 1, 1, dtype=x.dtype))
        real, fake = self.discriminator(x), self.discriminator(made.detach())
        critic = F.binary_cross_entropy_with_logits(real, torch.ones_like(real)) + F.softplus(fake).mean()
        return F.softplus(-self.discriminator(made)).mean(), critic


def timesteps(t: Tensor, width: int) -> Tensor:
    """The embedding of a step's number."""
    half = width // 2
    rates = torch.exp(-math.log(10000) * torch.arange(half, dtype=t.dtype) / half)
    angles = t[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Step(nn.Module):
    """A residual block that is told the time."""

    def __init__(self, cin: int, cout: int):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, cin), nn.GroupNorm(4, cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.time = nn.Linear(16, 2 * cout)
        self.short = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.short(x) + self.conv2(F.dropout(F.silu(h), 0.1, self.training))


class Attend(nn.Module):
    """Attention between the places of a picture."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(4, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, c, h * w).unbind(1)
        weights = torch.softmax(torch.einsum("bci,bcj->bij", q, k) * c**-0.5, dim=-1)
        return x + self.out(torch.einsum("bij,bcj->bci", weights, v).view(b, c, h, w))


class Diffusion(nn.Module):
    """Noises pictures to drawn times, and asks a small U-Net for the noise."""

    def __init__(self, steps: int = 20):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.enter, self.leave = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)
        self.down, self.pool = Step(8, 8), nn.Conv2d(8, 16, 3, 2, 1)
        self.middle, self.attend = Step(16, 16), Attend(16)
        self.up = Step(16 + 8, 8)
        self.register_buffer("kept", torch.linspace(0.99, 0.2, steps).cumprod(0))

    def denoise(self, x: Tensor, t: Tensor) -> Tensor:
        """The noise in `x`."""
        t = self.time(timesteps(t.to(x.dtype), 8))
        top = self.down(self.enter(x), t)
        low = self.attend(self.middle(self.pool(top), t))
        return self.leave(F.silu(self.up(torch.cat([F.interpolate(low, scale_factor=2.0), top], 1), t)))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        t = torch.randint(len(self.kept), (x.shape[0],))
        noise = torch.randn_like(x)
        kept = self.kept[t].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        return {"loss": F.mse_loss(self.denoise(noisy, t), noise), "noisy": noisy}


class Quantizer(nn.Module):
    """Codes from a book that follows them: straight-through gradients, averages as buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = weight_norm(nn.Linear(6, 4)), nn.Linear(4, 6)
        self.register_buffer("book", torch.randn(5, 4))
        self.register_buffer("used", torch.ones(5))
        self.register_buffer("sums", self.book.clone())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.encode(x)
        index = torch.cdist(z, self.book).argmin(-1)
        chosen = F.embedding(index, self.book)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(index, 5).to(x.dtype)
                self.used.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.sums.lerp_(hot.t() @ z, 0.1)
                self.book.copy_(self.sums / self.used.clamp_min(1e-3)[:, None])
        straight = z + (chosen - z).detach()
        return {"loss": F.mse_loss(self.decode(straight), x) + F.mse_loss(z, chosen.detach()), "index": index}


class Flow(nn.Module):
    """Coupling layers and the likelihood of what they map."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        logdet = x.new_zeros(x.shape[0])
        for net in self.nets:
            fixed, moved = x.chunk(2, -1)
            shift, scale = net(fixed).chunk(2, -1)
            scale = torch.tanh(scale)
            x = torch.cat([moved * scale.exp() + shift, fixed], -1)
            logdet = logdet + scale.sum(-1)
        normal = torch.distributions.Normal(torch.zeros_like(x), torch.ones_like(x), validate_args=False)
        return -(normal.log_prob(x).sum(-1) + logdet).mean()


def data(*shape: int) -> Any:
    """Random data, more of it with `other`."""

    def inputs(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(5 if other else 4, *shape, generator=generator, dtype=dtype)}

    return inputs


MODELS: list[Entry] = [
    Entry("variational autoencoder", "generative", VAE, data(12)),
    Entry("GAN step", "generative", GAN, data(1, 8, 8)),
    Entry("diffusion U-Net", "generative", Diffusion, data(1, 8, 8)),
    Entry("vector quantizer", "generative", Quantizer, data(6)),
    Entry("normalizing flow", "generative", Flow, data(4)),
]
