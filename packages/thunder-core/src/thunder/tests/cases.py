# SPDX-License-Identifier: Apache-2.0
"""Test cases: one for each applicable combination of test function, operator, executor, device and dtype.

A test function is marked with `@conformance(…)`, which selects its cases. Cases are generated at collection, for all
operators declared by then. Known failures and directives become marks of the cases.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from thunder.core.samples import SampleInput
from thunder.core.symbol import OpTags
from thunder.tests.comparison import Mismatch, describe
from thunder.tests.known_failures import KnownFailure
from thunder.tests.opinfo import OpInfo
from thunder.tests.running import claimed_by, could_claim, execution_trace, exists, trace_sample
from thunder.tests.target import FULL_DTYPES, QUICK_DTYPES, Target, place_of

__all__ = ["PROPERTY", "Case", "ConformanceFailure", "conformance", "generate", "takes"]

# The user property of a test's report that holds the counts of the summary table.
PROPERTY = "thunder_conformance"

Dtypes = Callable[[OpInfo, Target, bool], Iterable[Any]]


class ConformanceFailure(AssertionError):
    """An operation has a wrong result. The message contains a program that reproduces it."""


@dataclass(frozen=True)
class Kind:
    """The parametrization of a test function."""

    dtypes: Dtypes
    where: Callable[[OpInfo], bool]
    every_operator: bool


TESTS: dict[str, Kind] = {}


# -- parametrization -------------------------------------------------------------------------------------------------
def each_dtype(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield the tested dtypes that the operator supports. With `every`, consider all dtypes of the profile."""
    for dtype in target.every_dtype if every else target.dtypes:
        if any(info.exists_for(device, dtype) for device in target.devices):
            yield dtype


def each_dtype_with_arithmetic(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield the dtypes of `each_dtype`, except dtypes for which torch has too few kernels to run decompositions."""
    yield from (d for d in each_dtype(info, target, every) if d not in _WITHOUT_KERNELS)


_WITHOUT_KERNELS = frozenset(
    (torch.uint16, torch.uint32, torch.uint64, torch.complex32, *(d for d in FULL_DTYPES if "float8" in str(d)))
)


def first_dtype(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield one dtype: float32 if it is tested and supported."""
    order = sorted(each_dtype(info, target, every), key=lambda d: d is not torch.float32)
    yield from order if every else order[:1]


def each_differentiable_dtype(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield the widest real and the widest complex dtype.

    In the full tier, or with `every`, yield all inexact dtypes.
    """
    if info.supports_grad is False or OpTags.IN_PLACE_OP in info.tags:
        return
    inexact = [d for d in target.every_dtype if (d.is_floating_point or d.is_complex) and d not in _WITHOUT_KERNELS]
    if not (every or target.full):
        named = [d for d in inexact if d in target.dtypes and d not in QUICK_DTYPES]
        widest = [_widest(d for d in inexact if d.is_complex is kind) for kind in (False, True)]
        inexact = [d for d in inexact if d in named or d in widest]
    for dtype in inexact:
        if any(info.exists_for(device, dtype) for device in target.devices):
            yield dtype


def widest_when_full(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield the widest real and the widest complex dtype. Yield them only in the full tier."""
    if info.supports_grad is False or OpTags.IN_PLACE_OP in info.tags or not (every or target.full):
        return
    for dtype in (torch.float64, torch.complex128):
        if dtype in target.every_dtype and any(info.exists_for(device, dtype) for device in target.devices):
            yield dtype


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    return max(dtypes, key=lambda d: d.itemsize, default=None)


# The operators of slow tests in the quick tier: some operators with each kind of rule.
SOME_OPERATORS = frozenset(
    (
        "add", "gelu", "prelu", "sum", "amax", "logsumexp", "cumsum", "topk", "softmax", "pad", "linear", "conv2d",
        "max_pool2d", "layer_norm", "scaled_dot_product_attention", "embedding", "index_put", "scatter_add", "cat",
        "batch_norm",
    )
)  # fmt: skip


def widest_dtypes(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield the widest dtype of the first kind that the operator supports. The quick tier has only some operators.

    Operators of an executor are not transformed, because transforms run before the executor claims operations.
    """
    if info.name in target.own_operators or not (every or target.full or info.name in SOME_OPERATORS):
        return
    for dtype in (torch.float64, torch.float32, torch.int64, torch.bool, torch.complex128):
        if dtype in target.every_dtype and any(info.exists_for(device, dtype) for device in target.devices):
            yield dtype
            if not every:
                return


def no_dtype(info: OpInfo, target: Target, every: bool) -> Iterator[None]:
    """Yield None: one case per operator."""
    yield None


def conformance(
    dtypes: Dtypes = each_dtype, *, where: Callable[[OpInfo], bool] = lambda info: True, every_operator: bool = False
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Decorate a test function `(case)` of the suite.

    dtypes: the dtypes of its cases.
    where: the operators that it applies to.
    every_operator: also test operators that the executor has no implementation for.
    """

    def mark(test: Callable[[Case], None]) -> Callable[[Case], None]:
        TESTS[test.__name__] = Kind(dtypes, where, every_operator)
        return test

    return mark


# -- cases -------------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Case:
    """One test: an operator on an executor, a device and (usually) a dtype. `counted` is for the summary table."""

    info: OpInfo
    target: Target
    test: str
    device: str
    dtype: torch.dtype | None
    counted: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counted.update(
            operator=self.info.name,
            family=self.info.family,
            test=self.test,
            executor=self.target.name,
            sources=self.target.sources,
            not_tested=list(self.target.not_tested),
            place=place_of(self.target, self.info),
            device=self.device,
            dtype=self.dtype_name,
            claimed=None,
            samples=0,
        )

    @property
    def dtype_name(self) -> str | None:
        """The dtype's name, without the prefix `torch.`."""
        return None if self.dtype is None else str(self.dtype).removeprefix("torch.")

    @property
    def id(self) -> str:
        """The test's id in pytest, in brackets after the test's name."""
        return "-".join(filter(None, (self.info.name, self.target.name, self.device, self.dtype_name)))

    def claimed(self, yes: bool) -> None:
        """Record whether the executor under test ran (a part of) a sample. One such sample is enough."""
        self.counted["claimed"] = bool(self.counted["claimed"]) or yes

    def tolerance(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return the tolerance of results."""
        return self.target.tolerance(self.info, dtype)

    def samples(self, *, requires_grad: bool = False) -> Iterator[tuple[int, SampleInput]]:
        """Yield the samples that torch also accepts, with their indices."""
        assert self.dtype is not None
        for i, sample in enumerate(self.info.sample_inputs(self.device, self.dtype, requires_grad=requires_grad)):
            if exists(self.info, sample):
                self.counted["samples"] += 1
                yield i, sample
        # With requires_grad torch may reject calls that it otherwise accepts. These have no gradients to compare.
        if not self.counted["samples"] and not requires_grad:
            raise ConformanceFailure(f"torch accepts no sample of {self.info.name} for {self.dtype}")

    @contextmanager
    def sample(self, number: int, sample: SampleInput) -> Iterator[None]:
        """Add the sample, and code that reproduces the error, to errors within the context."""
        try:
            yield
        except (KeyboardInterrupt, pytest.skip.Exception, pytest.fail.Exception):
            raise
        except Exception as error:
            what = (
                str(error) if isinstance(error, (Mismatch, ConformanceFailure)) else f"{type(error).__name__}: {error}"
            )
            failure = ConformanceFailure(f"{what}\n\n{self.told(number, sample)}")
            if isinstance(error, (Mismatch, ConformanceFailure)):
                raise failure from None
            raise failure from error

    def told(self, number: int, sample: SampleInput) -> str:
        """Describe the call, with code that reproduces it."""
        args = [describe(a) for a in sample.args] + [f"{k}={describe(v)}" for k, v in sample.kwargs.items()]
        own = f", executor={self.target.name!r}" if self.info.name in self.target.own_operators else ""
        grad = ", requires_grad=True" if "grad" in self.test else ""
        place = self.counted["place"]
        function = f"The function of {self.target.name} is at {place}\n" if place else ""
        return (
            f"sample {number} of {self.info.name} on {self.target.name}: {self.info.name}({', '.join(args)})\n"
            f"{function}Reproduce it with\n"
            f"    import torch, thunder\n"
            f"    from thunder.tests.opinfos import opinfo_of\n"
            f"    info = opinfo_of({self.info.name!r}{own})\n"
            f"    sample = info.sample_inputs({self.device!r}, {self.dtype}{grad})[{number}]\n"
            f"    call = lambda args, kwargs: info.symbol(*args, **kwargs)\n"
            f'    jitted = thunder.jit(call, executors=[{self.target.name!r}], sharp_edges="error")\n'
            f"    print(jitted(sample.args, sample.kwargs), thunder.last_traces(jitted)[-1])\n"
            f"or with\n"
            f"    {self.command()}"
        )

    def command(self) -> str:
        """Return the command that runs only this test."""
        options = f"--thunder-device {self.device}"
        if self.dtype is not None and self.dtype not in self.target.dtypes:
            options += f" --thunder-dtypes {self.dtype_name}"
        suite = f"python -m pytest --pyargs thunder.tests --executor {self.target.name}"
        return f'{suite} {options} -k "{self.test} and {self.id}"'


# -- generation --------------------------------------------------------------------------------------------------------
@functools.cache
def is_candidate(info: OpInfo, target: Target) -> bool:
    """Check whether the executor claims the operator, or a part of it, in any sample.

    Otherwise the test only tests torch.
    """
    if target.takes_everything or info.name in target.own_operators:
        return True
    for device in target.devices:
        for dtype in (*target.dtypes, *target.every_dtype):
            if info.exists_for(device, dtype):
                if any(takes(target, info, sample) for sample in _samples(info, device, dtype)):
                    return True
                if info.symbol.id not in target.executor.implmap:
                    break  # other dtypes decompose in the same way
    return False


def _samples(info: OpInfo, device: str, dtype: torch.dtype) -> list[SampleInput]:
    try:
        return info.sample_inputs(device, dtype)
    except Exception:  # a bug of the generator, which the operator's other tests report
        return []


def takes(target: Target, info: OpInfo, sample: SampleInput) -> bool:
    """Check whether the executor runs (a part of) a sample."""
    if not exists(info, sample):
        return False
    try:
        trace = trace_sample(info, sample)
        if not could_claim(trace, target.executors):
            return False
        return claimed_by(execution_trace(trace, target.executors), target.executors)
    except Exception:  # the operator's other tests report errors of tracing or claiming, on torch
        return False


def cases_of(test: str, info: OpInfo, target: Target, *, every: bool = False) -> Iterator[Case]:
    """Yield the cases of a test function for one operator. With `every`, yield the cases of all tiers."""
    kind = TESTS[test]
    if not kind.where(info) or not (kind.every_operator or is_candidate(info, target)):
        return
    for device in target.devices:
        for dtype in kind.dtypes(info, target, every):
            if dtype is None or info.exists_for(device, dtype):
                yield Case(info, target, test, device, dtype)


def unmatched(target: Target) -> list[KnownFailure]:
    """Return the known failures that match no test in any tier."""
    return [failure for failure in target.known_failures if not _is_matched(failure, target)]


def _is_matched(failure: KnownFailure, target: Target) -> bool:
    for info in target.opinfos:
        for test in TESTS:
            # Start without a dtype: most entries name one operator, and it takes time to determine the supported
            # dtypes.
            if KnownFailure(failure.operator, "", failure.test).matches(info.name, test, None) and any(
                failure.matches(info.name, test, case.dtype_name) for case in cases_of(test, info, target, every=True)
            ):
                return True
    return False


def marks_of(case: Case) -> list[Any]:
    """Return the pytest marks of a case, from the operator's directives and the executor's known failures."""
    marks = case.info.marks(case.test, case.target.name, case.device, case.dtype)
    for failure in case.target.known_failures:
        if failure.matches(case.info.name, case.test, case.dtype_name):
            marks.append(pytest.mark.xfail(reason=f"known: {failure.reason}", strict=True, run=failure.run))
    return marks


def generate(test: str, targets: Iterable[Target]) -> list[Any]:
    """Return the parameters of a test function."""
    with warnings.catch_warnings():
        # Suppress torch's warnings about experimental dtypes and deprecated functions.
        warnings.simplefilter("ignore")
        return [
            pytest.param(case, id=case.id, marks=marks_of(case))
            for target in targets
            for info in target.opinfos
            for case in cases_of(test, info, target)
        ]
