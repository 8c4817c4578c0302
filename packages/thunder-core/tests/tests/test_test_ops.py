# SPDX-License-Identifier: Apache-2.0
"""The suite catches what it is there to catch: executors that are wrong on purpose, each in one way."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import thunder.tests.test_ops  # noqa: F401  imported once: sessions inside of this one must not load torch again
import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import get_grad, put_grads
from thunder.extend import OperatorExecutor, deregister_executor, register_executor
from thunder.plugins import ConformanceProfile
from thunder.tests import target as targets

pytest_plugins = ["pytester"]

NAME = "on_purpose"


@pytest.fixture
def executor() -> Iterator[OperatorExecutor]:
    """An executor of that name, in use for one test."""
    made = OperatorExecutor(NAME, version="1")
    register_executor(made)
    yield made
    deregister_executor(made)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Runs the suite for the executor in a session of its own, within this process."""

    def run(*options: str, only: str = "mul and not matmul") -> pytest.RunResult:
        arguments = [
            "--pyargs",
            "thunder.tests",
            "--executor",
            NAME,
            "--tb=short",
            "-p",
            "no:cacheprovider",
            "-k",
            only,
        ]
        return pytester.runpytest_inprocess(*arguments, *options)

    return run


def takes_tensors(a: Any, b: Any) -> bool:
    """As an executor's checker would say."""
    return all(isinstance(x, TensorProxy) and x.device.type == "cpu" for x in (a, b))


def product(a: Any, b: Any) -> Any:
    """What multiplication means; the operators of the executors are like it."""
    return a * b


def implement(executor: OperatorExecutor, run: Callable[..., Any], **more: Any) -> None:
    op = executor.register_operator("acme_mul", like=product, fn=run)
    executor.register_implementation(ltorch.mul, op, checker=takes_tensors, **more)


def failed_tests(result: pytest.RunResult) -> set[str]:
    """The names of the test functions that failed, without their parameters."""
    return {report.nodeid.rpartition("::")[2].partition("[")[0] for report in result.reprec.getfailedcollections()} | {
        report.nodeid.rpartition("::")[2].partition("[")[0]
        for report in result.reprec.getreports("pytest_runtest_logreport")
        if report.failed
    }


def test_a_right_one_passes(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """And the table says so."""
    implement(executor, torch.mul)
    result = suite("-v", only="claims_something or own_operators or (mul and not matmul)")
    assert failed_tests(result) == set()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*conformance of on_purpose*", "family*claimed*passed*known failures*failed*total"])
    assert f"test_core_vs_torch_consistency[mul-{NAME}-cpu-float32] PASSED" in result.stdout.str()
    all_operators = next(line.split() for line in result.outlines if line.startswith("all "))
    assert int(all_operators[1]) >= 1  # claimed
    assert all_operators[3:5] == ["0", "0"]  # known failures, failed


def test_off_by_one(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """Wrong values."""
    implement(executor, lambda a, b: torch.mul(a, b) + 1)
    result = suite()
    assert "test_core_vs_torch_consistency" in failed_tests(result)
    result.stdout.fnmatch_lines(
        [
            "*elements of result (cpu float32[[]4, 4[]]) differ: first at (0, 0)*",
            f"*sample 0 of mul on {NAME}: mul(cpu float32[[]4, 4[]], cpu float32[[]4, 4[]])",
            "*info = opinfo_of('mul')",
            f'*python -m pytest --pyargs thunder.tests --executor {NAME} --thunder-device cpu -k "test_core_vs_*',
        ]
    )


def test_wrong_only_where_it_broadcasts(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """The samples go where kernels go wrong."""
    implement(executor, lambda a, b: torch.mul(a, b) if a.shape == b.shape else torch.mul(a, b) * 1.001)
    assert "test_core_vs_torch_consistency" in failed_tests(suite())


def test_wrong_gradient(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """Right values, and a gradient that forgets a factor."""

    def wrong(a: TensorProxy, b: TensorProxy) -> TensorProxy:
        out = a * b
        g = get_grad(out)
        put_grads((a, b), (g * b, g))
        return out

    implement(executor, torch.mul, grad_transform=wrong)
    assert failed_tests(suite("--thunder-dtypes", "float32")) == {"test_grad_vs_torch"}


def test_wrong_dtype(
    executor: OperatorExecutor, suite: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right numbers in a wider type than the meta function says."""
    monkeypatch.setenv("THUNDER_VERIFY", "0")  # the suite has to find it, not the check of every call
    implement(executor, lambda a, b: torch.mul(a, b).to(torch.float64))
    result = suite()
    assert {"test_core_vs_torch_consistency", "test_meta_vs_torch"} <= failed_tests(result)
    result.stdout.fnmatch_lines(["*the dtype of result is torch.float64, but should be torch.float32*"])
    result.stdout.fnmatch_lines(
        ["*meta function returns cpu f32[[]4, 4[]], but the executor returned cpu f64[[]4, 4[]]*"]
    )


def test_wrong_shape(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """An extra dimension."""
    implement(executor, lambda a, b: torch.mul(a, b)[None])
    assert {"test_core_vs_torch_consistency", "test_meta_vs_torch"} <= failed_tests(suite())


def test_writes_to_its_arguments(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """The right result, computed in place."""
    implement(executor, lambda a, b: a.mul_(b) if (a * b).shape == a.shape == b.shape else a * b)
    result = suite()
    assert "test_core_vs_torch_consistency" in failed_tests(result)
    result.stdout.fnmatch_lines(["*an argument was changed*"])


def test_crashes(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """The vendor's error is shown, with what reproduces it."""

    def crash(a: Any, b: Any) -> Any:
        raise OSError("libacme is not there")

    implement(executor, crash)
    result = suite("--thunder-dtypes", "float32")
    assert "test_core_vs_torch_consistency" in failed_tests(result)
    result.stdout.fnmatch_lines(["*OSError: libacme is not there*", "*Reproduce it with*"])


def test_claims_nothing(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """An executor without implementations would only prove that torch is like torch."""
    result = suite(only="mul or claims_something")
    assert failed_tests(result) == {"test_claims_something"}
    result.stdout.fnmatch_lines(["*the executor 'on_purpose' claims none of the * operators on cpu: check that*"])


def test_never_says_yes(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """A checker that refuses everything: what is registered has to be run."""
    op = executor.register_operator("acme_mul", like=product, fn=torch.mul)
    executor.register_implementation(ltorch.mul, op, checker=lambda a, b: "not today")
    result = suite(only="mul or claims_something")
    assert failed_tests(result) == {"test_claims_something", "test_claimed"}
    result.stdout.fnmatch_lines(["*'on_purpose' has an implementation of mul, but claimed none of its samples on cpu*"])


def test_an_operator_without_samples(executor: OperatorExecutor, suite: Callable[..., pytest.RunResult]) -> None:
    """What an executor brings itself has to be tested too."""
    implement(executor, torch.mul)
    executor.register_operator("acme_extra", like=product, fn=torch.mul)
    result = suite(only="own_operators")
    assert failed_tests(result) == {"test_own_operators_have_samples"}
    result.stdout.fnmatch_lines(["*has operators without samples, acme_extra*"])


# -- known failures ---------------------------------------------------------------------------------------------------


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the executor a profile, as its plugin would."""

    def give(**content: Any) -> None:
        monkeypatch.setattr(
            targets, "conformance_profile", lambda name: ConformanceProfile(**content) if name == NAME else None
        )

    return give


WRONG = [
    {"operator": "mul", "test": "test_core_vs_torch_consistency", "reason": "off by one"},
    {"operator": "mul", "test": "test_decomposition", "dtypes": ["bool"], "reason": "off by one"},
]


def test_known_failures(executor: Any, suite: Callable[..., pytest.RunResult], profile: Callable[..., None]) -> None:
    """A listed failure is expected, and the table counts it."""
    implement(executor, lambda a, b: torch.mul(a, b) + 1)
    profile(dtypes=("float32", "float64"), known_failures=[{"operator": "mul", "reason": "off by one"}])
    core = suite("-rx", only="core_vs and [mul-on")
    assert core.ret == 0
    core.assert_outcomes(xfailed=1)
    core.stdout.fnmatch_lines(["*known: off by one*"])
    assert next(line.split() for line in core.outlines if line.startswith("all "))[3] == "1"


def test_a_known_failure_that_passes(
    executor: Any, suite: Callable[..., pytest.RunResult], profile: Callable[..., None]
) -> None:
    """Is a failure: the list is out of date."""
    implement(executor, torch.mul)
    profile(dtypes=("float32",), known_failures=[{"operator": "mul", "reason": "it was wrong once"}])
    result = suite(only="core_vs and [mul-on")
    assert failed_tests(result) == {"test_core_vs_torch_consistency"}
    result.stdout.fnmatch_lines(["*XPASS(strict)*known: it was wrong once*"])


def test_a_known_failure_that_matches_nothing(
    executor: Any, suite: Callable[..., pytest.RunResult], profile: Callable[..., None]
) -> None:
    """Is an error, whatever `-k` and the tier leave out; one that matches what was left out is not."""
    implement(executor, torch.mul)
    profile(
        known_failures=[
            {"operator": "mull", "reason": "a slip"},
            {"operator": "mul", "test": "test_cor", "reason": "another"},
            {"operator": "mul", "dtypes": ["complex63"], "reason": "and another"},
            {"operator": "mul", "test": "test_meta_vs_torch", "dtypes": ["int16"], "reason": "only in the full tier"},
            {"operator": "mul", "dtypes": ["int8"], "reason": "not here", "when": {"device": "cuda"}},
        ]
    )
    result = suite(only="known_failures")
    assert failed_tests(result) == {"test_known_failures_match"}
    text = result.stdout.str()
    assert "operator = 'mull' (entry 1 of the profile)" in text
    assert "operator = 'mul', test = 'test_cor' (entry 2 of the profile)" in text
    assert "dtypes = ['complex63'] (entry 3 of the profile)" in text
    assert "entry 4" not in text
    assert "entry 5" not in text


def test_dtypes_devices_and_tolerances(
    executor: Any, suite: Callable[..., pytest.RunResult], profile: Callable[..., None]
) -> None:
    """The profile says what to test and how closely."""
    implement(executor, lambda a, b: torch.mul(a, b) * 1.001)
    profile(dtypes=("float32",), tolerances={"mul:float32": (1e-2, 1e-2), "float64": (1e-2, 1e-2)})
    result = suite("-v", only="[mul-on and (core_vs or meta)")
    assert result.ret == 0
    result.assert_outcomes(passed=2)
    profile(devices=("no_such_device",))
    result = suite()
    assert result.ret != 0
    assert "is tested on no_such_device, but this machine has none" in result.stdout.str() + result.stderr.str()


def test_a_plugins_own_operators(
    executor: Any, suite: Callable[..., pytest.RunResult], profile: Callable[..., None]
) -> None:
    """Come with their OpInfos, and are tested like ours."""
    from thunder.tests.opinfos import OpInfo, elementwise_binary_generator

    def run(scale: float) -> None:
        op = executor.register_operator("acme_double_mul", like=lambda a, b: a * b * 2, fn=lambda a, b: a * b * scale)
        info = OpInfo(
            op, sample_input_generator=elementwise_binary_generator, torch_reference=lambda a, b: operator.mul(a, b) * 2
        )
        profile(dtypes=("float32",), opinfos=lambda: [info])

    run(2.0)
    result = suite("-v", only="acme_double_mul or own_operators or claims_something")
    assert failed_tests(result) == set()
    assert "test_grad_vs_torch[acme_double_mul-on_purpose-cpu-float32] PASSED" in result.stdout.str()
    run(3.0)
    assert "test_core_vs_torch_consistency" in failed_tests(suite(only="acme_double_mul"))


def test_an_operator_that_falls_back(
    executor: Any, suite: Callable[..., pytest.RunResult], profile: Callable[..., None]
) -> None:
    """Its results are right, but it is not compiled: the run fails, and says why."""
    from thunder.tests.opinfos import OpInfo, elementwise_binary_generator

    def stays_python(a: Any, b: Any) -> Any:
        fall_back("acme_python_mul is not traced", asked=True)  # without a warning

    op = executor.register_operator("acme_python_mul", like=stays_python, fn=product)
    info = OpInfo(op, sample_input_generator=elementwise_binary_generator, torch_reference=operator.mul)
    profile(dtypes=("float32",), opinfos=lambda: [info])
    result = suite(only="acme_python_mul")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert failed_tests(result) >= {"test_core_vs_torch_consistency", "test_grad_vs_torch"}
    result.stdout.fnmatch_lines(["*cannot be compiled: acme_python_mul is not traced*"])


def test_a_copy_where_torch_has_a_view(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch executor's views are views: who writes to one changes what it is a view of."""
    from thunder.tests import running
    from thunder.tests.opinfos import opinfo_of

    original = running.run_jitted

    def copies(info: Any, sample: Any, executors: Any) -> Any:
        result, jitted = original(info, sample, executors)
        return (result.clone() if info is opinfo_of("unfold") else result), jitted

    monkeypatch.setattr(running, "run_jitted", copies)
    only = "core_vs and [unfold-torch-cpu-float32"
    result = pytester.runpytest_inprocess(
        "--pyargs", "thunder.tests", "--tb=short", "-p", "no:cacheprovider", "-k", only
    )
    assert failed_tests(result) == {"test_core_vs_torch_consistency"}
    result.stdout.fnmatch_lines(
        ["*result 0 shares memory with the arguments as in [[]False[]], but in torch as in [[]True[]]*"]
    )
