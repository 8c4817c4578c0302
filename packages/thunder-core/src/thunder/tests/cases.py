# SPDX-License-Identifier: Apache-2.0
"""Which tests there are: one for each test function, operator, executor, device and dtype for which it makes sense.

A test function is marked with `@conformance(…)`, which says what it runs over. Cases are generated when pytest asks for
them, from the operators that are declared by then; known failures and directives become their marks.
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
from thunder.tests.target import FULL_DTYPES, QUICK_DTYPES, Target

__all__ = ["PROPERTY", "Case", "ConformanceFailure", "conformance", "generate", "takes"]

# The user property of a test's report that holds what the final table counts.
PROPERTY = "thunder_conformance"

Dtypes = Callable[[OpInfo, Target, bool], Iterable[Any]]


class ConformanceFailure(AssertionError):
    """An operation that is not run right; the message says which, and how to see it."""


@dataclass(frozen=True)
class Kind:
    """What a test function runs over."""

    dtypes: Dtypes
    where: Callable[[OpInfo], bool]
    every_operator: bool


TESTS: dict[str, Kind] = {}


# -- what tests run over -----------------------------------------------------------------------------------------------
def each_dtype(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield the dtypes of the run that the operator exists for; with `every`, those of the profile."""
    for dtype in target.every_dtype if every else target.dtypes:
        if any(info.exists_for(device, dtype) for device in target.devices):
            yield dtype


def each_dtype_with_arithmetic(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield as `each_dtype`, without those for which torch has few kernels, so that parts of an operation may have
    none.
    """
    yield from (d for d in each_dtype(info, target, every) if d not in _WITHOUT_KERNELS)


_WITHOUT_KERNELS = frozenset(
    (torch.uint16, torch.uint32, torch.uint64, torch.complex32, *(d for d in FULL_DTYPES if "float8" in str(d)))
)


def first_dtype(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield one dtype: float32 where that is tested and exists."""
    order = sorted(each_dtype(info, target, every), key=lambda d: d is not torch.float32)
    yield from order if every else order[:1]


def each_differentiable_dtype(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield the widest real and the widest complex type; in the full tier, or with `every`, all inexact ones."""
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
    """Yield the widest real and the widest complex type, in the full tier alone."""
    if info.supports_grad is False or OpTags.IN_PLACE_OP in info.tags or not (every or target.full):
        return
    for dtype in (torch.float64, torch.complex128):
        if dtype in target.every_dtype and any(info.exists_for(device, dtype) for device in target.devices):
            yield dtype


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    return max(dtypes, key=lambda d: d.itemsize, default=None)


# What the quick tier looks at of tests that take long: operators of each kind of rule.
SOME_OPERATORS = frozenset(
    (
        "add", "gelu", "prelu", "sum", "amax", "logsumexp", "cumsum", "topk", "softmax", "pad", "linear", "conv2d",
        "max_pool2d", "layer_norm", "scaled_dot_product_attention", "embedding", "index_put", "scatter_add", "cat",
        "batch_norm",
    )
)  # fmt: skip


def widest_dtypes(info: OpInfo, target: Target, every: bool) -> Iterator[torch.dtype]:
    """Yield the widest dtype of the first kind that the operator exists for; in the quick tier for some operators.

    What an executor brings itself is not transformed: its programs are, before it takes their operations.
    """
    if info.name in target.own_operators or not (every or target.full or info.name in SOME_OPERATORS):
        return
    for dtype in (torch.float64, torch.float32, torch.int64, torch.bool, torch.complex128):
        if dtype in target.every_dtype and any(info.exists_for(device, dtype) for device in target.devices):
            yield dtype
            if not every:
                return


def no_dtype(info: OpInfo, target: Target, every: bool) -> Iterator[None]:
    """Once an operator."""
    yield None


def conformance(
    dtypes: Dtypes = each_dtype, *, where: Callable[[OpInfo], bool] = lambda info: True, every_operator: bool = False
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Mark a test function `(case)` of the suite.

    dtypes: which dtypes it runs over. where: for which operators it makes sense. every_operator: also for those that
    the executor has nothing for.
    """

    def mark(test: Callable[[Case], None]) -> Callable[[Case], None]:
        TESTS[test.__name__] = Kind(dtypes, where, every_operator)
        return test

    return mark


# -- cases -------------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Case:
    """One test: an operator on an executor, a device and (mostly) a dtype. `counted` is what the final table counts."""

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
            device=self.device,
            dtype=self.dtype_name,
            claimed=None,
            samples=0,
        )

    @property
    def dtype_name(self) -> str | None:
        """The dtype's name, without torch's."""
        return None if self.dtype is None else str(self.dtype).removeprefix("torch.")

    @property
    def id(self) -> str:
        """What stands in brackets behind the test's name."""
        return "-".join(filter(None, (self.info.name, self.target.name, self.device, self.dtype_name)))

    def claimed(self, yes: bool) -> None:
        """Note whether the executor under test ran (a part of) a sample; one is enough."""
        self.counted["claimed"] = bool(self.counted["claimed"]) or yes

    def tolerance(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return how close results have to be."""
        return self.target.tolerance(self.info, dtype)

    def samples(self, *, requires_grad: bool = False) -> Iterator[tuple[int, SampleInput]]:
        """Yield the samples that torch takes too, with their numbers."""
        assert self.dtype is not None
        for i, sample in enumerate(self.info.sample_inputs(self.device, self.dtype, requires_grad=requires_grad)):
            if exists(self.info, sample):
                self.counted["samples"] += 1
                yield i, sample
        # Asked for gradients, torch may refuse what it computes otherwise: then there are none to compare.
        if not self.counted["samples"] and not requires_grad:
            raise ConformanceFailure(f"torch takes none of the samples of {self.info.name} for {self.dtype}")

    @contextmanager
    def sample(self, number: int, sample: SampleInput) -> Iterator[None]:
        """Within it, what goes wrong is reported with the sample and with what reproduces it."""
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
        """Return which call it was, and how to see it again."""
        args = [describe(a) for a in sample.args] + [f"{k}={describe(v)}" for k, v in sample.kwargs.items()]
        own = f", executor={self.target.name!r}" if self.info.name in self.target.own_operators else ""
        grad = ", requires_grad=True" if "grad" in self.test else ""
        return (
            f"sample {number} of {self.info.name} on {self.target.name}: {self.info.name}({', '.join(args)})\n"
            f"Reproduce it with\n"
            f"    import torch, thunder\n"
            f"    from thunder.tests.opinfos import opinfo_of\n"
            f"    info = opinfo_of({self.info.name!r}{own})\n"
            f"    sample = info.sample_inputs({self.device!r}, {self.dtype}{grad})[{number}]\n"
            f"    call = lambda args, kwargs: info.symbol(*args, **kwargs)\n"
            f"    jitted = thunder.jit(call, executors=[{self.target.name!r}])\n"
            f"    print(jitted(sample.args, sample.kwargs), thunder.last_traces(jitted)[-1])\n"
            f"or with\n"
            f"    {self.command()}"
        )

    def command(self) -> str:
        """Return the command that runs this test alone."""
        options = f"--thunder-device {self.device}"
        if self.dtype is not None and self.dtype not in self.target.dtypes:
            options += f" --thunder-dtypes {self.dtype_name}"
        suite = f"python -m pytest --pyargs thunder.tests --executor {self.target.name}"
        return f'{suite} {options} -k "{self.test} and {self.id}"'


# -- generation --------------------------------------------------------------------------------------------------------
@functools.cache
def is_candidate(info: OpInfo, target: Target) -> bool:
    """Check whether the executor takes the operator or a part of it in any sample: else testing it would test torch."""
    if target.takes_everything or info.name in target.own_operators:
        return True
    for device in target.devices:
        for dtype in (*target.dtypes, *target.every_dtype):
            if info.exists_for(device, dtype):
                if any(takes(target, info, sample) for sample in _samples(info, device, dtype)):
                    return True
                if info.symbol.id not in target.executor.implmap:
                    break  # other dtypes take the same ways through the decomposition
    return False


def _samples(info: OpInfo, device: str, dtype: torch.dtype) -> list[SampleInput]:
    try:
        return info.sample_inputs(device, dtype)
    except Exception:  # a fault of the generator, for the operator's own tests to show
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
    except Exception:  # what cannot be traced or claimed is for the operator's own tests, on torch, to show
        return False


def cases_of(test: str, info: OpInfo, target: Target, *, every: bool = False) -> Iterator[Case]:
    """Yield the cases of a test function for one operator; with `every`, those of all tiers."""
    kind = TESTS[test]
    if not kind.where(info) or not (kind.every_operator or is_candidate(info, target)):
        return
    for device in target.devices:
        for dtype in kind.dtypes(info, target, every):
            if dtype is None or info.exists_for(device, dtype):
                yield Case(info, target, test, device, dtype)


def unmatched(target: Target) -> list[KnownFailure]:
    """Return the known failures that no test of any tier answers to."""
    return [failure for failure in target.known_failures if not _is_matched(failure, target)]


def _is_matched(failure: KnownFailure, target: Target) -> bool:
    for info in target.opinfos:
        for test in TESTS:
            # Asked without a dtype first: most entries name one operator, and probing dtypes takes time.
            if KnownFailure(failure.operator, "", failure.test).matches(info.name, test, None) and any(
                failure.matches(info.name, test, case.dtype_name) for case in cases_of(test, info, target, every=True)
            ):
                return True
    return False


def marks_of(case: Case) -> list[Any]:
    """Return the pytest marks of a case: its operator's directives, and the executor's known failures."""
    marks = case.info.marks(case.test, case.target.name, case.device, case.dtype)
    for failure in case.target.known_failures:
        if failure.matches(case.info.name, case.test, case.dtype_name):
            marks.append(pytest.mark.xfail(reason=f"known: {failure.reason}", strict=True, run=failure.run))
    return marks


def generate(test: str, targets: Iterable[Target]) -> list[Any]:
    """Return the parameters of a test function."""
    with warnings.catch_warnings():
        # What torch says while it is asked what it takes: experimental types, deprecated functions.
        warnings.simplefilter("ignore")
        return [
            pytest.param(case, id=case.id, marks=marks_of(case))
            for target in targets
            for info in target.opinfos
            for case in cases_of(test, info, target)
        ]
