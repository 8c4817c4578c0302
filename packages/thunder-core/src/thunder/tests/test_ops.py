# SPDX-License-Identifier: Apache-2.0
"""Test every operator on the executors under test: results, gradients, metadata, errors, trace text, and claiming.

pytest --pyargs thunder.tests --executor NAME -k unfold
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.samples import SampleInput
from thunder.core.symbol import OpTags
from thunder.core.trace import Trace
from thunder.executors import PYTHON
from thunder.tests import gradients, running, transformed
from thunder.tests.cases import (
    PROPERTY,
    Case,
    ConformanceFailure,
    conformance,
    each_differentiable_dtype,
    each_dtype_with_arithmetic,
    first_dtype,
    generate,
    is_candidate,
    no_dtype,
    takes,
    unmatched,
    widest_dtypes,
    widest_when_full,
)
from thunder.tests.comparison import Mismatch, compare, widened
from thunder.tests.opinfo import OpInfo
from thunder.tests.opinfos import opinfo_of
from thunder.tests.options import families_of_run, targets_of_run
from thunder.tests.special import special_samples
from thunder.tests.target import WHOLE, Target, operators_without_samples

# torch's warnings about experimental dtypes and deprecated functions are irrelevant here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate the cases of each test from the options of the run."""
    targets, families = targets_of_run(metafunc.config), families_of_run(metafunc.config)
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", [] if families == [WHOLE] else generate(metafunc.function.__name__, targets))
    elif "target" in metafunc.fixturenames:
        whole = targets if not families or WHOLE in families else []
        metafunc.parametrize("target", whole, ids=[target.name for target in whole])


@pytest.fixture(autouse=True)
def _counted(request: pytest.FixtureRequest) -> None:
    """Attach the counts for the summary table to the report. The test computes these counts."""
    callspec = getattr(request.node, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    if case is not None:
        request.node.user_properties.append((PROPERTY, case.counted))


def is_composite(info: OpInfo) -> bool:
    """Check whether the operator decomposes."""
    return not info.symbol.is_prim


def is_elementwise(info: OpInfo) -> bool:
    """Check whether the operator is elementwise and deterministic."""
    return OpTags.ELEMENTWISE_OP in info.tags and OpTags.RANDOM_OP not in info.tags


def _truth(info: OpInfo, sample: SampleInput) -> Any:
    """Return torch's result for the same values in double precision."""
    with running.same_random_numbers():
        return running.reference(info, running.map_tensors(sample, _doubled))


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return widened(x) if x.is_floating_point() or x.is_complex() else x


def _expected(case: Case, sample: SampleInput) -> Any:
    with running.same_random_numbers():
        return running.reference(case.info, sample)


def _compare_with_torch(case: Case, sample: SampleInput, actual: Any, expected: Any, *, values: bool = True) -> None:
    compare(
        actual,
        expected,
        tolerance=case.tolerance,
        truth=lambda: _truth(case.info, sample),
        values=values and case.info.has_values,
    )


# -- the executor ------------------------------------------------------------------------------------------------------
def test_claims_something(target: Target) -> None:
    """Check that the executor claims some operators. Otherwise the suite has only tested torch."""
    if target.executor is PYTHON:
        # This executor runs the guards of prologues and the effects of epilogues, which are not operators with samples.
        _, jitted = running.run_jitted(opinfo_of("add"), SampleInput(torch.ones(2), 1), target.executors)
        assert running.claimed_by(thunder.last_prologue_traces(jitted)[-1], target.executors)
        return
    # Start with the operators that it declares. As soon as it claims one, the rest can be skipped.
    implemented = target.executor.implmap
    for info in sorted(target.opinfos, key=lambda info: info.symbol.id not in implemented):
        if any(
            takes(target, info, sample)
            for device in target.devices
            for dtype in (target.every_dtype if info.symbol.id in implemented else target.dtypes)
            if info.exists_for(device, dtype)
            for sample in info.sample_inputs(device, dtype)
        ):
            return
    pytest.fail(
        f"the executor {target.name!r} claims none of the {len(target.opinfos)} operators on "
        f"{', '.join(target.devices)}: check that it registers implementations and that their checkers accept calls",
        pytrace=False,
    )


def test_own_operators_have_samples(target: Target) -> None:
    """Check that the executor's operators have samples."""
    without = operators_without_samples(target)
    if without:
        pytest.fail(
            f"the executor {target.name!r} has operators without samples, {', '.join(without)}: give each an OpInfo in "
            "the plugin's conformance profile (ConformanceProfile(opinfos=…))",
            pytrace=False,
        )


def test_known_failures_match(target: Target) -> None:
    """Check that every known failure matches a test. Otherwise it is out of date or misspelt."""
    found = unmatched(target)
    if found:
        listed = "".join(f"\n  {failure}" for failure in found)
        pytest.fail(
            f"known failures of {target.name!r} that match no test; remove or correct them:{listed}", pytrace=False
        )


# -- results -----------------------------------------------------------------------------------------------------------
@conformance()
def test_core_vs_torch_consistency(case: Case) -> None:
    """Check that `thunder.jit` returns torch's results and leaves arguments unchanged."""
    for i, sample in case.samples():
        with case.sample(i, sample):
            given = running.copied(sample)
            theirs = running.copied(sample)
            expected = _expected(case, theirs if running.writes(case.info) else sample)
            with running.same_random_numbers():
                actual, jitted = running.run_jitted(case.info, given, case.target.executors)
            trace = thunder.last_traces(jitted)[-1]
            case.claimed(running.claimed_by(trace, case.target.executors))
            random = running.draws_random_numbers(trace)
            _compare_with_torch(case, sample, actual, expected, values=case.target.takes_everything or not random)
            _check_arguments(given, theirs if running.writes(case.info) else sample)
            if case.target.takes_everything and not (random or running.writes(case.info)):
                _check_views(actual, given, expected, sample)
            if random:
                with running.same_random_numbers():
                    again = jitted(given.args, given.kwargs)
                if case.info.has_values:
                    compare(again, actual)


def _check_arguments(given: SampleInput, before: SampleInput) -> None:
    try:
        compare(given.args, before.args)
        compare(given.kwargs, before.kwargs)
    except Mismatch as error:
        raise Mismatch(f"an argument was changed: {error}") from None


def _check_views(actual: Any, given: SampleInput, expected: Any, sample: SampleInput) -> None:
    """Check that results alias the arguments exactly where torch's results do, because in-place writes depend on it."""
    for i, (ours, theirs) in enumerate(zip(running.tensors_in(actual), running.tensors_in(expected))):
        if theirs.numel() and theirs.layout is torch.strided:
            found = [running.share_memory(ours, x) for x in running.tensors_in(given)]
            wanted = [running.share_memory(theirs, x) for x in running.tensors_in(sample)]
            if found != wanted:
                raise Mismatch(
                    f"result {i} shares memory with the arguments as in {found}, but in torch as in {wanted}"
                )


@conformance(each_dtype_with_arithmetic, where=is_elementwise)
def test_special_values(case: Case) -> None:
    """Check NaN, infinities, signed zeros and the ends of the range against torch, also through primitives."""
    assert case.dtype is not None
    for i, sample in enumerate(special_samples((sample for _, sample in case.samples()), case.dtype)):
        if not running.exists(case.info, sample):
            continue
        with case.sample(i, sample):
            expected = _expected(case, sample)
            trace = running.trace_sample(case.info, sample)
            ways = [running.execution_trace(trace, case.target.executors)]
            case.claimed(running.claimed_by(ways[0], case.target.executors))
            if is_composite(case.info):
                ways.append(running.execution_trace(running.to_primitives(trace), ()))
            for way in ways:
                actual = running.run_trace(way, sample)
                truth = functools.partial(_truth, case.info, sample)
                # The selected zero of an operation on several tensors (`maximum(0.0, -0.0)`) is unspecified.
                alone = len(running.tensors_in(sample)) == 1
                compare(actual, expected, tolerance=case.tolerance, truth=truth, signed_zeros=alone)


@conformance(each_dtype_with_arithmetic, where=is_composite)
def test_decomposition(case: Case) -> None:
    """Check that torch, running the decomposition into primitives, gives the same results.

    Fusion executors rely on this.
    """
    for i, sample in case.samples():
        with case.sample(i, sample):
            expected = _expected(case, sample)
            trace = running.to_primitives(running.trace_sample(case.info, sample))
            random = running.draws_random_numbers(trace)
            with running.same_random_numbers():
                actual = running.run_trace(running.execution_trace(trace, ()), sample)
            _compare_with_torch(case, sample, actual, expected, values=not random)
    case.claimed(True)


# -- metadata and text -------------------------------------------------------------------------------------------------
def _compiled(case: Case, sample: SampleInput) -> tuple[Trace, Trace]:
    """Return a sample's trace before and after executors claimed its operations. Record which executors claimed."""
    trace = running.trace_sample(case.info, sample)
    execution = running.execution_trace(trace, case.target.executors)
    case.claimed(running.claimed_by(execution, case.target.executors))
    return trace, execution


@conformance()
def test_meta_vs_torch(case: Case) -> None:
    """Check that shapes, dtypes and devices in the trace match the executor's results."""
    for i, sample in case.samples():
        with case.sample(i, sample):
            trace, execution = _compiled(case, sample)
            with running.same_random_numbers():
                actual = running.run_trace(execution, running.copied(sample) if running.writes(case.info) else sample)
            _compare_metadata(trace.output, actual)


def _compare_metadata(said: Any, actual: Any) -> None:
    if isinstance(said, TensorProxy):
        found = f"a {type(actual).__name__}"
        if isinstance(actual, torch.Tensor):
            found = TensorProxy("x", shape=actual.shape, device=actual.device, dtype=actual.dtype).type_string()
        if found != said.type_string():
            raise Mismatch(f"the meta function returns {said.type_string()}, but the executor returned {found}")
    elif isinstance(said, NumberProxy):
        if type(actual) is not said.python_type:
            raise Mismatch(f"the meta function returns {said.type_string()}, but the executor returned {actual!r}")
    elif isinstance(said, (tuple, list)):
        if not isinstance(actual, (tuple, list)) or len(said) != len(actual):
            raise Mismatch(f"the meta function returns {len(said)} results, but the executor {type(actual).__name__}")
        for s, a in zip(said, actual):
            _compare_metadata(s, a)


@conformance(first_dtype)
def test_trace_reexecutes(case: Case) -> None:
    """Check that the text of a trace runs and gives the same results, both before and after claiming."""
    for i, sample in case.samples():
        with case.sample(i, sample):
            trace, execution = _compiled(case, sample)
            fresh = (lambda s=sample: running.copied(s)) if running.writes(case.info) else (lambda s=sample: s)
            with running.same_random_numbers():
                expected = running.run_trace(execution, fresh())
            for each in (trace, execution):
                with running.same_random_numbers():
                    actual = _reexecuted(each, fresh())
                compare(actual, expected, tolerance=case.tolerance, values=case.info.has_values)


def _reexecuted(trace: Trace, sample: SampleInput) -> Any:
    text = str(trace)
    namespace = trace.python_ctx()
    try:
        exec(compile(text, "<the text of the trace>", "exec"), namespace)
        unique = {id(x): x for x in running.tensors_in(sample)}
        return namespace[trace.name](*unique.values())
    except Exception as error:
        raise ConformanceFailure(f"this text does not run ({type(error).__name__}: {error}):\n{text}") from error


@conformance(no_dtype, every_operator=True)
def test_claimed(case: Case) -> None:
    """Check that the executor runs (a part of) the operators for which it registered an implementation."""
    target, info = case.target, case.info
    case.claimed(False)
    registered = info.symbol.id in target.executor.implmap or info.symbol.executor is target.executor
    if not (registered or is_candidate(info, target)):
        return  # the operator is counted, but this is not a failure
    existing = False
    for dtype in dict.fromkeys((*target.dtypes, *target.every_dtype)):
        if not info.exists_for(case.device, dtype):
            continue
        for i, sample in enumerate(info.sample_inputs(case.device, dtype)):
            if not running.exists(info, sample):
                continue
            existing = True
            with case.sample(i, sample):
                execution = running.execution_trace(running.trace_sample(info, sample), target.executors)
                if running.claimed_by(execution, target.executors) or not running.operations(execution):
                    case.claimed(True)
                    return
    if existing:
        names = ", ".join(str(d).removeprefix("torch.") for d in target.every_dtype)
        raise ConformanceFailure(
            f"the executor {target.name!r} has an implementation of {info.name}, but claimed none of its samples on "
            f"{case.device} (dtypes: {names}): its checker accepts none, or an earlier executor claims them"
        )
    if target.takes_everything:
        raise ConformanceFailure(f"{info.name} supports no dtype on {case.device}: each of its samples is rejected")


# -- gradients ---------------------------------------------------------------------------------------------------------
@conformance(each_differentiable_dtype, where=lambda info: info.has_values)
def test_grad_vs_torch(case: Case) -> None:
    """Check that `backward` through `thunder.jit` gives the gradients of torch's autograd.

    If torch does not have the operator, its gradients are compared with finite differences.
    """
    compare_gradients = gradients.compare_with_autograd
    if case.info.torch_reference is None:
        compare_gradients = gradients.compare_with_differences
    for i, sample in case.samples(requires_grad=True):
        with case.sample(i, sample):
            trace = compare_gradients(case, sample)
            if trace is not None:
                case.claimed(running.claimed_by(trace, case.target.executors))


# torch's second gradient of an embedding does not scale by frequency.
_WRONG_TWICE = ("embedding", "prims.embedding")


def _has_gradients_in_torch(info: OpInfo) -> bool:
    return info.has_values and info.torch_reference is not None


@conformance(widest_when_full, where=lambda info: _has_gradients_in_torch(info) and info.name not in _WRONG_TWICE)
def test_second_order_vs_torch(case: Case) -> None:
    """Check that gradients of gradients match torch's autograd, if torch has them."""
    for i, sample in case.samples(requires_grad=True):
        with case.sample(i, sample):
            program = functools.partial(_call, case.info)
            reference = functools.partial(running.reference, case.info)
            gradients.compare_second_order(
                program, sample, executors=case.target.executors, tolerance=case.tolerance, reference=reference
            )
    case.claimed(True)


def _call(info: OpInfo, args: Any, kwargs: Any) -> Any:
    return info.symbol(*args, **kwargs)


@conformance(widest_when_full, where=_has_gradients_in_torch)
def test_grad_numerically(case: Case) -> None:
    """Check gradients with finite differences if torch's gradients agree with them. (At kinks they are conventions.)"""
    for i, sample in case.samples(requires_grad=True):
        with case.sample(i, sample):
            if gradients.is_derivative_in_torch(case, sample):
                gradients.compare_with_differences(case, sample)
    case.claimed(True)


# -- transforms -------------------------------------------------------------------------------------------------------
def _has_tangents(info: OpInfo) -> bool:
    return (
        not running.writes(info)
        and info.supports_grad is not False
        and info.has_values
        and info.torch_reference is not None
    )


def _compare_each(compare: Callable[[Case, SampleInput], Any], case: Case, **options: bool) -> None:
    for i, sample in case.samples(**options):
        with case.sample(i, sample):
            compare(case, sample)
    case.claimed(True)


@conformance(widest_dtypes, where=_has_tangents)
def test_jvp_vs_torch(case: Case) -> None:
    """Check that `thunder.jvp` gives torch's tangents, computed by forward mode or by double backward."""
    _compare_each(transformed.compare_tangents, case, requires_grad=True)


def _has_examples(info: OpInfo) -> bool:
    """Check whether the operator may be called once per example. It may not if it shares memory or generator state."""
    return not running.writes(info) and OpTags.GENERATOR_STATE_OP not in info.tags


@conformance(widest_dtypes, where=_has_examples)
def test_vmap_vs_torch(case: Case) -> None:
    """Check that `thunder.vmap` over a batch of samples gives the results of a loop over torch."""
    _compare_each(transformed.compare_batches, case)


@conformance(widest_dtypes, where=_has_tangents)
def test_vmap_of_grad_vs_torch(case: Case) -> None:
    """Check that `thunder.vmap` of `thunder.grad`, and the reverse order, give torch's gradient for each example."""
    _compare_each(transformed.compare_batched_gradients, case, requires_grad=True)


# -- errors ------------------------------------------------------------------------------------------------------------
@conformance(no_dtype, where=lambda info: info.error_input_generator is not None)
def test_errors(case: Case) -> None:
    """Check that invalid arguments are rejected while tracing, with the expected exception and message."""
    for i, (sample, kind, pattern) in enumerate(case.info.error_inputs(case.device)):
        with case.sample(i, sample):
            case.counted["samples"] += 1
            traced = functools.partial(running.trace_sample, case.info, sample)
            _check_raises(traced, kind, pattern, "while it is traced")
            jitted = functools.partial(running.run_jitted, case.info, sample, case.target.executors)
            _check_raises(jitted, kind, pattern, "in thunder.jit")
    case.claimed(True)


def _check_raises(call: Callable[[], Any], kind: Any, pattern: str, where: str) -> None:
    names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
    wanted = f"{names} with {pattern!r} {where}"
    try:
        call()
    except kind as error:
        if re.search(pattern, str(error)) is None:
            raise ConformanceFailure(f"the message is {str(error)!r}; expected {wanted}") from error
        return
    except Exception as error:
        raise ConformanceFailure(f"{type(error).__name__}: {error}; expected {wanted}") from error
    raise ConformanceFailure(f"no error was raised; expected {wanted}")
