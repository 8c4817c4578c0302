# SPDX-License-Identifier: Apache-2.0
"""Convolutional networks in the manner of timm and torchvision."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import Entry, Inputs

__all__ = ["MODELS"]


def conv(cin: int, cout: int, size: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU):
    """Convolution, normalization and activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(cin, cout, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class SqueezeExcite(nn.Module):
    """Channels weighed by what the whole picture says."""

    def __init__(self, width: int, inner: int, gate: type[nn.Module] = nn.Sigmoid):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)
        self.act, self.gate = nn.SiLU(inplace=True), gate()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.act(self.reduce(x.mean((2, 3), keepdim=True)))))


def drop_path(x: Tensor, p: float, training: bool) -> Tensor:
    """Leaves out whole samples of a branch, as timm does."""
    if p == 0.0 or not training:
        return x
    keep = 1 - p
    mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
    return x * mask.div_(keep)


class Bottleneck(nn.Module):
    """ResNet's block, with groups as ResNeXt's and RegNet's."""

    def __init__(self, cin: int, cout: int, stride: int, groups: int = 1, attend: bool = False):
        super().__init__()
        inner = cout // 2
        self.body = nn.Sequential(conv(cin, inner, 1), conv(inner, inner, 3, stride, groups))
        self.attend = SqueezeExcite(inner, 4) if attend else nn.Identity()
        self.last = conv(inner, cout, 1, act=None)
        self.down = conv(cin, cout, 1, stride, act=None) if stride != 1 or cin != cout else None
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.down is None else self.down(x)
        y = self.last(self.attend(self.body(x)))
        y += short
        return self.act(y)


class ResNet(nn.Module):
    """Stem, stages, pooling, a linear layer."""

    def __init__(self, groups: int = 1, attend: bool = False):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1))
        widths = ((8, 16, 1), (16, 16, 1), (16, 32, 2))
        self.stages = nn.Sequential(*(Bottleneck(i, o, s, groups, attend) for i, o, s in widths))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(32, 5)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, LayerNorm over channels, an MLP, a scale, stochastic depth."""

    def __init__(self, width: int, drop: float):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.5))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))) * self.gamma
        return x + drop_path(y.permute(0, 3, 1, 2), self.drop, self.training)


class ConvNeXt(nn.Module):
    """Two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.first = nn.Sequential(ConvNeXtBlock(8, 0.0), ConvNeXtBlock(8, 0.4))
        self.down = nn.Conv2d(8, 16, 2, 2)
        self.second = ConvNeXtBlock(16, 0.4)
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.down(self.first(self.stem(x)))).mean([-2, -1]))


class InvertedResidual(nn.Module):
    """MobileNet-v3's and EfficientNet's block."""

    def __init__(self, cin: int, cout: int, stride: int, act: type[nn.Module], gate: type[nn.Module]):
        super().__init__()
        inner = 3 * cin
        self.expand = conv(cin, inner, 1, act=act)
        self.depthwise = conv(inner, inner, 5, stride, groups=inner, act=act)
        self.attend = SqueezeExcite(inner, 4, gate)
        self.project = conv(inner, cout, 1, act=None)
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.attend(self.depthwise(self.expand(x))))
        return x + drop_path(y, 0.2, self.training) if self.residual else y


class MobileNet(nn.Module):
    """MobileNet-v3 with hard swishes, or EfficientNet with SiLU."""

    def __init__(self, act: type[nn.Module], gate: type[nn.Module]):
        super().__init__()
        blocks = [InvertedResidual(i, o, s, act, gate) for i, o, s in ((8, 8, 1), (8, 12, 2), (12, 12, 1))]
        self.body = nn.Sequential(conv(3, 8, 3, 2, act=act), *blocks, conv(12, 24, 1, act=act))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class DenseNet(nn.Module):
    """Each layer sees all layers before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.layers = nn.ModuleList()
        width = 8
        for _ in range(4):
            self.layers.append(nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 4, 3, padding=1)))
            width += 4
        self.transition = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 8, 1), nn.AvgPool2d(2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        y = self.transition(torch.cat(features, 1))
        return self.head(F.adaptive_avg_pool2d(F.relu(y), (1, 1)).flatten(1))


class Inception(nn.Module):
    """Branches of several sizes, one of them pooled, and a second head while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = conv(3, 4, 1), nn.Sequential(conv(3, 4, 1), conv(4, 6, 3))
        self.seven = nn.Sequential(nn.Conv2d(3, 4, (1, 7), padding=(0, 3)), nn.Conv2d(4, 4, (7, 1), padding=(3, 0)))
        self.pooled = conv(3, 2, 1)
        self.aux, self.head = nn.Linear(16, 5), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor] | Tensor:
        pooled = self.pooled(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        y = torch.cat([self.one(x), self.three(x), self.seven(x), pooled], dim=1)
        y = F.local_response_norm(y, 3)
        out = self.head(F.dropout(F.max_pool2d(y, 2).amax((2, 3)), 0.3, self.training))
        return (out, self.aux(y.mean((2, 3)))) if self.training else out


class UNet(nn.Module):
    """Down, up, and a bridge at each level; odd sizes are padded."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down, self.middle = conv(3, 8), conv(8, 16), conv(16, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.leave = nn.Sequential(conv(16, 8), nn.Conv2d(8, 2, 1))
        self.refine = nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        top = self.enter(x)
        low = self.middle(self.down(F.max_pool2d(top, 2)))
        up = self.up(low)
        dy, dx = top.size(2) - up.size(2), top.size(3) - up.size(3)
        up = F.pad(up, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        y = self.refine(self.leave(torch.cat([top, up], dim=1)))
        return F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)


class Detector(nn.Module):
    """A feature pyramid with a head shared by its levels, and boxes from anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([conv(3, 8, 3, 2), conv(8, 8, 3, 2)])
        self.lateral = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in self.levels)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Conv2d(8, 2 * 5, 3, padding=1)
        self.scales = nn.ParameterList(nn.Parameter(torch.tensor(1.0 + i)) for i in range(2))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = []
        for level in self.levels:
            x = level(x)
            found.append(x)
        top = self.lateral[1](found[1])
        low = self.lateral[0](found[0]) + F.interpolate(top, size=found[0].shape[-2:], mode="nearest")
        boxes, scores = [], []
        for scale, y in zip(self.scales, (low, top)):
            raw = self.head(self.norm(y)).unflatten(1, (2, 5)).permute(0, 3, 4, 1, 2).flatten(1, 3)
            height, width = y.shape[-2:]
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            centre = torch.stack([columns, rows], -1).to(y.dtype).reshape(-1, 1, 2).expand(-1, 2, 2).reshape(-1, 2)
            size = raw[..., 2:4].exp() * scale
            boxes.append(torch.cat([centre + raw[..., :2].sigmoid() - size / 2, size], -1))
            scores.append(raw[..., 4])
        return {"boxes": torch.cat(boxes, 1), "scores": torch.cat(scores, 1).sigmoid()}


def pictures(size: int = 20) -> object:
    """Random pictures, with `other` fewer and larger ones."""

    def inputs(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        shape = (2, 3, size + 4, size + 4) if other else (3, 3, size, size)
        return {"x": torch.randn(shape, generator=generator, dtype=dtype)}

    return inputs


MODELS: list[Entry] = [
    Entry("ResNet", "CNN", ResNet, pictures()),
    Entry("RegNet", "CNN", lambda: ResNet(groups=4, attend=True), pictures()),
    Entry("ConvNeXt", "CNN", ConvNeXt, pictures()),
    Entry("MobileNet-v3", "CNN", lambda: MobileNet(nn.Hardswish, nn.Hardsigmoid), pictures()),
    Entry("EfficientNet", "CNN", lambda: MobileNet(nn.SiLU, nn.Sigmoid), pictures()),
    Entry("DenseNet", "CNN", DenseNet, pictures(12)),
    Entry("Inception", "CNN", Inception, pictures(12)),
    Entry("U-Net", "CNN", UNet, pictures(13)),
    Entry("feature pyramid detector", "CNN", Detector, pictures(12)),
]
