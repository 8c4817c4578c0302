# SPDX-License-Identifier: Apache-2.0
"""Random programs of conversions, views and writes, whose results share memory with inputs and among themselves."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

LAST, LAST_3D, DENSE = torch.channels_last, torch.channels_last_3d, torch.contiguous_format


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


def numbers(*shape: int) -> torch.Tensor:
    """A tensor without gaps."""
    return (torch.arange(torch.Size(shape).numel(), dtype=torch.float32) / 7 - 2).reshape(shape)


def last(*shape: int) -> torch.Tensor:
    """A channels-last image."""
    return numbers(*shape).contiguous(memory_format=LAST)


INPUTS: list[Callable[[], torch.Tensor]] = [
    lambda: numbers(2, 4, 3, 3),
    lambda: last(2, 4, 3, 3),
    lambda: last(2, 8, 3, 3)[:, 4:],
    lambda: numbers(2, 4, 3, 6)[..., ::2],
    lambda: numbers(2, 4, 3, 3).mT,
    lambda: numbers(3, 2, 4, 3).permute(1, 2, 3, 0),
    lambda: numbers(2, 1, 3, 3).expand(2, 4, 3, 3),
    lambda: numbers(4, 6),
    lambda: numbers(6, 4).t(),
    lambda: numbers(5, 12)[1:, ::2],
    lambda: numbers(24)[1::2],
    lambda: torch.complex(numbers(3, 4, 2), numbers(3, 4, 2) + 1).transpose(0, 2),
    lambda: numbers(2, 4, 2, 3, 3).contiguous(memory_format=LAST_3D),
]

# Each step takes a tensor, another one and a small number. Steps that eager mode refuses are left out of a program.
Step = Callable[[Any, Any, int], Any]


def at(x: Any, n: int) -> int:
    """A dimension of a tensor."""
    return n % int(x.dim())


VIEWS: list[Step] = [
    lambda x, y, n: x.chunk(2, at(x, n)),
    lambda x, y, n: x.split([1, x.shape[at(x, n)] - 1], at(x, n)),
    lambda x, y, n: x.tensor_split(3, at(x, n)),
    lambda x, y, n: x.unbind(at(x, n)),
    lambda x, y, n: x.select(at(x, n), n % x.shape[at(x, n)]),
    lambda x, y, n: x.narrow(at(x, n), 1, 1),
    lambda x, y, n: x[..., ::2],
    lambda x, y, n: x[:, None],
    lambda x, y, n: x[:],
    lambda x, y, n: x.transpose(0, at(x, n)),
    lambda x, y, n: x.permute(*range(1, x.dim()), 0),
    lambda x, y, n: x.movedim(1, -1),
    lambda x, y, n: x.view(-1),
    lambda x, y, n: x.view_as(y),
    lambda x, y, n: x.reshape(-1),
    lambda x, y, n: x.reshape(x.shape[0], -1),
    lambda x, y, n: x.flatten(0, 1),
    lambda x, y, n: x.ravel(),
    lambda x, y, n: x.unflatten(at(x, n), (2, -1)),
    lambda x, y, n: x.expand(2, *x.shape),
    lambda x, y, n: x.expand(x.shape),
    lambda x, y, n: x.squeeze(at(x, n)),
    lambda x, y, n: x.as_strided((2, 3), (3, 1), n % 3),
    lambda x, y, n: x.diagonal(dim1=-2, dim2=-1),
    lambda x, y, n: torch.view_as_real(x),
    lambda x, y, n: torch.view_as_complex(x),
    lambda x, y, n: x.view(torch.int32),
    lambda x, y, n: x.view(torch.float32),
    lambda x, y, n: x.detach(),
    lambda x, y, n: torch.broadcast_tensors(x, y),
    lambda x, y, n: torch.meshgrid(x.flatten()[::3], x.flatten()[:2], indexing="ij"),
]
CONVERSIONS: list[Step] = [
    lambda x, y, n: x.contiguous(),
    lambda x, y, n: x.contiguous(memory_format=LAST),
    lambda x, y, n: x.to(memory_format=LAST),
    lambda x, y, n: x.to(memory_format=LAST_3D),
    lambda x, y, n: x.to(x.dtype, memory_format=LAST),
    lambda x, y, n: x.to("cpu", torch.float64, memory_format=LAST),
    lambda x, y, n: x.to(torch.float32, memory_format=LAST, copy=True),
    lambda x, y, n: x.cpu(memory_format=LAST),
    lambda x, y, n: x.float(memory_format=DENSE),
    lambda x, y, n: x.type_as(y),
    lambda x, y, n: x.clone(memory_format=LAST),
    lambda x, y, n: x * 2,
    lambda x, y, n: torch.zeros_like(x),
]


def assign(x: Any, key: Any, value: Any) -> None:
    """x[key] = value."""
    x[key] = value


WRITES: list[Step] = [
    lambda x, y, n: x.add_(n),
    lambda x, y, n: x.mul_(2),
    lambda x, y, n: x.zero_(),
    lambda x, y, n: x.fill_(n),
    lambda x, y, n: x.data.mul_(2),
    lambda x, y, n: x[0][..., 1:].mul_(3),
    lambda x, y, n: x.view(-1)[1:].add_(1),
    lambda x, y, n: x.transpose(0, -1).add_(1),
    lambda x, y, n: torch.add(x, 1, out=x),
    lambda x, y, n: assign(x, (..., slice(1, None)), 1.5),
    lambda x, y, n: assign(x, x > n, 0.5),
    lambda x, y, n: x.index_put_((torch.tensor([0]),), torch.tensor(3.0, dtype=x.dtype)),
]
WRITES_OF_OTHERS: list[Step] = [
    lambda x, y, n: x.mul_(y),
    lambda x, y, n: x.copy_(y),
    lambda x, y, n: assign(x, ..., y),
    lambda x, y, n: torch.mul(y, 2, out=x) if x.shape == y.shape else 1 / 0,
]
WRITING = [*WRITES, *WRITES_OF_OTHERS]
REFUSED = (RuntimeError, IndexError, ZeroDivisionError, ValueError, TypeError, NotImplementedError)


@dataclasses.dataclass
class Program:
    """A random program: its inputs, its steps with the positions of their operands, and the positions of results."""

    inputs: list[int]
    steps: list[tuple[Step, int, int, int]]
    returned: list[int]
    container: int
    requires_grad: bool
    cache: Any
    later: int

    def __call__(self, *given: Any) -> Any:
        """Run the steps, each on tensors that there are by then, and return some of them."""
        values = list(given)
        for step, i, j, n in self.steps:
            run(values, step, i, j, n)
        found = [values[i] for i in self.returned]
        return [tuple(found), {"a": found, "b": found[0]}, Pair(found[0], found[1:])][self.container]

    def tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return leaves and inputs."""
        made = [INPUTS[i]() for i in self.inputs]
        if not self.requires_grad:
            return [], made
        size = [x.untyped_storage().nbytes() // x.element_size() for x in made]
        leaves = [numbers(n).to(x.dtype).requires_grad_() for n, x in zip(size, made)]
        return leaves, [(leaf * 1).as_strided(x.shape, x.stride(), x.storage_offset()) for leaf, x in zip(leaves, made)]


def run(values: list[Any], step: Step, i: int, j: int, n: int) -> None:
    """Run a step and add its results."""
    out = step(values[i], values[j], n)
    values.extend([] if out is None else [out] if isinstance(out, torch.Tensor) else out)


def drawn(seed: int) -> Program:
    """Return a random program without the steps that eager mode refuses."""
    r = random.Random(seed)
    program = Program(
        [r.randrange(len(INPUTS)) for _ in range(r.randint(1, 2))], [], [], r.randrange(3), r.random() < 0.3,
        "symbolic values" if r.random() < 0.3 else "constant values", r.randrange(99),
    )  # fmt: skip
    values: list[Any] = list(program.tensors()[1])
    for _ in range(r.randint(2, 7)):
        step = r.choice(r.choices([VIEWS, CONVERSIONS, WRITING], [4, 3, 4])[0])
        i, j, n = (r.randrange(99) for _ in range(3))
        i, j = i % len(values), j % len(values)
        x, y = values[i], values[j]
        if step in WRITING and any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride())):
            continue
        if step in WRITES_OF_OTHERS and place(x) == place(y):
            continue  # torch promises nothing
        try:
            run(values, step, i, j, n % 6)
        except REFUSED:
            continue
        program.steps.append((step, i, j, n % 6))
    program.returned = [r.randrange(len(values)) for _ in range(r.randint(1, 4))]
    return program


def place(x: torch.Tensor) -> int:
    """The address of a tensor's memory."""
    return x.untyped_storage().data_ptr()


def tensors_of(x: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(x, torch.Tensor):
        return [x]
    parts = [x.first, x.second] if isinstance(x, Pair) else x.values() if isinstance(x, dict) else x
    return [t for part in parts for t in tensors_of(part)]


def outcome(f: Any, program: Program) -> tuple[dict[str, Any], list[torch.Tensor], Any]:
    """Return the memory of results and inputs, their values also after a later write, and gradients of the leaves."""
    leaves, given = program.tensors()
    results = tensors_of(f(*given))
    tensors = [*given, *results]
    places = [place(t) if t.numel() else -i for i, t in enumerate(tensors)]
    shared = [places.index(p) for p in places]
    objects = [next(i for i, other in enumerate(tensors) if other is t) for t in tensors]
    # The strides of memory that the program wrote and of which it returns one tensor are not those of eager mode.
    alone = [len({o for o, s in zip(objects, shared) if s == where}) == 1 for where in shared]
    written = any(step[0] in WRITING for step in program.steps)
    memory = {
        "shared": shared,
        "objects": objects[: len(given)],
        "layout": [
            None if (written and single) or not t.numel()
            else (t.storage_offset(), *[s for n, s in zip(t.shape, t.stride()) if n > 1])
            for single, t in zip(alone, tensors)
        ],
        "kinds": [(tuple(t.shape), t.dtype, t.requires_grad, t.is_conj()) for t in tensors],
    }  # fmt: skip
    values = [t.detach().clone() for t in tensors]
    target = results[program.later % len(results)]
    gradients: Any = None
    try:
        with torch.set_grad_enabled(program.later % 2 == 0):
            target.mul_(2)
        values += [t.detach().clone() for t in tensors]
        total = sum((t.abs() * (i + 1)).double().sum() for i, t in enumerate(results) if t.requires_grad)
        if isinstance(total, torch.Tensor):
            gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    except RuntimeError:  # e.g. a value that backward needs was written
        gradients = "refused"
    return memory, values, gradients


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.filterwarnings("ignore")
def test_results_of_random_programs(seed: int) -> None:
    """Values, memory, strides and gradients are those of eager mode, also of the second call."""
    for i in range(12):
        program = drawn(100 * seed + i)
        memory, values, gradients = outcome(program, program)
        jitted = thunder.jit(lambda *given, program=program: program(*given), cache=program.cache)
        for _ in range(2):
            found_memory, found_values, found_gradients = outcome(jitted, program)
            assert found_memory == memory, program
            if len(found_values) == len(values):  # otherwise one of both refuses the later write
                torch.testing.assert_close(found_values, values, equal_nan=True)
            if isinstance(gradients, tuple) and isinstance(found_gradients, tuple):
                for found, wanted in zip(found_gradients, gradients):
                    zero = torch.zeros(1)
                    torch.testing.assert_close(
                        *torch.broadcast_tensors(zero if found is None else found, zero if wanted is None else wanted),
                        check_dtype=False,
                    )
