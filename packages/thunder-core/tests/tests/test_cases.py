# SPDX-License-Identifier: Apache-2.0
"""Which tests there are for an operator and an executor, their ids and marks, and how failures are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder.tests.test_ops  # noqa: F401  marks the tests
import thunder.torch as ltorch
from thunder.core.samples import SampleInput
from thunder.extend import OperatorExecutor, get_executor
from thunder.tests import cases
from thunder.tests.cases import TESTS, Case, ConformanceFailure, cases_of, generate, is_candidate, marks_of, takes
from thunder.tests.comparison import Mismatch
from thunder.tests.known_failures import KnownFailure
from thunder.tests.opinfos import DecorateInfo, OpInfo, elementwise_unary_generator, opinfo_of
from thunder.tests.target import Target, target_of


@pytest.fixture(scope="module")
def torch_target() -> Target:
    return target_of(get_executor("torch"))


def dtypes_of(test: str, name: str, target: Target, **more: Any) -> list[str | None]:
    return [case.dtype_name for case in cases_of(test, opinfo_of(name), target, **more)]


def test_dtypes(torch_target: Target) -> None:
    """Those that exist for the operator; gradients in double precision; errors once."""
    core = "test_core_vs_torch_consistency"
    assert dtypes_of(core, "exp", torch_target) == ["float32", "bfloat16", "complex64", "int64", "bool"]
    assert dtypes_of(core, "neg", torch_target) == ["float32", "bfloat16", "complex64", "int64"]
    assert dtypes_of(core, "bitwise_and", torch_target) == ["int64", "bool"]
    assert dtypes_of("test_grad_vs_torch", "exp", torch_target) == ["float64", "complex128"]
    assert dtypes_of("test_trace_reexecutes", "exp", torch_target) == ["float32"]
    assert dtypes_of("test_trace_reexecutes", "bitwise_and", torch_target) == ["int64"]
    assert dtypes_of("test_claimed", "exp", torch_target) == [None]
    assert {"float16", "int8", "float64"} <= set(dtypes_of(core, "exp", torch_target, every=True))


def test_what_makes_no_sense(torch_target: Target) -> None:
    """A primitive does not decompose, a shape operation has no special values."""
    assert dtypes_of("test_decomposition", "prims.exp", torch_target) == []
    assert dtypes_of("test_special_values", "unfold", torch_target) == []
    no_gradient = OpInfo(ltorch.neg, sample_input_generator=elementwise_unary_generator, supports_grad=False)
    assert list(cases_of("test_grad_vs_torch", no_gradient, torch_target)) == []


def test_ids(torch_target: Target) -> None:
    """Operator, executor, device and dtype, in the order in which `-k` is likely to be used."""
    ids = [parameter.id for parameter in generate("test_meta_vs_torch", [torch_target])]
    assert "exp-torch-cpu-float32" in ids
    assert "prims.exp-torch-cpu-bfloat16" in ids
    assert len(ids) == len(set(ids))


def test_candidates(torch_target: Target) -> None:
    """An executor is tested on what it takes; torch's takes everything."""
    executor = OperatorExecutor("some")
    op = executor.register_operator("some_neg", like=lambda a: -a, fn=torch.neg)
    executor.register_implementation(ltorch.neg, op, checker=lambda a: a.dtype == torch.float32)
    target = target_of(executor)
    assert is_candidate(opinfo_of("neg"), target)
    assert not is_candidate(opinfo_of("exp"), target)
    assert is_candidate(opinfo_of("exp"), torch_target)
    assert takes(target, opinfo_of("neg"), SampleInput(torch.ones(2)))
    assert not takes(target, opinfo_of("neg"), SampleInput(torch.ones(2, dtype=torch.int64)))
    assert [case.test for case in cases_of("test_claimed", opinfo_of("exp"), target)] == ["test_claimed"]
    assert list(cases_of("test_meta_vs_torch", opinfo_of("exp"), target)) == []


def test_faults_are_for_the_operators_own_tests(torch_target: Target) -> None:
    """A declaration that is broken does not keep an executor from being tested."""

    def broken(op: OpInfo, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[SampleInput]:
        raise AttributeError("a slip")
        yield

    info = OpInfo(ltorch.neg, sample_input_generator=broken, torch_reference=torch.neg)
    assert not is_candidate(info, target_of(OperatorExecutor("other")))
    assert list(cases_of("test_meta_vs_torch", info, torch_target))


def test_marks(torch_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directive as it was written; a known failure as a strict xfail with its reason."""
    info = OpInfo(
        ltorch.neg,
        sample_input_generator=elementwise_unary_generator,
        torch_reference=torch.neg,
        test_directives=(DecorateInfo(pytest.mark.skip, "test_meta_vs_torch"),),
    )
    assert marks_of(Case(info, torch_target, "test_meta_vs_torch", "cpu", torch.float32)) == [pytest.mark.skip]
    known = KnownFailure("neg", "it is off", test="test_claimed", run=False)
    object.__setattr__(torch_target, "known_failures", (known,))
    try:
        (mark,) = marks_of(Case(info, torch_target, "test_claimed", "cpu", None))
        assert (mark.name, mark.kwargs) == ("xfail", {"reason": "known: it is off", "strict": True, "run": False})
        assert cases.unmatched(torch_target) == []
        object.__setattr__(torch_target, "known_failures", (known, KnownFailure("nge", "a slip")))
        assert [failure.operator for failure in cases.unmatched(torch_target)] == ["nge"]
    finally:
        object.__setattr__(torch_target, "known_failures", ())


def test_what_is_counted(torch_target: Target) -> None:
    """Samples that exist; a claim stays a claim."""
    case = Case(opinfo_of("neg"), torch_target, "test_meta_vs_torch", "cpu", torch.float32)
    assert case.counted["claimed"] is None
    number = len(list(case.samples()))
    assert case.counted["samples"] == number > 3
    for yes in (False, True, False):
        case.claimed(yes)
    assert case.counted["claimed"] is True
    nothing = Case(opinfo_of("neg"), torch_target, "test_meta_vs_torch", "cpu", torch.bool)
    with pytest.raises(ConformanceFailure, match=r"torch accepts no sample of neg for torch\.bool"):
        list(nothing.samples())
    assert list(nothing.samples(requires_grad=True)) == []


def test_failures_are_told(torch_target: Target) -> None:
    """What differed, which sample it was, and what reproduces it."""
    case = Case(opinfo_of("sub"), torch_target, "test_meta_vs_torch", "cpu", torch.float32)
    sample = SampleInput(torch.ones(2, 3).mT, 2, alpha=3)
    with pytest.raises(ConformanceFailure) as caught, case.sample(7, sample):
        raise Mismatch("they differ")
    lines = str(caught.value).splitlines()
    assert lines[0] == "they differ"
    assert lines[2] == "sample 7 of sub on torch: sub(cpu float32[3, 2] with strides [1, 3], 2, alpha=3)"
    assert "    sample = info.sample_inputs('cpu', torch.float32)[7]" in lines
    assert lines[-1].endswith('-k "test_meta_vs_torch and sub-torch-cpu-float32"')
    with pytest.raises(ConformanceFailure, match="ZeroDivisionError: division") as caught, case.sample(0, sample):
        _ = 1 / 0
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    grad = Case(opinfo_of("sub"), torch_target, "test_grad_vs_torch", "cpu", torch.float64)
    assert "torch.float64, requires_grad=True)[0]" in grad.told(0, sample)
    assert "--thunder-dtypes float64" in grad.command()


def test_what_is_told_runs(torch_target: Target) -> None:
    """The lines that reproduce a failure are a program."""
    case = Case(opinfo_of("sub"), torch_target, "test_grad_vs_torch", "cpu", torch.float64)
    told = case.told(0, opinfo_of("sub").sample_inputs()[0]).splitlines()
    start, end = told.index("Reproduce it with") + 1, told.index("or with")
    exec("\n".join(line.strip() for line in told[start:end]), {"print": lambda *args: None})


def test_every_test_is_marked() -> None:
    """The names that known failures and directives use; the seeds' name among them."""
    assert "test_core_vs_torch_consistency" in TESTS
    assert all(name.startswith("test_") for name in TESTS)
