# SPDX-License-Identifier: Apache-2.0
"""Programs that are large in one dimension: the work to compile them grows with their size, and not with its square."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.capture.higher_order import leaf_gradients
from thunder.capture.tensors import layout
from thunder.capture.tensors.tracer import Tracer
from thunder.execution import in_place_updates
from thunder.executors.torchex.in_place import TorchMemory
from thunder.passes import recompute


class Inputs(list[Any]):
    """A list that counts how often it is searched."""

    searches = 0

    def __iter__(self) -> Any:
        Inputs.searches += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda x: x.add_(1.0), id="write"),
        pytest.param(lambda x: x[0].mul_(2.0), id="write of a view"),
        pytest.param(lambda x: x._version, id="metadata"),
        pytest.param(lambda x: x.to(memory_format=torch.channels_last), id="conversion"),
    ],
)
def test_inputs_are_not_searched_for_each_use(monkeypatch: pytest.MonkeyPatch, use: Callable[[Any], Any]) -> None:
    original = Tracer.__init__

    def init(self: Tracer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.inputs = Inputs()

    monkeypatch.setattr(Tracer, "__init__", init)

    def program(xs: list[torch.Tensor]) -> torch.Tensor:
        for x in xs:
            use(x)
        return xs[0].sum()

    found = []
    for n in (2, 9):
        ours, eager = ([torch.full((2, 3, 1, 2), float(i)) for i in range(n)] for _ in range(2))
        Inputs.searches = 0
        result = thunder.jit(program, cache="symbolic values")(ours)
        found.append(Inputs.searches)
        assert torch.equal(result, program(eager))
        assert all(map(torch.equal, ours, eager))
    assert found[0] == found[1]


def test_long_chains_of_steps_that_may_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is determined whether each step is a view, without a search from the base on, and without recursion."""
    applied = [0]
    original = layout._apply

    def apply(*args: Any) -> torch.Tensor:
        applied[0] += 1
        return original(*args)

    monkeypatch.setattr(layout, "_apply", apply)

    def program(x: torch.Tensor) -> torch.Tensor:
        first = x
        for i in range(600):
            x = x.reshape((3, 2) if i % 2 else (2, 3))
        x.mul_(2.0)
        return first

    x, y = torch.arange(6.0).reshape(3, 2), torch.arange(6.0).reshape(3, 2)
    assert torch.equal(thunder.jit(program)(x), program(y))
    assert torch.equal(x, y)
    assert applied[0] < 5 * 600


def cells(n: int) -> Callable[..., Any]:
    """Return a program of cells, about whose memory nothing is known, that also updates its inputs."""
    cell = nn.GRUCell(4, 4)

    def program(x: torch.Tensor, count: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        h = x
        with torch.no_grad():
            for i in range(n):
                h = cell(x, h)
                if i % 4 == 0:
                    count.add_(1.0)
                    total.mul_(0.5).add_(h)
            x.copy_(h * count)
            return h[:1]

    return program


@pytest.mark.parametrize("most", [2, 8, in_place_updates._MOST_SHARED])
def test_chains_of_unknown_memory(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The memory that a value may be in is limited: it would be that of all values before it."""
    sizes: list[int] = []
    original = in_place_updates._Updates.run

    def run(self: Any) -> Any:
        sizes.extend(map(len, self.memory.values()))
        return original(self)

    monkeypatch.setattr(in_place_updates, "_MOST_SHARED", most)
    monkeypatch.setattr(in_place_updates._Updates, "run", run)
    torch.manual_seed(0)
    program = cells(150)
    jitted = thunder.jit(program)
    for _ in range(2):
        given = [torch.randn(2, 4), torch.zeros(2, 4), torch.ones(2, 4)]
        ours = [x.clone() for x in given]
        assert torch.equal(jitted(*ours), program(*given))
        assert all(map(torch.equal, ours, given))
    assert sizes and max(sizes) <= most


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x: F.layer_norm(x, (4,)), id="layer_norm"),
        pytest.param(lambda x: F.batch_norm(x, None, None, training=True), id="batch_norm"),
        pytest.param(lambda x: torch.cat([x, x]), id="cat"),
        pytest.param(lambda x: torch.cat([x]), id="cat of one"),
        pytest.param(lambda x: torch.stack([x]), id="stack of one"),
        pytest.param(lambda x: torch.sort(x), id="sort"),
        pytest.param(lambda x: torch.topk(x, 4), id="topk"),
        pytest.param(lambda x: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)), id="gather"),
        pytest.param(lambda x: F.embedding(torch.zeros(2, dtype=torch.int64), x), id="embedding"),
    ],
)
def test_results_are_known_to_be_new(fn: Callable[..., Any]) -> None:
    jitted = thunder.jit(fn)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    results = jitted(x)
    made = [op for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.executor is not None]
    assert made
    assert all(TorchMemory().may_share(op) == () for op in made)
    for result in [results] if isinstance(results, torch.Tensor) else results:
        assert result.untyped_storage()._cdata != x.untyped_storage()._cdata


def losses(n: int) -> Callable[..., Any]:
    """Return a program that calls `backward()` for each of its losses."""
    weight = nn.Parameter(torch.arange(1.0, 4.0))

    def program(x: torch.Tensor) -> torch.Tensor | None:
        weight.grad = None
        for i in range(n):
            torch.sin(weight * x * i).sum().backward()
        return weight.grad

    return program


def test_each_backward_searches_its_own_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    original = leaf_gradients.depending_on

    def depending_on(operations: Any, leaves: Any) -> set[str]:
        searched.append(len(operations))
        return original(operations, leaves)

    monkeypatch.setattr(leaf_gradients, "depending_on", depending_on)
    monkeypatch.setattr(recompute, "_ends", None)  # not needed, because no parameter is gathered from shards
    x = torch.tensor([0.5, 0.25, 2.0])
    program = losses(6)
    assert torch.equal(thunder.jit(program)(x), program(x))  # type: ignore[arg-type]
    assert len(searched) == 6
    assert len(set(searched)) == 1
