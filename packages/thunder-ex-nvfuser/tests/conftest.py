# SPDX-License-Identifier: Apache-2.0
"""Where nvFuser cannot run, a stand-in takes definitions and computes them with torch, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thunder.toolkit.testing import fallbacks_raise, is_ready, registered

os.environ.setdefault("THUNDER_VERIFY", "1")
os.environ.setdefault("THUNDER_STRICT", "1")
if not torch.cuda.is_available():  # the other fuser, where it is installed, has an interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights and inputs are the same in each run, in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """A program that falls back to eager mode raises an error instead of a warning."""
    with fallbacks_raise():
        yield


DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Int": torch.int64, "Int32": torch.int32, "Bool": torch.bool,
}  # fmt: skip
DataType = SimpleNamespace(**{name: name for name in DTYPES})
Values = dict[int, Any]


class Node:
    """A value of a definition: how it is computed from those before it."""

    def __init__(self, compute: Callable[[Values], Any]):
        self.compute = compute


def value_of(x: Any, values: Values) -> Any:
    """What a node, or a list of nodes, is."""
    if isinstance(x, list):
        return [value_of(y, values) for y in x]
    if not isinstance(x, Node):
        return x
    if id(x) not in values:
        values[id(x)] = x.compute(values)
    return values[id(x)]


def _tensor(x: Any) -> torch.Tensor:
    """A number as an operand of double precision, which does not promote what it meets."""
    return torch.tensor(x, dtype=torch.float64) if isinstance(x, float) else torch.as_tensor(x)


def _pad(x: Any, widths: Any, value: Any) -> Any:
    return torch.nn.functional.pad(x, widths, value=value.item())


def _broadcast(x: Any, shape: Any, dims: Any) -> Any:
    return x.reshape([n if d in dims else 1 for d, n in enumerate(_at(x, shape, dims))]).expand(shape)


def _at(x: Any, shape: Any, dims: Any) -> Any:
    return [x.shape[dims.index(d)] if d in dims else n for d, n in enumerate(shape)]


def _slice(x: Any, starts: Any, ends: Any, steps: Any) -> Any:
    assert set(steps) <= {1}
    return x[tuple(slice(a, b) for a, b in zip(starts, ends))]


def _stride_order(x: Any, order: Any) -> Any:
    by_stride = sorted(range(x.ndim), key=lambda d: -order[d])
    inverse = [by_stride.index(d) for d in range(x.ndim)]
    return x.permute(by_stride).contiguous().permute(inverse)


def _over(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dims, keep: fn(x, dims, keep)


def _product(x: Any, dims: Any, keep: bool) -> Any:
    for d in sorted(dims, reverse=True):
        x = x.prod(d)
    return x


def _uniform(low: Any, high: Any, shape: Any, *, rng_seed: int, rng_offset: int, dtype: str) -> Any:
    """Numbers that hang on the seed and the offset alone."""
    generator = torch.Generator().manual_seed(rng_seed % 1_000_003 * 1_000_003 + rng_offset)
    return torch.rand([int(n) for n in shape], generator=generator, dtype=DTYPES[dtype]) * (high - low) + low


class Generator:
    """What stands for the generator of a GPU: its offset is drawn from that of the CPU, which so moves on."""

    def initial_seed(self) -> int:
        """The seed that was set last."""
        return torch.initial_seed()

    def get_offset(self) -> int:
        """Another one at each call."""
        return int(torch.randint(1 << 40, ())) * 4

    def set_offset(self, offset: int) -> None:
        """It has moved already."""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cast": lambda x, to: torch.as_tensor(x).to(DTYPES[to]), "set": torch.clone, "pad": _pad,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda x, shape: x.reshape(shape), "permute": lambda x, dims: x.permute(dims), "slice": _slice,
    "squeeze": lambda x, dims: x.squeeze(dims), "stride_order": _stride_order, "cat": torch.cat,
    "full": lambda shape, value, to: torch.full(shape, value.item(), dtype=DTYPES[to]),
    "iota": lambda n, start, step, to: torch.arange(int(n), dtype=DTYPES[to]) * step + start,
    "sum": _over(torch.sum), "max": _over(torch.amax), "min": _over(torch.amin), "prod": _product,
    "neg": lambda x: -x, "div": torch.true_divide, "uniform": _uniform,
}  # fmt: skip


class Operations:
    """`fd.ops`: each function of its name; half precision in, single precision out, as nvFuser does it."""

    def __getattr__(self, name: str) -> Callable[..., Node]:
        fn = FUNCTIONS[name] if name in FUNCTIONS else getattr(torch, name)

        def compute(values: Values, args: Any, named: Any) -> Any:
            given = [value_of(a, values) for a in args]
            if name not in FUNCTIONS:
                return fn(*map(_tensor, given))
            return fn(*given, **{key: value_of(a, values) for key, a in named.items()})

        return lambda *args, **named: Node(lambda values: compute(values, args, named))


class FusionDefinition:
    """What stands for nvFuser's class of that name."""

    ops = Operations()

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []

    def __enter__(self) -> FusionDefinition:
        return self

    def __exit__(self, *error: Any) -> None:
        assert error == (None, None, None), "the real one prints it"

    @property
    def fusion(self) -> FusionDefinition:
        return self

    def define_tensor(self, *, sizes: Any, strides: Any, dtype: str, static_sizes: bool = False) -> Node:
        assert len(sizes) == len(strides)
        node = Node(lambda values: values[id(node)])
        self.inputs.append(node)
        return node

    def define_scalar(self, *given: Any) -> Node:
        value, dtype = given if len(given) == 2 else (None, *given)
        if value is not None:
            return Node(lambda values: torch.tensor(value, dtype=DTYPES[dtype]))
        node = Node(lambda values: values[id(node)])
        self.inputs.append(node)
        return node

    def add_output(self, node: Node) -> None:
        self.outputs.append(node)


class Library:
    """What stands for the module `nvfuser_direct`."""

    DataType = DataType
    FusionDefinition = FusionDefinition

    def __init__(self) -> None:
        self.definitions: list[FusionDefinition] = []
        self.runs = 0
        self.refuses: str | None = None

    def FusionExecutorCache(self, definition: FusionDefinition) -> Any:
        """What runs a definition."""
        self.definitions.append(definition)

        def execute(inputs: Any, *, device: Any = None) -> list[torch.Tensor]:
            if self.refuses is not None:
                raise RuntimeError(self.refuses)
            self.runs += 1
            values: Values = {id(node): x for node, x in zip(definition.inputs, inputs, strict=True)}
            return [value_of(node, values) for node in definition.outputs]

        return SimpleNamespace(execute=execute)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """The executor `nvfuser` on the CPU, with the stand-in for the library."""
    from thunder_ex_nvfuser import executor, plugin, random, region

    if is_ready("nvfuser"):
        pytest.skip("nvFuser itself is here")
    library = Library()
    region.compiled.cache_clear()
    monkeypatch.setattr(region, "library", lambda: library)
    for module in (executor, random):
        monkeypatch.setattr(module, "unusable_device", lambda device: None)
    monkeypatch.setattr(random, "generator_of", lambda device: Generator())
    with registered("nvfuser", plugin):
        yield library
    region.compiled.cache_clear()


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """Where the executor runs: a GPU with nvFuser itself, or the CPU with the stand-in."""
    if is_ready("nvfuser"):
        return "cuda"
    request.getfixturevalue("stand_in")
    return "cpu"
