# SPDX-License-Identifier: Apache-2.0
"""Draws of random numbers as arithmetic on a seed, with an executor that fuses everything and draws of generators."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
import thunder.extend
from thunder import plugins
from thunder.core.devices import cpu
from thunder.core.trace import Trace
from thunder.extend import FusionExecutor
from thunder.passes.rng_fusion import draw_of_seeds
from thunder.plugins.registry import PluginRegistry
from thunder.tests import seeded


class Fuser(FusionExecutor):
    """Says that it takes everything but matrix products, and leaves the program as it is."""

    def why_not_fusible(self, bsym: Any) -> str | None:
        return "is a matrix product" if "matmul" in bsym.sym.name else None

    def can_fuse(self, bsym: Any) -> bool:
        return self.why_not_fusible(bsym) is None and bsym.sym.executor is None

    def takes(self, bsym: Any, *, named: bool = True) -> bool:
        return self.can_execute(bsym, named=named)

    def fusion_pass(self, trace: Trace) -> Trace:
        return trace


def drawn_seeds(n: int, device: Any) -> tuple[torch.Tensor, ...]:
    """Of torch's generator."""
    return torch.randint(1 << 40, (n, 2)).unbind()


def uniform(seed: torch.Tensor, shape: Any, device: Any) -> torch.Tensor:
    """Of a generator that starts with the seed."""
    return torch.rand(tuple(shape), generator=torch.Generator().manual_seed(int(seed[0])))


@pytest.fixture
def fuser() -> Iterator[FusionExecutor]:
    """An executor that draws of seeds."""
    thunder.extend.get_default_executors()
    registry = PluginRegistry("toy")
    ex = registry.register_executor(Fuser("toy"), priority=5)
    draw_of_seeds(registry, "toy", drawn_seeds, uniform, lambda device: None, seeds_on=cpu)
    registry.close()
    registry.commit(thunder.extend, plugins.manager().catalog)  # type: ignore[arg-type]
    yield ex
    thunder.extend.deregister_executor(ex)
    plugins.manager().catalog.remove(registry.owner)


def names(jitted: Any) -> list[str]:
    """The operations of a program."""
    return [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]


def test_dropout(fuser: FusionExecutor) -> None:
    """Backward draws again of the seed that forward drew; the seeds of a program are drawn at once."""
    jitted = thunder.jit(lambda x: F.dropout(x * 2, 0.3) + F.dropout(x, 0.3), executors=[fuser])
    x = torch.ones(40, 50, requires_grad=True)
    out = jitted(x)
    assert names(jitted).count("toy_seeds") == 1
    assert names(jitted).count("toy_uniform") == 2
    for value, share in ((0, 0.09), (2 / 0.7, 0.21), (1 / 0.7, 0.21), (3 / 0.7, 0.49)):
        assert abs((out - value).abs().lt(1e-5).double().mean() - share) < 0.04
    (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    torch.testing.assert_close(gradient, out)
    backward = [op.sym.name for op in thunder.last_backward_traces(jitted)[-1].bound_symbols]
    assert backward.count("toy_uniform") == 2


def test_what_is_left_to_torch(fuser: FusionExecutor) -> None:
    """By the option, and what no fusion reads: those numbers are eager's."""
    x = torch.ones(4, 4)
    for f, options in (
        (lambda x: F.dropout(x, 0.5) * 2, {"toy_random": False}),
        (lambda x: torch.rand(4, 4) @ x, {}),
    ):
        jitted = thunder.jit(f, executors=[fuser], **options)
        torch.manual_seed(0)
        found = jitted(x)
        torch.manual_seed(0)
        torch.testing.assert_close(found, f(x))
        assert "toy_seeds" not in names(jitted)


def test_what_draws_have_to_be_like(fuser: FusionExecutor) -> None:
    """Dropout, distributions and seeds."""
    jit = functools.partial(thunder.jit, executors=[fuser])
    for jitted in (
        seeded.assert_dropout(jit, "cpu", torch.float32),
        seeded.assert_residual_dropout_norm(jit, "cpu"),
        seeded.assert_seeds_are_torchs(jit, "cpu"),
        seeded.assert_distributions(jit, "cpu", torch.float32),
    ):
        assert names(jitted).count("toy_seeds") == 1


def test_the_operators_have_samples(fuser: FusionExecutor) -> None:
    """For the conformance suite: numbers of the given seeds in several shapes, and how many seeds to draw."""
    of_numbers, of_seeds = seeded.opinfos("toy", uniform, drawn_seeds, ((1, 2), (-3, 4)))
    assert (of_numbers.name, of_seeds.name) == ("toy_uniform", "toy_seeds")
    samples = list(of_numbers.sample_inputs("cpu", torch.int64))
    assert {tuple(sample.args[0].tolist()) for sample in samples} == {(1, 2), (-3, 4)}
    for sample in samples:
        seed, shape, _ = sample.args
        assert of_numbers.torch_reference(*sample.args).shape == torch.Size(shape)
        torch.testing.assert_close(of_numbers.op(*sample.args), uniform(seed, shape, cpu))
    assert [sample.args[0] for sample in of_seeds.sample_inputs("cpu", torch.int64)] == [1, 3]
