# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder demo`: it runs, it shows the trace, and it notices when thunder and eager disagree."""

from __future__ import annotations

import argparse

import pytest
import torch

from thunder.cli import demo
from thunder.cli.demo_model import GPT, GPTConfig

TINY = ["demo", "--layers", "1", "--width", "16", "--batch", "1", "--length", "8", "--repeat", "1"]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments as the command line hands them on."""
    parser = argparse.ArgumentParser()
    demo.add_parser(parser.add_subparsers(required=True))
    return parser.parse_args(arguments)


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """All four parts are there, and everything agrees with eager."""
    args = parse(TINY)
    assert args.run(args) == 0
    printed = capsys.readouterr().out
    for part in (
        "def computation(",
        "return ",
        "logits",
        "gradients of 16 parameters",
        "forward, thunder",
        "training, eager",
    ):
        assert part in printed
    assert "DIFFERS" not in printed


def test_arguments_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """A size that cannot be is refused with the option's name."""
    with pytest.raises(SystemExit):
        parse(["demo", "--layers", "0"])
    assert "--layers: must be at least 1, not 0" in capsys.readouterr().err


def test_the_model_learns() -> None:
    """The demo's model is a real one: ten steps on one batch bring the loss down."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=1, width=16, heads=2, length=8, vocabulary=11))
    idx = torch.randint(11, (4, 8))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = model(idx, idx)
        loss.backward()
        optimiser.step()
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
