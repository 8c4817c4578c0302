# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: it costs other projects nothing, breaks none of their options, and counts across workers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import thunder.tests.test_ops  # noqa: F401  imported once: sessions inside of this one must not load torch again
from thunder.extend import deregister_executor

pytest_plugins = ["pytester"]

EXECUTOR = """
import torch, thunder.torch as ltorch
from thunder.extend import OperatorExecutor, register_executor

made = register_executor(OperatorExecutor("outside"))
op = made.register_operator("outside_neg", like=lambda a: -a, fn=torch.neg)
made.register_implementation(ltorch.neg, op)
"""


def test_other_projects_pay_nothing(pytester: pytest.Pytester) -> None:
    """Neither torch nor thunder is imported by a session that does not test executors."""
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert "pytest_thunder" in sys.modules
            assert "thunder" not in sys.modules
            assert "torch" not in sys.modules
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*conformance*")


def test_it_imports_the_standard_library_and_pytest_only() -> None:
    """So that it can be looked at before anything else is."""
    code = "import sys; before = set(sys.modules); import pytest; between = set(sys.modules); import pytest_thunder; "
    code += "print(sorted(name for name in set(sys.modules) - between if not name.startswith('importlib')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == "['pytest_thunder']"


def test_an_option_of_the_projects_own(pytester: pytest.Pytester) -> None:
    """A project that has `--executor` keeps it; ours is `--thunder-executor` there."""
    pytester.makeconftest(
        """
        def pytest_addoption(parser):
            parser.addoption("--executor", default="theirs")
        """
    )
    pytester.makepyfile(
        """
        def test_it(request):
            assert request.config.getoption("executor") == "mine"
            assert request.config.getoption("thunder_executor") == "acme"
        """
    )
    result = pytester.runpytest_inprocess("--executor", "mine", "--thunder-executor", "acme")
    result.assert_outcomes(passed=1)


def test_the_short_spelling(pytester: pytest.Pytester) -> None:
    """`--executor` where nobody else has it; help knows both."""
    pytester.makepyfile(
        """
        def test_it(request):
            assert request.config.getoption("thunder_executor") == "acme"
        """
    )
    pytester.runpytest_inprocess("--executor", "acme").assert_outcomes(passed=1)
    shown = pytester.runpytest_inprocess("--help").stdout.str()
    for option in ("--executor", "--thunder-executor", "--thunder-device", "--thunder-dtypes", "--thunder-full"):
        assert option in shown


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one", "two"])
def test_the_table(pytester: pytest.Pytester, workers: list[str]) -> None:
    """The same counts whatever the number of workers, printed and written."""
    pytester.makepyfile(outside=EXECUTOR)
    arguments = ["--pyargs", "thunder.tests", "-p", "outside", "--executor", "outside", "--thunder-dtypes", "float32"]
    options = ["-k", "claimed and neg-outside and not prims", "--thunder-report", "deep/report.json"]
    if workers:
        result = pytester.runpytest_subprocess(*arguments, *options, *workers)
    else:
        pytester.syspathinsert()
        result = pytester.runpytest_inprocess(*arguments, *options)
        deregister_executor("outside")
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["*conformance of outside*", "family*claimed*passed*total", "written to *report.json"])
    counts = json.loads((pytester.path / "deep" / "report.json").read_text())
    assert set(counts["environment"]) == {"thunder", "torch"}
    neg = counts["executors"]["outside"]["operators"]["neg"]
    assert (neg["claimed"], neg["passed"], neg["tests"]["passed"]) == (True, True, 1)


def test_an_executor_that_there_is_not(pytester: pytest.Pytester) -> None:
    """The run stops with the reason, not with a traceback."""
    result = pytester.runpytest_inprocess("--pyargs", "thunder.tests", "--executor", "nonesuch")
    assert result.ret != 0
    text = result.stdout.str() + result.stderr.str()
    assert "there is no executor 'nonesuch'" in text
    assert "Traceback" not in text


def test_by_path_and_operator(pytester: pytest.Pytester) -> None:
    """`pytest thunder/tests/test_ops.py -k unfold`, as contributors write it, from where the package is."""
    from pathlib import Path

    import thunder

    source = Path(thunder.__file__).parents[1]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "thunder/tests/test_ops.py",
        "-k",
        "unfold",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    found = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "conformance of torch" in found.stdout
