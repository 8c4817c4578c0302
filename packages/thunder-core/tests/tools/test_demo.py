# SPDX-License-Identifier: Apache-2.0
"""`nox -s demo`: it runs, it shows the trace, and it notices if thunder and eager disagree."""

from __future__ import annotations

import pytest
import torch

import demo
import thunder
from demo_model import Config, Llama

TINY = ["--layers", "1", "--width", "16", "--batch", "1", "--length", "8", "--repeat", "1"]


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """All parts are there, and everything agrees with eager."""
    assert demo.main(TINY) == 0
    printed = capsys.readouterr().out
    for part in (
        "def computation(",
        "return ",
        "PyTorch's own kernels",
        "logits",
        "gradients of 9 parameters",
        "forward and backward",
        'torch.compile(backend="eager")',
        "Memory saved for backward",
    ):
        assert part in printed
    assert "DIFFERS" not in printed


def test_arguments_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """A size that cannot be is rejected with the option's name."""
    with pytest.raises(SystemExit):
        demo.main(["--layers", "0"])
    assert "--layers: must be at least 1, not 0" in capsys.readouterr().err


def test_memory_saved_for_backward() -> None:
    """Each storage counts once, whole; parameters and inputs do not count. thunder saves less than eager."""
    x = torch.ones(8, requires_grad=True)
    assert demo.bytes_saved(lambda a: a.exp().sum(), torch.nn.Module(), x) == 32
    assert demo.bytes_saved(lambda a: (a * a).sum(), torch.nn.Module(), x) == 0
    assert demo.bytes_saved(lambda a: torch.stack([a, a]).exp()[0].exp().sum(), torch.nn.Module(), x) == 64 + 32
    torch.manual_seed(0)
    model = Llama(Config(layers=2, width=64, heads=4, length=128, vocabulary=11))
    idx, targets = torch.randint(11, (2, 2, 128))
    jitted = thunder.jit(model)
    eager = demo.bytes_saved(model, model, idx, targets)
    assert 0 < demo.bytes_saved(jitted, model, idx, targets) < 0.9 * eager


def test_the_model_learns() -> None:
    """The demo's model is a real one: ten steps on one batch bring the loss down."""
    torch.manual_seed(0)
    model = Llama(Config(layers=1, width=16, heads=2, length=8, vocabulary=11))
    idx = torch.randint(11, (4, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(idx, idx)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    ("got", "agrees"),
    [
        (torch.tensor([1.0, 2.0]), True),
        (torch.tensor([1.0, 2.00001]), True),
        (torch.tensor([1.0, 2.01]), False),
        (torch.tensor([1.0, float("nan")]), False),
        (torch.tensor([1.0]), False),
        (None, False),
    ],
)
def test_disagreement_is_noticed(got: torch.Tensor | None, agrees: bool) -> None:
    """Rounding passes; a wrong value, a NaN, another shape or a missing gradient does not."""
    assert demo._comparison("x", [torch.tensor([1.0, 2.0])], [got]).agrees is agrees


def test_excerpt() -> None:
    """Header, first operations without their decompositions, last line; nothing wider than a screen."""
    program = "# Constructed by X\nimport torch\n\n@torch.no_grad()\ndef computation(a, b):\n"
    program += '  # a: "cpu f32[2]"\n'
    program += "".join(f"  t{n} = add(a, b)\n    # t{n} = prims.add(a, b)\n" for n in range(9))
    program += "  return " + "t1, " * 99
    lines = demo.excerpt(program, 3).splitlines()
    assert lines[:5] == program.splitlines()[:5]
    assert lines[5:-1] == [f"  t{n} = add(a, b)" for n in range(3)] + ["  ... 6 more lines ..."]
    assert lines[-1].startswith("  return t1, ")
    assert max(map(len, lines)) <= demo.EXCERPT_WIDTH
