# SPDX-License-Identifier: Apache-2.0
"""`torch.distributions` with their checks of values (`validate_args`), which are made when the program runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributions as D

import thunder

PROGRAMS: dict[str, Any] = {
    "normal": lambda p: (D.Normal(p, p.exp()).rsample(), D.Normal(p, p.exp()).log_prob(p * 2)),
    "categorical": lambda p: (D.Categorical(logits=p).sample(), D.Categorical(probs=p.softmax(-1)).entropy()),
    "divergence": lambda p: D.kl_divergence(D.Normal(p, p.exp()), D.Normal(torch.zeros(4), torch.ones(4))),
    "multivariate": lambda p: D.MultivariateNormal(torch.zeros(4), torch.eye(4)).log_prob(p),
    "transformed": lambda p: D.TransformedDistribution(D.Normal(p, 1.0), [D.TanhTransform(cache_size=1)]).rsample(),
    "exponential": lambda p: D.Exponential(p.exp()).rsample((2,)),
    "uniform": lambda p: D.Uniform(p - 1, p + 1).log_prob(p),
    "geometric": lambda p: D.Geometric(p.sigmoid()).log_prob(torch.ones(3, 4)),
    "mixture": lambda p: D.MixtureSameFamily(D.Categorical(logits=p), D.Normal(p, p.exp())).log_prob(p[:, 0]),
    "dirichlet": lambda p: D.Dirichlet(p.exp()).log_prob(p.softmax(-1)),
}


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile turns the checks off for the whole process."""
    monkeypatch.setattr(D.Distribution, "_validate_args", True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_samples_and_gradients(name: str) -> None:
    fn = PROGRAMS[name]
    jitted = thunder.jit(fn)
    for seed in range(2):
        p = torch.randn(3, 4, requires_grad=True)
        found = []
        for run in (jitted, fn):
            torch.manual_seed(seed)
            out = run(p)
            parts = out if isinstance(out, tuple) else (out,)
            smooth = [part.sum() for part in parts if part.requires_grad]
            found.append((out, torch.autograd.grad(sum(smooth), p) if smooth else None))
        torch.testing.assert_close(*found)
    assert thunder.cache_misses(jitted) == 1


def test_wrong_values_are_errors_of_the_call() -> None:
    jitted = thunder.jit(lambda mean, scale, x: D.Normal(mean, scale).log_prob(x))
    good = torch.zeros(2), torch.ones(2), torch.ones(2)
    torch.testing.assert_close(jitted(*good), D.Normal(*good[:2]).log_prob(good[2]))
    for bad in (
        (good[0], -good[1], good[2]),
        (good[0] / 0, good[1], good[2]),
        (good[0], good[1], good[2] * float("nan")),
    ):
        with pytest.raises(ValueError, match="Expected") as expected:
            D.Normal(*bad[:2]).log_prob(bad[2])
        with pytest.raises(ValueError, match="Expected") as found:
            jitted(*bad)
        assert str(found.value) == str(expected.value)
    assert thunder.cache_misses(jitted) == 1


def test_without_checks_there_are_none() -> None:
    jitted = thunder.jit(lambda x: D.Normal(x, x, validate_args=False).log_prob(x))
    x = -torch.ones(2)
    torch.testing.assert_close(jitted(x), D.Normal(x, x, validate_args=False).log_prob(x), equal_nan=True)
    assert "item" not in str(thunder.last_traces(jitted)[0])


def test_other_branches_are_decided() -> None:
    """They are no checks: the program goes on if the condition is false."""
    jitted = thunder.jit(lambda x: x if D.constraints.positive.check(x).all() else x * 2)
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2)):
        assert torch.equal(jitted(x), x if x[0] > 0 else x * 2)
