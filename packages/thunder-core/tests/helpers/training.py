# SPDX-License-Identifier: Apache-2.0
"""Training steps for tests: optimizers, schedulers, and programs around them, compared with eager mode to the bit."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

import thunder


class Training(NamedTuple):
    """A step, and what it leaves: `kept` have a `state_dict`. `between(k)` runs eagerly after call `k`."""

    step: Callable[..., Any]
    kept: tuple[Any, ...] = ()
    between: Callable[[int], None] = lambda k: None


Make = Callable[[nn.Module], Training]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def batch(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(k)
    return torch.randn(6, 4, generator=g), torch.randn(6, 1, generator=g)


# -- comparison -------------------------------------------------------------------------------------------------------
def copied(x: Any) -> Any:
    """Return a structure with copies of its tensors, without their graphs."""
    if isinstance(x, torch.Tensor):
        return x.detach().clone()
    if isinstance(x, dict):
        return [(copied(k), copied(v)) for k, v in x.items()]
    return [copied(i) for i in x] if isinstance(x, (tuple, list)) else x


def same(found: Any, expected: Any) -> bool:
    """Compare to the bit; NaN equals NaN."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, torch.Tensor):
        alike = (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        return alike and torch.equal(found.nan_to_num(), expected.nan_to_num())
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected) or (found != found and expected != expected)


def trained(make: Make, jit: Callable[..., Any], calls: int) -> tuple[Any, list[Any], list[bool]]:
    """Return the jitted step, what each call left, and whether its objects are those of the call before."""
    net = network()
    training = make(net)
    step = jit(training.step)
    left, kept = [], []
    objects: list[Any] = []
    for k in range(calls):
        result = copied(step(*batch(k)))
        gradients = [p.grad for p in net.parameters()]
        left.append([result, *map(copied, (list(net.parameters()), gradients))])
        left[-1] += [copied(x.state_dict()) for x in training.kept]
        training.between(k)
        tensors = [*net.parameters()]
        for x in training.kept:
            if isinstance(x, torch.optim.Optimizer):
                tensors += [v for s in x.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        kept.append([id(x) for x in tensors[: len(objects)]] == [id(x) for x in objects])
        objects = tensors
    return step, left, kept


def check(
    make: Make,
    *,
    calls: int,
    programs: int | None = None,
    eager: int = 0,
    reason: str | None = None,
) -> Any:
    """Compare a training step with eager mode, call by call, and the number of programs with the one allowed.

    At most `eager` calls run eagerly because a new path is not worth a program. A step for a `reason` is partly eager,
    and traced once.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, expected, kept = trained(make, lambda f: f, calls)
        jitted, found, kept_too = trained(make, thunder.jit, calls)
    for k, (a, b) in enumerate(zip(found, expected)):
        assert same(a, b), f"call {k}"
    assert kept_too == kept
    why = thunder.explain(jitted)
    if reason is not None:
        assert reason in why and thunder.cache_misses(jitted) == 1, why
    elif programs is not None:
        assert thunder.cache_misses(jitted) <= programs, why
        assert thunder.cache_misses(jitted) + thunder.cache_hits(jitted) >= calls - eager, why
    return jitted


def with_optimizer(make: Callable[[Iterable[Any]], Any], **options: Any) -> Make:
    def training(net: nn.Module) -> Training:
        optimizer = make(net.parameters())

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad(**options)
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return Training(step, (optimizer,))

    return training


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


# -- programs ---------------------------------------------------------------------------------------------------------
def _adamw(net: nn.Module, **options: Any) -> Any:
    return torch.optim.AdamW(net.parameters(), lr=0.01, **options)


def scaled(net: nn.Module, **options: Any) -> Training:
    """Gradients are scaled, and clipped. Every fifth loss overflows."""
    optimizer = options.get("make", _adamw)(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        if options.get("clip", True):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(overflowing(step), (optimizer, scaler))


def overflowing(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step for inputs that make every fifth loss infinite."""
    counter = torch.zeros((), dtype=torch.int64)

    def overflow(x: Any, y: Any) -> Any:
        counter.add_(1)
        return step(x, torch.where(counter % 5 == 4, torch.full_like(y, 1e38), y))

    return overflow


def scaled_fused(net: nn.Module) -> Training:
    return scaled(net, make=lambda net: _adamw(net, fused=True), clip=False)


def autocast(net: nn.Module) -> Training:
    optimizer, scaler = _adamw(net), torch.amp.GradScaler("cpu")

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(net(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(step, (optimizer, scaler))


def closure(net: nn.Module) -> Training:
    optimizer = _adamw(net)

    def step(x: Any, y: Any) -> Any:
        def evaluated() -> Any:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            return loss

        return optimizer.step(evaluated)

    return Training(step, (optimizer,))


def averaged(net: nn.Module) -> Training:
    optimizer, average = _adamw(net), AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(net)
        return loss.item()

    return Training(step, (optimizer, average))


def exponential_average(net: nn.Module) -> Training:
    """And gradients that are set to zero."""
    optimizer, average = _adamw(net), copy.deepcopy(net).requires_grad_(False)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(average.parameters(), net.parameters()):
                a.lerp_(b, 0.1)
        return loss.detach()

    return Training(step, (optimizer, average))


def accumulated(net: nn.Module) -> Training:
    optimizer = _adamw(net)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        total = 0.0
        for i in range(4):
            loss = F.mse_loss(net(x * (i + 1)), y) / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return Training(step, (optimizer,))


def accumulated_across_calls(net: nn.Module) -> Training:
    optimizer = _adamw(net)
    calls = [0]

    def step(x: Any, y: Any) -> Any:
        loss = F.mse_loss(net(x), y) / 4
        loss.backward()
        calls[0] += 1
        if calls[0] % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return Training(step, (optimizer,))


def updated_between_calls(net: nn.Module) -> Training:
    optimizer = _adamw(net)

    def step(x: Any, y: Any) -> Any:
        loss = F.mse_loss(net(x), y) / 4
        loss.backward()
        return loss.item()

    def between(k: int) -> None:
        if k % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()

    return Training(step, (optimizer,), between)


def adversarial(net: nn.Module) -> Training:
    """Two models with an optimizer each."""
    judge, head = network(5), nn.Linear(1, 4)
    makes = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=0.01, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        made = head(net(x))
        judges.zero_grad()
        one = F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()
        one.backward()
        judges.step()
        makes.zero_grad()
        other = F.softplus(-judge(made)).mean()
        other.backward()
        makes.step()
        return one.item(), other.item()

    return Training(step, (makes, judges, judge, head))


def retained(net: nn.Module) -> Training:
    optimizer = _adamw(net)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        out = net(x)
        loss = F.mse_loss(out, y)
        loss.backward(retain_graph=True)
        (out.abs().mean() * 0.1).backward()
        optimizer.step()
        return loss.detach()

    return Training(step, (optimizer,))


def by_autograd(net: nn.Module) -> Training:
    optimizer, params = _adamw(net), [*net.parameters()]

    def step(x: Any, y: Any) -> Any:
        for p, g in zip(params, torch.autograd.grad(F.mse_loss(net(x), y), params)):
            p.grad = g
        optimizer.step()
        optimizer.zero_grad()

    return Training(step, (optimizer,))


def frozen(net: nn.Module) -> Training:
    """A layer is frozen and thawed between calls."""
    training = with_optimizer(lambda p: torch.optim.AdamW(p, lr=0.01))(net)
    return training._replace(between=lambda k: net[0].requires_grad_(k % 2 == 1) and None)


def regrouped(net: nn.Module) -> Training:
    """Groups are added and changed, and the state is read and loaded between calls."""
    optimizer = torch.optim.SGD(net[0].parameters(), lr=0.01)
    step = with_optimizer(lambda p: optimizer)(net).step

    def between(k: int) -> None:
        if k == 2:
            optimizer.add_param_group({"params": net[2].parameters(), "lr": 0.1})
        if k == 4:
            optimizer.param_groups[0]["weight_decay"] = 0.1
        if k == 5:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    return Training(step, (optimizer,), between)


def measured(net: nn.Module) -> Training:
    optimizer = _adamw(net)
    history: list[float] = []

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        out = net(x)
        loss = F.mse_loss(out, y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        right = ((out > 0) == (y > 0)).sum().item()
        history.append(loss.item())
        return loss.item(), right, right / len(y), norm, len(history)

    return Training(step, (optimizer,))


def checkpointed(net: nn.Module) -> Training:
    """And evaluated between calls."""
    optimizer = _adamw(net)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        hidden = torch.utils.checkpoint.checkpoint(lambda x: net[1](net[0](x)), x, use_reentrant=False)
        loss = F.mse_loss(net[2](hidden), y)
        loss.backward()
        optimizer.step()
        return loss

    def between(k: int) -> None:
        with torch.no_grad():
            net.eval()(batch(k)[0])
        net.train()

    return Training(step, (optimizer,), between)


# With the number of programs.
PROGRAMS = {
    scaled: 4, scaled_fused: 3, autocast: 2, closure: 2, averaged: 3, exponential_average: 2, accumulated: 2,
    accumulated_across_calls: 8, updated_between_calls: 2, adversarial: 2, retained: 2, by_autograd: 2, frozen: 3,
    regrouped: 6, measured: 4, checkpointed: 3,
}  # fmt: skip


# -- programs that are partly eager -----------------------------------------------------------------------------------
def lbfgs(net: nn.Module, **options: Any) -> Training:
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, **options)
    return closure(net)._replace(step=_closure_step(net, optimizer), kept=(optimizer,))


def _closure_step(net: nn.Module, optimizer: Any) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        def evaluated() -> Any:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            return loss

        return optimizer.step(evaluated)

    return step


def lbfgs_with_line_search(net: nn.Module) -> Training:
    return lbfgs(net, line_search_fn="strong_wolfe")


def sparse(net: nn.Module) -> Training:
    embedding = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(net(embedding((x[:, 0] * 10).long().clamp(0, 9)) + x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Training(step, (optimizer, embedding))


PARTLY_EAGER = {
    lbfgs: "the program calls LBFGS.step",
    lbfgs_with_line_search: "the program calls LBFGS.step",
    sparse: "whose gradient is sparse",
}
