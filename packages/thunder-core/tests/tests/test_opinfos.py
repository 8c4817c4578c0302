# SPDX-License-Identifier: Apache-2.0
"""The OpInfos that are derived from declarations, and the lists to which others are appended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder.torch as ltorch
from thunder.core import prims
from thunder.tests import opinfos
from thunder.tests.make_tensor import make_tensor
from thunder.tests.opinfos import OpInfo, SampleInput, all_opinfos, opinfo_of


def test_the_seeds_first_sample() -> None:
    """A generator whose first sample are two tensors of the same shape, which print as the seed shows."""
    from thunder.tests.opinfos import add_opinfo

    sample = next(add_opinfo.sample_input_generator(add_opinfo, device="cpu", dtype=torch.float32, requires_grad=False))
    a, b = sample.args
    assert a.shape == b.shape == (4, 4)
    assert str(sample).startswith("[SampleInput args=(tensor(")
    assert str(sample).endswith(" kwargs={}]")


def test_every_declared_operator_has_one() -> None:
    """Both languages, each under its name, in one list, with a reference."""
    derived = {info.op: info for info in all_opinfos()}
    for table in (ltorch.all_torchsymbols(), prims.all_prims()):
        for sym in table.values():
            assert (sym in derived) is (sym.sample_generator is not None)
    assert opinfos.prims_add_opinfo is derived[prims.add]
    assert opinfos.add_opinfo.op is ltorch.add
    assert opinfos.add_opinfo in opinfos.elementwise_binary_ops
    assert opinfos.neg_opinfo in opinfos.elementwise_unary_ops
    assert opinfo_of("prims.broadcast_in_dim") in opinfos.shape_ops


def test_names_are_all_different() -> None:
    """They are what tests, tables and known failures call them."""
    names = [info.name for info in all_opinfos()]
    assert len(names) == len(set(names))


def test_unknown_names() -> None:
    """Say so, as attributes too."""
    with pytest.raises(KeyError, match="there is no operator 'nonesuch' with samples"):
        opinfo_of("nonesuch")
    with pytest.raises(AttributeError, match="with samples, so nonesuch_opinfo does not exist"):
        _ = opinfos.nonesuch_opinfo
    with pytest.raises(AttributeError, match="has no attribute 'nonesuch'"):
        _ = opinfos.nonesuch


def one_sample(op: OpInfo, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[SampleInput]:
    yield SampleInput(make_tensor(3, device=device, dtype=dtype, requires_grad=requires_grad))


def test_lists_can_be_appended_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is appended is tested; beside an operator of the same name it gets a number, and is listed once."""
    monkeypatch.setattr(opinfos, "shape_ops", opinfos.shape_ops)
    mine = OpInfo(ltorch.neg, name="mine", sample_input_generator=one_sample)
    again = OpInfo(ltorch.neg, sample_input_generator=one_sample)
    opinfos.shape_ops.append(mine)
    opinfos.opinfos.extend((mine, again))
    try:
        found = all_opinfos()
        assert found.count(mine) == 1
        assert again.name == "neg.2"
        assert opinfo_of("neg.2") is again
        assert opinfo_of("neg").op is ltorch.neg
    finally:
        opinfos.shape_ops.remove(mine)
        opinfos.opinfos.clear()


def test_what_is_declared_later_is_found() -> None:
    """An operator from outside, with samples, as soon as it is declared."""
    from thunder.core.prims.base import _prims, make_prim
    from thunder.core.proxies import TensorProxy

    sym = make_prim("test.late", "late", meta=lambda a: TensorProxy(like=a))
    try:
        assert all(info.op is not sym for info in all_opinfos())
        sym.samples(lambda make: iter([SampleInput(make(2))]))
        assert opinfo_of("prims.late").op is sym
    finally:
        del _prims["test.late"]
        opinfos.other_ops.remove(opinfo_of("prims.late"))
        del opinfos._derived["test.late"]


def test_the_seeds_generators() -> None:
    """Samples of one tensor with values of the operator's domain, and a reference that takes numbers too."""
    acos = OpInfo(
        ltorch.neg,
        domain=(-1, 1),
        sample_input_generator=opinfos.elementwise_unary_generator,
        torch_reference=opinfos._elementwise_unary_torch(torch.acos),
    )
    samples = acos.sample_inputs("cpu", torch.float32)
    shapes = {tuple(sample.args[0].shape) for sample in samples}
    assert {(), (0,), (4, 4)} <= shapes
    assert any(not sample.args[0].is_contiguous() for sample in samples)
    assert all((sample.args[0].abs() <= 1).all() for sample in samples)
    assert acos.torch_reference(1.0) == 0.0
    assert torch.equal(acos.torch_reference(torch.ones(2)), torch.zeros(2))
    pairs = OpInfo(ltorch.add, sample_input_generator=opinfos.elementwise_binary_generator).sample_inputs()
    assert all(len(sample.args) == 2 for sample in pairs)
