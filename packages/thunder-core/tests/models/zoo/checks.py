# SPDX-License-Identifier: Apache-2.0
"""What is checked of a model: it answers as eager does, caches its programs, learns, and generates the same tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import thunder
from zoo.entry import Entry

__all__ = ["check_branching", "check_generate", "check_outputs", "check_training", "common_tests", "tensors_of"]


def tensors_of(x: Any) -> list[torch.Tensor]:
    """The tensors of a result, those of key-value caches and of objects included."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, dict):
        return [t for v in x.values() for t in tensors_of(v)]
    if isinstance(x, (tuple, list)):
        return [t for v in x for t in tensors_of(v)]
    if hasattr(x, "__dict__"):
        return [t for v in vars(x).values() for t in tensors_of(v)]
    return []


def assert_alike(found: Any, expected: Any, tolerance: float) -> None:
    """Two results are of one class and have the same tensors."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
    ours, theirs = tensors_of(found), tensors_of(expected)
    assert len(ours) == len(theirs) > 0
    for i, (a, b) in enumerate(zip(ours, theirs)):
        torch.testing.assert_close(
            a, b, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text, i=i: f"output {i}: {text}"
        )
    assert any(t.isfinite().any() for t in theirs), "nothing to compare"


def counts(jitted: Any) -> tuple[int, int]:
    """Misses and hits."""
    return thunder.cache_misses(jitted), thunder.cache_hits(jitted)


def pair(entry: Entry) -> tuple[torch.nn.Module, torch.nn.Module, Any]:
    """The model, a copy, and the jitted copy."""
    eager = entry.module()
    twin = copy.deepcopy(eager)
    return eager, twin, thunder.jit(twin)


@torch.no_grad()
def run(model: Any, entry: Entry, seed: int, other: bool = False) -> Any:
    """What a model gives for the inputs of a seed, and random numbers of that seed."""
    torch.manual_seed(seed)
    return model(**entry.inputs(entry.dtype, seed, other))


def check_outputs(entry: Entry) -> None:
    """In eval mode, without gradients: one program for a kind of inputs, another for another shape or mask."""
    settling = entry.settling + entry.settling_in_eval
    eager, twin, jitted = pair(entry)
    eager.eval()
    jitted.eval()
    assert not twin.training

    def compare(seed: int, other: bool = False) -> None:
        expected, found = (run(model, entry, seed, other) for model in (eager, jitted))
        assert_alike(found, expected, entry.tolerance[0])

    for _ in range(settling):
        compare(0)
    traced = 1 + settling
    compare(0)
    compare(1)
    assert counts(jitted) == (traced, 1), thunder.explain(jitted)
    if entry.retraces is not None:
        compare(2, other=True)
        assert counts(jitted) == ((traced + 1, 1) if entry.retraces else (traced, 2)), thunder.explain(jitted)
        compare(3)
        assert counts(jitted)[1] == (2 if entry.retraces else 3), thunder.explain(jitted)
    for (name, a), (_, b) in zip(eager.state_dict().items(), twin.state_dict().items()):
        torch.testing.assert_close(b, a, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")


def check_training(entry: Entry) -> None:
    """In train mode, with dropout's draws: losses, gradients and buffers of three steps; then eval mode again."""
    eager, twin, jitted = pair(entry)
    eager.train()
    jitted.train()
    for step in range(3):
        results = []
        for model in (eager, jitted):
            torch.manual_seed(step)
            out = model(**entry.inputs(entry.dtype, step, False))
            loss_of(out).backward()
            results.append(out)
        assert_alike(results[1], results[0], entry.tolerance[0])
        compare_states(eager, twin, entry.tolerance)
        for model in (eager, twin):
            update(model)
    assert counts(jitted) == (1 + entry.settling, 2 - entry.settling), thunder.explain(jitted)
    eager.eval()
    jitted.eval()
    expected, found = (run(model, entry, 9) for model in (eager, jitted))
    assert_alike(found, expected, 10 * entry.tolerance[0])


def loss_of(out: Any) -> torch.Tensor:
    """A model's own loss; else a sum in which each output counts differently."""
    if isinstance(out, dict) and isinstance(out.get("loss"), torch.Tensor):
        return out["loss"]
    floats = [t for t in tensors_of(out) if t.requires_grad]
    if len(floats) == 1 and floats[0].dim() == 0:
        return floats[0]
    return sum((t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view_as(t)).mean() for t in floats)


def compare_states(eager: torch.nn.Module, twin: torch.nn.Module, tolerance: tuple[float, float]) -> None:
    """Gradients and buffers are the same, and there are some."""
    some = False
    for (name, p), (_, q) in zip(eager.named_parameters(), twin.named_parameters()):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            some = True
            torch.testing.assert_close(
                q.grad, p.grad, rtol=tolerance[1], atol=tolerance[1], msg=lambda text, name=name: f"{name}: {text}"
            )
    assert some, "nothing had a gradient"
    for (name, a), (_, b) in zip(eager.named_buffers(), twin.named_buffers()):
        torch.testing.assert_close(
            b, a, rtol=tolerance[0], atol=tolerance[0], msg=lambda text, name=name: f"{name}: {text}"
        )


@torch.no_grad()
def update(model: torch.nn.Module) -> None:
    """A step of plain gradient descent, of a bounded length."""
    for p in model.parameters():
        if p.grad is not None:
            p -= 1e-2 * p.grad.clamp(-1, 1)
            p.grad = None


def check_branching(entry: Entry) -> None:
    """Compare a model that branches on values with eager mode: outputs, losses, gradients and states."""
    eager, twin, jitted = pair(entry)
    for seed in (*range(4), *range(4)):
        eager.train(seed % 2 == 1)
        jitted.train(seed % 2 == 1)
        results = []
        for model in (eager, jitted):
            torch.manual_seed(seed)
            results.append(model(**entry.inputs(entry.dtype, seed, False)))
        expected, found = results
        assert_alike(found, expected, entry.tolerance[0])
        if eager.training:
            loss_of(expected).backward()
            loss_of(found).backward()
            # Routers compute in float32, and their gradients are sums in another order.
            compare_states(eager, twin, (entry.tolerance[0], max(entry.tolerance[1], 1e-7)))
            for model in (eager, twin):
                model.zero_grad()


MODES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "sampled": {"do_sample": True, "top_k": 20, "temperature": 0.9},
    "uncached": {"use_cache": False},
}


def check_generate(entry: Entry, mode: str) -> None:
    """The jitted model generates eager's tokens, and in the end from cached programs alone."""
    eager, _, jitted = pair(entry)
    eager.eval()
    jitted.eval()
    given = entry.inputs(entry.dtype, 0, False)
    given.pop("labels", None)
    if "attention_mask" in given and "decoder_start_token_id" not in vars(eager.config):
        given["attention_mask"] = given["attention_mask"].flip(1)  # what is generated continues on the right
    asked = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, **MODES[mode]}
    torch.manual_seed(3)
    expected = eager.generate(**given, **asked)
    misses: list[int] = []
    for _ in range(3):  # the second time a model may have kept state of the first
        torch.manual_seed(3)
        found = jitted.generate(**given, **asked)
        assert found.shape[1] >= 9
        assert torch.equal(found, expected), (found, expected)
        misses.append(thunder.cache_misses(jitted))
    assert 0 < misses[-1] == misses[-2], thunder.explain(jitted)
    assert misses[0] < 9, f"a program for each token: {thunder.explain(jitted)}"
    assert thunder.compile_stats(jitted).eager is None, thunder.explain(jitted)


def common_tests(models: Sequence[Entry], trained: Sequence[Entry] | None = None) -> tuple[Any, Any]:
    """Return the tests that all suites have: outputs in eval mode, and losses, gradients and buffers, are eager's."""

    @pytest.mark.parametrize("entry", models, ids=str)
    def test_outputs(entry: Entry) -> None:
        check_outputs(entry)

    @pytest.mark.parametrize("entry", models if trained is None else trained, ids=str)
    def test_training(entry: Entry) -> None:
        check_training(entry)

    return test_outputs, test_training
