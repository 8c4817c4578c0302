# SPDX-License-Identifier: Apache-2.0
"""Numbers that are made of tensors, where no branch depends on them: one program serves all values."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from math import exp as exponential
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import thunder


def t(*values: Any) -> torch.Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values)


X = torch.arange(6.0) - 2
N = tuple((X, t(n)) for n in (2, 4, 0, 9, -2, -9))
INSIDE = tuple((X, t(n)) for n in (2, 4, 0))


class Flags(nn.Module):
    """Keeps what it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.flag, self.log = 0.0, False, []

    def forward(self, x: Any) -> Any:
        self.total += float(x.sum())
        self.flag = bool(x.sum() > 0)
        self.log.append(int(x.max()))
        return x * 2, self.total, self.flag


PROGRAMS: dict[str, tuple[Callable[..., Any], Any]] = {
    "int": (lambda x: (x * int(x.sum()), int(x.max()) + 1), ((X,), (X + 7,), (-X,))),
    "float": (lambda x: (float(x.sum()), float(x.max()) / 2), ((X,), (X * 2,))),
    "float of an int": (lambda x: float(x.long().sum()) * x, ((X,), (X * 2,))),
    "bool": (lambda x: (bool(x.sum() > 0), bool(x.sum())), ((X,), (-X,), (X * 0,))),
    "item of a bool": (lambda x: (x.sum() > 0).item(), ((X,), (-X,))),
    "bool times tensor": (lambda x: x * (x.sum() > 0).item(), ((X,), (-X,))),
    "bools in sums": (lambda x: (x[0] > 0).item() + (x[1] > 0).item() + int((x > 1).any()), ((X,), (-X,))),
    "an int of a bool": (lambda x: int((x > 9).any()), ((X,), (X * 9,))),
    "lists": (lambda x: ((x > 0).tolist(), [int(v) for v in x]), ((X,), (-X,))),
    "types": (lambda x: (type(int(x[0])) is int, isinstance(float(x[0]), float), int("3")), ((X,), (-X,))),
    "tensors of numbers": (
        lambda x: (torch.tensor([x.sum().item(), 2.0]), torch.tensor(int(x.max())), torch.as_tensor([1, int(x[0])])),
        ((X,), (X * 2,)),
    ),
    "a slice": (lambda x, n: (x[: n.item()] * 2, x[n.item() :], x[1 : int(n)]), N),
    "both ends": (lambda x, n: x[n[0].item() : n[1].item()], [(X, t(1, 3)), (X, t(3, 1)), (X, t(-3, 9))]),
    "two of one size": (lambda x, n: x[: int(n)] + x.flip(0)[: int(n)], N),
    "a step": (lambda x, n: x[: n.item() : 2], N[:4]),
    "of what a mask left": (lambda x, n: x[x > 0][:2], INSIDE),
    "an index": (lambda x, n: (x[n.item()], x[int(n)]), (*INSIDE, (X, t(-1)))),
    "a write to a slice": (lambda x, n: x.clone().index_fill_(0, t(1), 5.0)[: int(n)].fill_(3), INSIDE),
    "narrow": (lambda x, n: (x.narrow(0, 0, n.item()), torch.arange(n.item())), INSIDE),
    "split": (lambda x, n: torch.split(x, [int(n), 6 - int(n)]), INSIDE),
    "reshape": (lambda x, n: x.reshape(n.item(), -1), [(X, t(2)), (X, t(3)), (X, t(6))]),
    "functions": (
        lambda x: (x * math.sqrt(x[-1].item()), math.log(x[-1].item(), 3), exponential(x[0].item()), math.isnan(x[0])),
        ((X,), (X * 2,)),
    ),
    "functions of integers": (
        lambda x, n: (math.sqrt(int(n)), math.gcd(int(n), 6), math.factorial(n.item()), int(n).bit_length()),
        INSIDE[:2],
    ),
    "the largest": (
        lambda x: (
            max(x[0].item(), 0.5),
            min(x[0].item(), x[1].item()),
            max(x.tolist()),
            min(float(v) for v in x),
            x * max(int(x[0]), 1),
            max(int(x[0]), int(x[1]), 2),
        ),
        ((X,), (-X,), (X * float("nan"),))[:2],
    ),
    "rounded": (lambda x: (round(x[-1].item() / 7, 2), divmod(x[-1].item(), 2), abs(int(x[0]))), ((X,), (-X,))),
    "powers": (lambda x: (x ** x[-1].item(), x[-1].item() ** 2, x[-1].item() ** -1.5), ((X,), (X + 9,))),
    "what is compared": (
        lambda x: (
            x[0].item() > 0,
            int(x[0]) == -2,
            (int(x[0]) == 3) + 1,
            (x[0].item() > 0) & (x[1].item() < 9),
            x * (x[0].item() > 0),
            x[0].item() != x[1].item(),
            torch.tensor(x[0].item() > 0),
            x[0].item().is_integer(),
        ),
        ((X,), (-X,)),
    ),
    "complex numbers": (
        lambda x: (
            (x + 1j).sum().item(),
            x * (x * 1j).sum().item(),
            abs((x + 2j)[0].item()),
            complex(x[0]) + 1,
            (x + 1j)[0].item().conjugate() * 2.0,
            (x - 1j)[1].item().imag,
            1j * x[0].item(),
            (x + 1j).tolist(),
        ),
        ((X,), (-X,)),
    ),
    "lengths": (lambda x: (len(x[x > 0]), len((x > 0).nonzero()), torch.ones(len(x[x > 0])), len(x)), ((X,), (-X,))),
    "new ones of that length": (
        lambda x, n: (
            torch.eye(int(n)),
            x[None].expand(int(n), -1),
            x.repeat(int(n), 2),
            x.new_zeros(n.item(), 2),
            F.pad(x, (0, int(n))),
            F.one_hot(x.abs().long(), int(x.max()) + 3),
            x.topk(int(n)).values,
            x.repeat_interleave(n.item()),
            torch.arange(1, n.item() + 1, 2),
        ),
        INSIDE[:2],
    ),
    "a mask of lengths": (lambda x, n: torch.arange(int(n.max()))[None] < n[:, None], [(X, t(2, 3)), (X, t(5, 1))]),
}


def same(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    elif isinstance(a, (tuple, list)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert type(a) is type(b) and a == b


def one_program_for(f: Any, calls: Any) -> None:
    """Compiled once it gives what Python gives for all these arguments."""
    jf = thunder.jit(f)
    for args in calls:
        same(jf(*args), f(*args))
    assert thunder.cache_misses(jf) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_for_all_values(name: str) -> None:
    f, calls = PROGRAMS[name]
    one_program_for(f, calls)


def test_a_write_through_a_slice() -> None:
    def f(x: Any, n: Any) -> Any:
        y = x.clone()
        y[: n.item()] = 0
        y[n.item()] = 5.0
        z = y[int(n) :]
        z += 1
        return y

    one_program_for(f, INSIDE)


def test_gradients_flow_through_slices() -> None:
    def f(x: Any, n: Any) -> Any:
        return (x[: n.item()] * x.flip(0)[: int(n)]).sum() + x[n.item()]

    jf = thunder.jit(f)
    for n in (2, 5, 3):
        x = torch.randn(6, requires_grad=True)
        (got,), (wanted,) = (torch.autograd.grad(g(x, t(n)), x) for g in (jf, f))
        torch.testing.assert_close(got, wanted)
    assert thunder.cache_misses(jf) == 1


def test_an_index_out_of_bounds_is_torchs_error() -> None:
    jf = thunder.jit(lambda x, n: x[n.item()])
    assert jf(X, t(1)) == X[1]
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        jf(X, t(6))


def test_what_is_kept_is_a_number() -> None:
    net, other = Flags(), Flags()
    jnet = thunder.jit(net)
    for _ in range(5):
        x = torch.randn(4) * 3
        same(jnet(x), other(x))
        assert (net.total, net.flag, net.log) == (other.total, other.flag, other.log)
        assert type(net.flag) is bool and {type(n) for n in net.log} == {int}
    assert thunder.cache_misses(jnet) <= 3


def test_the_names_are_python_s_again() -> None:
    def f(x: Any) -> Any:
        return int(x.sum()), float(x.sum()), bool(x.sum())

    seen: list[Any] = []

    def elsewhere() -> None:
        seen.append((int("3"), float(2), bool(0), isinstance(3, int), issubclass(bool, int)))

    @thunder.jit
    def g(x: Any) -> Any:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return f(x)

    assert g(X) == f(X)
    assert set(seen) == {(3, 2.0, False, True, True)}
    assert not {"int", "float", "bool"} & set(globals())
    with pytest.raises(RuntimeError, match=r"thunder\.disable"):
        thunder.trace()(lambda x: x if int(x.sum()) else -x, X)
    assert not {"int", "float", "bool"} & set(globals())


def test_symbolic_numbers_in_conversions() -> None:
    def f(x: Any, scale: float) -> Any:
        return x * int(scale), float(x.shape[0]), int(x.sum())

    jf = thunder.jit(f, cache="symbolic values")
    for n, scale in ((3, 2.5), (4, 2.5), (5, 3.5)):
        same(jf(torch.ones(n), scale), f(torch.ones(n), scale))


def test_gradients_with_numbers_of_the_program() -> None:
    def f(x: Any) -> Any:
        n = int(x.detach().abs().max())
        wide = F.pad(x, (0, n)) * math.sqrt(n + 1) + torch.zeros(6 + n)
        return (wide * max(x.mean().item(), 0.5)).sum() + x.topk(n).values.sum() + (x ** x.max().item())[-1]

    jf = thunder.jit(f)
    for top in (2.0, 5.0, 3.0):
        x = torch.linspace(0, top, 6, requires_grad=True)
        (got,), (wanted,) = (torch.autograd.grad(g(x), x) for g in (jf, f))
        torch.testing.assert_close(got, wanted)
    assert thunder.cache_misses(jf) == 1


def test_a_number_that_a_function_refuses_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    jf = thunder.jit(lambda x: x * math.sqrt(x[0].item()))
    same(jf(X + 3), (X + 3) * math.sqrt(1.0))
    with pytest.raises(ValueError, match=r"math domain error|expected a nonnegative input"):
        jf(X)
    monkeypatch.setenv("THUNDER_STRICT", "0")
    with pytest.warns(thunder.FallbackWarning, match="math domain error"):  # the program has no complex numbers
        assert thunder.jit(lambda x: x[0].item() ** 0.5)(X) == X[0].item() ** 0.5
    lengths = thunder.jit(lambda x: torch.zeros(int(x[0])))
    same(lengths(X + 4), torch.zeros(2))
    with pytest.raises(RuntimeError, match=r"negative dimension|must be non-negative"):
        lengths(X)


def test_functions_are_python_s_again() -> None:
    before = math.sqrt, max, math.exp
    f = lambda x: x if math.sqrt(x[-1].item()) > max(x[0].item(), 1.0) else exponential(x[0].item())  # noqa: E731
    torch.testing.assert_close(thunder.jit(f)(X), f(X))
    assert (math.sqrt, max, math.exp) == before and exponential is math.exp and "max" not in globals()


TEXTS: dict[str, Callable[[Any], Any]] = {
    "a format": lambda x: (f"{x.sum().item():.2f}", x * 2),
    "str": lambda x: str(x.sum().item()),
    "repr": lambda x: repr(x.tolist()),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_program_that_writes_its_numbers_as_text_runs_as_python(name: str) -> None:
    f = TEXTS[name]
    jf = thunder.jit(f)
    for x in (X, X + 1, X):
        same(jf(x), f(x))
    assert "as text" in thunder.explain(jf)
    assert thunder.cache_misses(jf) == 1


INTEGERS_AS_TEXT: dict[str, Callable[[Any], Any]] = {
    "a key": lambda x: x * {"n3": 2.0, "n9": 3.0}[f"n{int(x.sum())}"],
    "a comparison": lambda x: str(x.sum().item() > 5),
    "a size": lambda x: (f"{x.nonzero().shape[0]} of {x.shape[0]}", x * 2),
    "numbers of as many as": lambda x: str(x.nonzero().flatten().tolist()),
}


@pytest.mark.parametrize("name", INTEGERS_AS_TEXT)
def test_integers_that_are_written_as_text_are_decisions(name: str) -> None:
    f = INTEGERS_AS_TEXT[name]
    jf = thunder.jit(f)
    for x in (X, X + 1, X, X + 1):
        same(jf(x), f(x))
    assert thunder.cache_hits(jf) >= 2


def test_modules_around_text_are_programs(capsys: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 1), nn.Tanh())

        def forward(self, x: Any) -> Any:
            out = self.net(x)
            print(f"loss {out.item():.3f}")
            return out

    net = Net()
    jnet = thunder.jit(net)
    for x in (X, X * 2):
        wanted = net(x)
        said = capsys.readouterr().out
        same(jnet(x), wanted)
        assert capsys.readouterr().out == said
    assert "thunder.jit(Sequential): 2 calls, 1 compilation" in thunder.explain(jnet)
    gradient = thunder.core.transforms.grad(lambda x: x.sum() * float(f"{x.sum().item()}"))
    with pytest.raises(RuntimeError, match="transformed as a whole, but the program formats the number u0 as text"):
        gradient(X)
