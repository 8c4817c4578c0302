# SPDX-License-Identifier: Apache-2.0
"""Optimizers and schedulers for training steps: torch's, and those that users write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR
from training import Make, Training


# -- optimizers -------------------------------------------------------------------------------------------------------
def _torchs() -> dict[str, Callable[[Iterable[Any]], Any]]:
    optim = torch.optim
    plain = ("SGD", "Adam", "AdamW", "NAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop", "Rprop")
    found: dict[str, Any] = {}
    for name in plain:
        for foreach in (False, True):
            cls, options = getattr(optim, name), {"lr": 0.01, "foreach": foreach}
            found[f"{name}, foreach={foreach}"] = lambda p, cls=cls, options=options: cls(p, **options)
    fused = {
        "Adam": {}, "Adam, amsgrad": {"amsgrad": True}, "AdamW": {"weight_decay": 0.1, "maximize": True},
        "Adagrad": {}, "SGD": {},
        "SGD, momentum": {"momentum": 0.9, "nesterov": True},
    }  # fmt: skip
    for name, options in fused.items():
        cls = getattr(optim, name.split(",")[0])
        found[f"{name}, fused"] = lambda p, cls=cls, options=options: cls(p, fused=True, **{"lr": 0.01, **options})
    found["Adam, lr in a tensor, fused"] = lambda p: optim.Adam(p, lr=torch.tensor(0.01), fused=True)
    found["SGD, momentum"] = lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
    found["AdamW, amsgrad"] = lambda p: optim.AdamW(p, lr=0.1, amsgrad=True, maximize=True)
    found["AdamW, lr in a tensor"] = lambda p: optim.AdamW(p, lr=torch.tensor(0.1))
    found["RMSprop, centered"] = lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True)
    found["two groups"] = lambda p: optim.AdamW([{"params": [*p], "lr": 0.2}], lr=0.1)
    found["ASGD"] = lambda p: optim.ASGD(p, lr=0.01)
    if hasattr(optim, "Muon"):
        found["Muon"] = lambda p: optim.Muon([x for x in p if x.ndim == 2], lr=0.01)
    return found


OPTIMIZERS = _torchs()
# Optimizers whose code branches on the step count, or on values, with the number of programs.
BRANCHING: dict[str, tuple[Any, int]] = {"RAdam": (lambda p: torch.optim.RAdam(p, lr=0.01), 3)}
if hasattr(torch.optim, "Adafactor"):
    BRANCHING["Adafactor"] = (lambda p: torch.optim.Adafactor(p, lr=0.01), 3)


class Lion(torch.optim.Optimizer):
    """The sign of an interpolation of gradients."""

    def __init__(self, params: Any):
        super().__init__(params, {"lr": 1e-2, "betas": (0.9, 0.99), "decay": 0.1})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                p.data.mul_(1 - group["lr"] * group["decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["average"] = torch.zeros_like(p)
                average = state["average"]
                p.add_(average.clone().mul_(first).add(p.grad, alpha=1 - first).sign_(), alpha=-group["lr"])
                average.mul_(second).add_(p.grad, alpha=1 - second)


def orthogonal(gradient: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Newton-Schulz iterations in bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.bfloat16()
    x = x.mT if gradient.size(-2) > gradient.size(-1) else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if gradient.size(-2) > gradient.size(-1) else x


class OrthogonalMomentum(torch.optim.Optimizer):
    """Momentum made orthogonal, like Muon."""

    def __init__(self, params: Any):
        super().__init__(params, {"lr": 0.02, "momentum": 0.95, "decay": 0.01})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if len(state) == 0:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp_(state["momentum"], group["momentum"])
                if update.ndim == 2:
                    update = orthogonal(update) * max(1, p.size(-2) / p.size(-1)) ** 0.5
                p.mul_(1 - group["lr"] * group["decay"]).add_(update.to(p.dtype), alpha=-group["lr"])


class Counting(torch.optim.Optimizer):
    """Adam whose step counts are integers, as in older user code."""

    def __init__(self, params: Any):
        super().__init__(params, {"lr": 1e-2, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p.data), v=torch.zeros_like(p.data))
                state["step"] += 1
                state["m"].mul_(first).add_(p.grad, alpha=1 - first)
                state["v"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                rate = group["lr"] * math.sqrt(1 - second ** state["step"]) / (1 - first ** state["step"])
                p.data.addcdiv_(state["m"], state["v"].sqrt().add_(1e-8), value=-rate)


class Curvature(torch.optim.Optimizer):
    """An estimate of curvature that is updated at every third step, like Sophia."""

    def __init__(self, params: Any):
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state.update(step=torch.tensor(0.0), m=torch.zeros_like(p), h=torch.zeros_like(p))
                state["step"] += 1
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                if int(state["step"]) % 3 == 1:
                    state["h"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                ratio = (state["m"].abs() / (0.24 * state["h"] + 1e-15)).clamp(None, 1)
                p.addcmul_(state["m"].sign(), ratio, value=-group["lr"])


class Factored(torch.optim.Optimizer):
    """Second moments as an outer product, with rates relative to the step count, like Transformers' Adafactor."""

    def __init__(self, params: Any):
        super().__init__(params, {"decay": -0.8})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state.update(step=0, rows=torch.zeros(p.shape[:1]), columns=torch.zeros(p.shape[-1:]))
                state["step"] += 1
                decay = 1.0 - math.pow(state["step"], group["decay"])
                square = p.grad**2 + 1e-30
                state["rows"].mul_(decay).add_(square.reshape(p.shape[0], -1).mean(1), alpha=1 - decay)
                state["columns"].mul_(decay).add_(square.reshape(-1, p.shape[-1]).mean(0), alpha=1 - decay)
                rows = (state["rows"] / state["rows"].mean()).rsqrt_()
                factor = rows.unsqueeze(-1) * state["columns"].rsqrt() if p.ndim == 2 else state["columns"].rsqrt()
                update = factor * p.grad
                update.div_((update.norm(2) / update.numel() ** 0.5).clamp_(min=1.0))
                p.add_(update, alpha=-min(1e-2, 1.0 / math.sqrt(state["step"])))


@torch.library.custom_op("thunder_tests::eight_bit_update", mutates_args=("p", "m"))
def eight_bit_update(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, scale: float, step: int) -> None:
    average = m.float() * 0.9 / scale + g * 0.1
    m.copy_((average * scale).round().clamp(-127, 127).to(torch.int8))
    p.sub_(0.1 * average / step)


class EightBit(torch.optim.Optimizer):
    """State in int8, updated by a custom operation."""

    def __init__(self, params: Any):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[p]
            if not state:
                state.update(step=0, m=torch.zeros_like(p, dtype=torch.int8))
            state["step"] += 1
            eight_bit_update(p, p.grad, state["m"], 16.0, state["step"])


# With the number of programs. Integers that count steps become inputs when they have changed twice.
USERS = {Lion: 2, OrthogonalMomentum: 2, Counting: 4, Curvature: 3, Factored: 4, EightBit: 4}


# -- schedulers -------------------------------------------------------------------------------------------------------
def _warmup(step: int) -> float:
    return (step + 1) / 10 if step < 10 else 0.5 * (1 + math.cos(math.pi * (step - 10) / 90))


def _chained(o: Any) -> Any:
    return schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.1, 10), schedulers.ExponentialLR(o, 0.9)])


def _sequential(o: Any) -> Any:
    both = [schedulers.LinearLR(o, 0.1, total_iters=10), schedulers.CosineAnnealingLR(o, 90)]
    return schedulers.SequentialLR(o, both, [10])


def _one_cycle(o: Any) -> Any:
    return schedulers.OneCycleLR(o, 0.1, 120, cycle_momentum=any(n in o.defaults for n in ("momentum", "betas")))


# With the number of programs for 100 steps: three before the learning rate is an input, and one for each combination of
# branches of the scheduler's own code. First for schedulers that step inside of the program, then outside of it.
SCHEDULERS: dict[str, tuple[Callable[[Any], Any], int, int]] = {
    "LambdaLR": (lambda o: schedulers.LambdaLR(o, lambda step: 0.95**step), 3, 3),
    "warmup": (lambda o: schedulers.LambdaLR(o, _warmup), 4, 3),
    "MultiplicativeLR": (lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.95), 3, 3),
    "StepLR": (lambda o: schedulers.StepLR(o, 10), 8, 4),
    "MultiStepLR": (lambda o: schedulers.MultiStepLR(o, [10, 20]), 8, 4),
    "ConstantLR": (lambda o: schedulers.ConstantLR(o, 0.5, 10), 6, 3),
    "LinearLR": (lambda o: schedulers.LinearLR(o, 0.5, total_iters=20), 4, 3),
    "ExponentialLR": (lambda o: schedulers.ExponentialLR(o, 0.95), 3, 3),
    "PolynomialLR": (lambda o: schedulers.PolynomialLR(o, 80, 2.0), 5, 3),
    "CosineAnnealingLR": (lambda o: schedulers.CosineAnnealingLR(o, 80), 5, 3),
    "CosineAnnealingWarmRestarts": (lambda o: schedulers.CosineAnnealingWarmRestarts(o, 20, 2), 7, 3),
    "CyclicLR": (lambda o: schedulers.CyclicLR(o, 0.001, 0.1, 10, cycle_momentum=False), 4, 3),
    "OneCycleLR": (_one_cycle, 4, 3),
    "SequentialLR": (_sequential, 7, 3),
    "ChainedScheduler": (_chained, 4, 3),
    "ReduceLROnPlateau": (lambda o: schedulers.ReduceLROnPlateau(o, patience=3), 14, 4),
    "SWALR": (lambda o: SWALR(o, 0.01, anneal_epochs=10), 5, 3),
}  # fmt: skip


def allowed(name: str, inside: bool) -> dict[str, int]:
    """Return what is allowed for a scheduler. One that branches on the loss has rare combinations of branches."""
    rare = inside and name == "ReduceLROnPlateau"
    return {"programs": SCHEDULERS[name][1 if inside else 2], "eager": 6 if rare else 0}


def with_scheduler(scheduler: Callable[[Any], Any], optimizer: Callable[[Any], Any], *, inside: bool) -> Make:
    def training(net: nn.Module) -> Training:
        opt = optimizer(net.parameters())
        made = scheduler(opt)
        of_loss = isinstance(made, schedulers.ReduceLROnPlateau)

        def step(x: Any, y: Any) -> Any:
            opt.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            opt.step()
            if inside:
                made.step(loss) if of_loss else made.step()
            return loss

        def between(k: int) -> None:
            if not inside:
                made.step(1.0) if of_loss else made.step()

        return Training(step, (opt,), between)

    return training
