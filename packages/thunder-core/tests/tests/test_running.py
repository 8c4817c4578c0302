# SPDX-License-Identifier: Apache-2.0
"""Running one sample: samples as data, what exists, traces that the tests make, and who claimed what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.errors import TracingError
from thunder.core.samples import SampleInput
from thunder.executors import TORCH
from thunder.extend import OperatorExecutor
from thunder.tests import running
from thunder.tests.opinfos import OpInfo, elementwise_binary_generator, opinfo_of


def test_tensors_of_a_sample() -> None:
    """In order, through containers; mapped once each, copied with their strides."""
    a, b = torch.ones(2, 3).mT, torch.zeros(1, 3).expand(2, 3)
    sample = SampleInput([a, 1, (b,)], a, key={"x": b})
    assert [id(x) for x in running.tensors_in(sample)] == [id(a), id(b), id(a), id(b)]
    doubled = running.map_tensors(sample, lambda x: x.double())
    assert doubled.args[0][0] is doubled.args[1]
    assert doubled.args[0][1] == 1
    copy = running.copied(sample)
    assert copy.args[1].stride() == a.stride()
    assert copy.args[1].data_ptr() != a.data_ptr()
    assert copy.kwargs["key"]["x"].stride() == b.stride()


def test_arguments_for_torch() -> None:
    """Our dtypes and devices become torch's, wherever they stand."""
    given = (dtypes.float32, [devices.cpu], {"dtype": dtypes.int64, "x": 1})
    assert running.to_torch(given) == (torch.float32, [torch.device("cpu")], {"dtype": torch.int64, "x": 1})


def test_what_exists() -> None:
    """What torch takes, what a primitive takes too, and, where torch has nothing, what the decomposition takes."""
    ones, truth = SampleInput(torch.ones(2)), SampleInput(torch.ones(2, dtype=torch.bool))
    assert running.exists(opinfo_of("neg"), ones)
    assert not running.exists(opinfo_of("neg"), truth)
    assert running.exists(opinfo_of("exp"), truth)
    assert not running.exists(opinfo_of("prims.exp"), truth)
    empty = SampleInput(torch.ones(0))
    assert running.exists(opinfo_of("neg"), empty)
    assert not running.exists(opinfo_of("neg"), empty, with_values=True)
    mine = OpInfo(lambda a: a / 2, name="mine", sample_input_generator=elementwise_binary_generator)
    assert running.exists(mine, ones)
    assert not running.exists(mine, SampleInput("x"))
    assert torch.equal(running.reference(mine, ones), torch.full((2,), 0.5))


def test_a_fault_exists() -> None:
    """A declaration that is broken must not make its tests disappear."""

    def broken(a: Any) -> Any:
        return a.no_such_method()

    mine = OpInfo(broken, sample_input_generator=elementwise_binary_generator)
    assert running.exists(mine, SampleInput(torch.ones(2)))


def test_traces() -> None:
    """The sample's tensors are the inputs, each once; the same tensor twice is one input."""
    a = torch.tensor([1.0, 2.0])
    sample = SampleInput(a, a)
    trace = running.trace_sample(opinfo_of("mul"), sample)
    assert [p.name for p in trace.args] == ["t_0"]
    execution = running.execution_trace(trace, ())
    assert torch.equal(running.run_trace(execution, sample), a * a)
    assert running.claimed_by(execution, (TORCH,))
    assert not running.claimed_by(execution, (OperatorExecutor("nobody"),))


def test_primitives() -> None:
    """A composite becomes the primitives below it, however deep."""
    sample = SampleInput(torch.ones(2, 1), torch.full((3,), 2.0))
    trace = running.to_primitives(running.trace_sample(opinfo_of("sub"), sample))
    assert all(bsym.sym.is_prim for bsym in trace.bound_symbols)
    names = [bsym.sym.name for bsym in running.operations(trace)]
    assert "broadcast_in_dim" in names
    assert names[-1] == "sub"
    assert torch.equal(running.run_trace(running.execution_trace(trace, ()), sample), torch.full((2, 3), -1.0))


def test_who_could_claim() -> None:
    """Who implements the operation or a part of it, whatever the checker says."""
    executor = OperatorExecutor("maybe")
    trace = running.trace_sample(opinfo_of("sub"), SampleInput(torch.ones(2), torch.ones(2)))
    assert not running.could_claim(trace, (executor,))
    op = executor.register_operator("maybe_sub", like=lambda a, b: a - b, fn=torch.sub)
    executor.register_implementation(prims.sub, op, checker=lambda a, b: "never")
    assert running.could_claim(trace, (executor,))
    assert not running.claimed_by(running.execution_trace(trace, (executor,)), (executor,))


def test_random_numbers() -> None:
    """The same ones inside, and nothing is left behind."""

    def drawn() -> Iterator[torch.Tensor]:
        for _ in range(2):
            with running.same_random_numbers():
                yield torch.rand(3)

    before = torch.random.get_rng_state()
    assert torch.equal(*drawn())
    assert torch.equal(before, torch.random.get_rng_state())


def test_jit() -> None:
    """The same call through `thunder.jit`."""
    result, jitted = running.run_jitted(opinfo_of("sub"), SampleInput(torch.ones(2), 2, alpha=3), (TORCH,))
    assert torch.equal(result, torch.full((2,), -5.0))
    assert jitted._stats.cache_misses == 1


def test_a_jit_that_never_runs_eagerly() -> None:
    """A program that cannot be compiled, or not be cached, is an error."""
    x = torch.ones(2)
    for uncompiled in (thunder.disable(torch.sin), lambda x: x + x.data_ptr()):
        with pytest.raises(TracingError):
            running.jit_strictly(uncompiled, (TORCH,))(x)


def test_without_a_function_of_torch() -> None:
    """The torch executor's own implementation is what a primitive is compared with."""
    found = running.torch_implementation(opinfo_of("prims.broadcast_in_dim").op)
    assert found is not None
    assert found(torch.ones(2), (3, 2), (1,)).shape == (3, 2)
    assert running.torch_implementation(OperatorExecutor("x").register_operator("y", like=lambda a: a)) is None


@pytest.mark.parametrize("name", ["neg", "prims.neg"])
def test_a_name_that_is_no_identifier(name: str) -> None:
    """`prims.neg` has a trace too."""
    trace = running.trace_sample(opinfo_of(name), SampleInput(torch.ones(2)))
    assert trace.name.isidentifier()
