# SPDX-License-Identifier: Apache-2.0
"""OpInfos: samples that repeat, dtypes that exist, directives that apply where they say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

import thunder.torch as ltorch
from thunder import clang
from thunder.core import devices, dtypes, prims
from thunder.tests.opinfos import DecorateInfo, OpInfo, SampleInput, make_tensor, opinfo_of


def sample_generator(op: OpInfo, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[SampleInput]:
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    yield SampleInput(make(2, 3))
    yield SampleInput(make(()))


def error_generator(op: OpInfo, device: Any, dtype: Any = torch.float32, **kwargs: Any) -> Iterator[Any]:
    yield SampleInput("x"), TypeError, "a message"


def info(**more: Any) -> OpInfo:
    return OpInfo(ltorch.neg, sample_input_generator=sample_generator, torch_reference=torch.neg, **more)


def test_samples_repeat() -> None:
    """The same each time, of the dtype asked for (ours or torch's), and nothing is left of the seed."""
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, second = (info().sample_inputs("cpu", dtype)[0].args[0] for dtype in (torch.float64, dtypes.float64))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.dtype is torch.float64
    assert info().sample_inputs("cpu", torch.float32, requires_grad=True)[0].args[0].requires_grad


def test_errors() -> None:
    """None where none are declared."""
    assert info().error_inputs() == []
    ((sample, kind, message),) = info(error_input_generator=error_generator).error_inputs()
    assert (sample.args, kind, message) == (("x",), TypeError, "a message")


def test_where_it_exists() -> None:
    """What the reference takes, or what the OpInfo says."""
    assert info().exists_for("cpu", torch.float32)
    assert not info().exists_for("cpu", torch.bool)  # torch negates no booleans
    assert not info(dtypes=(dtypes.float32,)).exists_for("cpu", torch.float64)
    assert info(dtypes=(torch.bool,)).exists_for("cpu", torch.bool)
    assert not info(devicetypes=(devices.DeviceType.CUDA,)).exists_for("cpu", torch.float32)


def test_a_sample_that_cannot_be_made() -> None:
    """`make(3) > 0` of complex numbers: the operator does not exist for them."""

    def compares(op: OpInfo, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[SampleInput]:
        x = make_tensor(3, device=device, dtype=dtype)
        yield SampleInput(x > 0, x, x)

    where = OpInfo(prims.where, sample_input_generator=compares, torch_reference=torch.where)
    assert where.exists_for("cpu", torch.float32)
    assert not where.exists_for("cpu", torch.complex64)


def test_what_a_primitive_refuses_does_not_exist() -> None:
    """It is narrower than torch's function by design; torch would promote integers."""
    exp = opinfo_of("prims.exp")
    assert exp.exists_for("cpu", torch.float32)
    assert not exp.exists_for("cpu", torch.int64)


def test_plain_functions_are_operators() -> None:
    """`clang.add` is no symbol; here it becomes one."""
    plain = OpInfo(clang.add, sample_input_generator=sample_generator, torch_reference=torch.add)
    assert plain.name == "add"
    assert not plain.symbol.is_prim
    assert plain.symbol is plain.symbol
    assert repr(plain) == "OpInfo('add')"


def test_directives() -> None:
    """The seeds' form: a mark, a test's name, dtypes and device types."""
    directive = DecorateInfo(
        pytest.mark.xfail,
        "test_core_vs_torch_consistency",
        dtypes=(dtypes.float16, dtypes.complex32),
        devicetypes=(devices.DeviceType.CPU,),
    )
    marked = info(test_directives=(directive,))
    core = "test_core_vs_torch_consistency"
    assert marked.marks(core, "torch", "cpu", torch.float16) == [pytest.mark.xfail]
    assert marked.marks(core, "torch", "cpu", torch.float32) == []
    assert marked.marks(core, "torch", "cuda:0", torch.float16) == []
    assert marked.marks("test_errors", "torch", "cpu", torch.float16) == []
    for_all = info(test_directives=(DecorateInfo(pytest.mark.skip, executors=("acme",)),))
    assert for_all.marks("test_errors", "acme", "cuda", None) == [pytest.mark.skip]
    assert for_all.marks("test_errors", "torch", "cuda", None) == []
    off = info(test_directives=(DecorateInfo(pytest.mark.skip, active_if=False),))
    assert off.marks("test_errors", "torch", "cpu", None) == []


def test_samples_left_out() -> None:
    """Where torch itself crashes, as their declaration says; elsewhere they are there."""

    def generator(op: OpInfo, device: Any, dtype: Any, requires_grad: bool = False, **kwargs: Any) -> Any:
        yield SampleInput(torch.ones(2))
        yield SampleInput(torch.ones(0)).left_out_when("it divides by zero", device="cuda")
        yield SampleInput(torch.ones(3)).left_out_when("it did once", torch="<1.0")
        yield SampleInput(torch.ones(4)).left_out_when("always", device="meta", torch=">=2")

    info = OpInfo(torch.neg, name="neg_of_this_test", sample_input_generator=generator)
    assert [len(s.args[0]) for s in info.sample_inputs("cpu", torch.float32)] == [2, 0, 3, 4]
    assert [len(s.args[0]) for s in info.sample_inputs("cuda:0", torch.float32)] == [2, 3, 4]
    assert [len(s.args[0]) for s in info.sample_inputs("meta", torch.float32)] == [2, 0, 3]
    with pytest.raises(AssertionError, match="needs a reason and conditions"):
        SampleInput().left_out_when("", device="cuda")
