# SPDX-License-Identifier: Apache-2.0
"""Programs around a training step: scaled, averaged, accumulated, adversarial, checkpointed, or partly eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training import Training, batch, network, with_optimizer


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
