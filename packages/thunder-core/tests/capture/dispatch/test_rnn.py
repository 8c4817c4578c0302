# SPDX-License-Identifier: Apache-2.0
"""What thunder says of torch's recurrent functions is what torch gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import thunder

KINDS = (nn.LSTM, nn.GRU, nn.RNN)


def flat(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else [t for i in x for t in flat(i)]


def compare(module: nn.Module, *args: Any) -> Any:
    """Results, gradients and random numbers of a call and of the jitted one."""
    jitted = thunder.jit(module)
    params = [*module.parameters(), *(t for t in flat(args) if t.requires_grad)]
    found, expected = [], []
    for fn, into in ((jitted, found), (module, expected)):
        torch.manual_seed(1)
        out = flat(fn(*args))
        loss = sum((o * torch.linspace(0, 1, o.numel(), dtype=o.dtype).view_as(o)).sum() for o in out)
        into += [*out, *torch.autograd.grad(loss, params), torch.rand(2)]
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b)
    return jitted


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (kind, options)
        for kind, options in itertools.product(
            KINDS,
            ({}, {"num_layers": 2, "dropout": 0.5, "bidirectional": True}, {"batch_first": True, "bias": False}),
        )
    ]
    + [(nn.LSTM, {"proj_size": 2, "bidirectional": True}), (nn.RNN, {"nonlinearity": "relu"})],
    ids=str,
)
def test_modules(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    """Every kind, batched and not, with states and without."""
    torch.manual_seed(0)
    module = kind(3, 4, **options).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    jitted = compare(module, x)
    last = jitted(x)[1]
    states = tuple(t.detach() for t in last) if isinstance(last, tuple) else last.detach()
    compare(module, x, states)
    compare(module, x[0].detach())


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind: Any) -> None:
    """One step."""
    torch.manual_seed(0)
    module = kind(3, 4).double()
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    compare(module, x)
    h = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    compare(module, x, (h, h.detach()) if kind is nn.LSTMCell else h)


def test_packed_functions() -> None:
    """Sequences that are packed outside: torch's functions on the rows of all steps."""
    torch.manual_seed(0)
    module = nn.GRU(3, 4, bidirectional=True).double()
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, 3, dtype=torch.float64) for n in (4, 2, 1)])
    weights = [w for layer in module.all_weights for w in layer]
    start = torch.zeros(2, 3, 4, dtype=torch.float64)

    def f(data: torch.Tensor, sizes: torch.Tensor) -> Any:
        return torch._VF.gru(data, sizes, start, weights, True, 1, 0.0, False, True)

    found, expected = thunder.jit(f)(packed.data, packed.batch_sizes), f(packed.data, packed.batch_sizes)
    torch.testing.assert_close(found, expected)


def test_wrong_sizes() -> None:
    """torch's own refusal, while the program is traced."""
    module = thunder.jit(nn.GRU(3, 4))
    with pytest.raises(RuntimeError, match="3, got 2"):
        module(torch.ones(5, 2, 2))
    weights = list(nn.GRU(3, 4).parameters())
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        thunder.jit(lambda x: torch.gru(x, torch.zeros(1, 2, 4), weights, True, 1, 0.0, False, False, False))(
            torch.ones(5, 2, 2)
        )


class Tagger(nn.Module):
    """Reads sentences of several lengths."""

    def __init__(self, kind: type[nn.RNNBase], sort: bool):
        super().__init__()
        self.core = kind(3, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.sort = sort

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        rnn = nn.utils.rnn
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=not self.sort)
        out, state = self.core(packed)
        padded, found = rnn.pad_packed_sequence(out, batch_first=True, padding_value=-1.0)
        return padded, found, state


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("sort", [True, False])
def test_sequences_that_are_packed_inside(kind: type[nn.RNNBase], sort: bool) -> None:
    """One program for all lengths, with gradients."""
    torch.manual_seed(0)
    net = Tagger(kind, sort).double()
    jnet = thunder.jit(net)
    for lengths in ([5, 4, 2], [3, 3, 1], [5, 1, 1]):
        order = torch.tensor(lengths[::-1] if sort else lengths)
        x = torch.randn(3, 5, 3, dtype=torch.float64, requires_grad=True)
        found, expected = jnet(x, order), net(x, order)
        torch.testing.assert_close(found, expected)
        grads = [torch.autograd.grad(out[0].sin().sum(), [x, *net.parameters()]) for out in (found, expected)]
        torch.testing.assert_close(*grads)
    assert thunder.cache_misses(jnet) == 1


def test_a_list_of_lengths() -> None:
    """As constants of the program."""
    net = nn.LSTM(3, 4)

    def f(x: torch.Tensor) -> Any:
        out, _ = net(nn.utils.rnn.pack_padded_sequence(x, [4, 2]))
        return nn.utils.rnn.pad_packed_sequence(out, total_length=4)

    x = torch.randn(4, 2, 3)
    torch.testing.assert_close(thunder.jit(f)(x), f(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
def test_gradients_of_an_lstm_cell(bias: bool, used: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward does not run the cell again, whichever results have gradients."""
    torch.manual_seed(0)
    cell = nn.LSTMCell(3, 4, bias=bias).double()
    x, h, c = (torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))

    def loss(x: Any, h: Any, c: Any) -> Any:
        return sum((out.sin().sum() for out, use in zip(cell(x, (h, c)), used) if use), torch.zeros(()))

    leaves = [x, h, c, *cell.parameters()]
    expected = torch.autograd.grad(loss(x, h, c), leaves, allow_unused=True, materialize_grads=True)
    out = thunder.jit(loss)(x, h, c)
    monkeypatch.setattr(torch.autograd, "grad", None)
    out.backward()
    for leaf, gradient in zip(leaves, expected):
        torch.testing.assert_close(leaf.grad, gradient)
