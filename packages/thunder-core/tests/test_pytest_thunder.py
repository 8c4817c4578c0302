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
    run = counts["run"]
    assert set(run["environment"]) == {"thunder", "torch"}
    assert "outside" in run["command"] and "--thunder-report" not in run["command"]
    assert run["selected"] == run["finished"] > 0
    assert (run["shard"], run["matrix"], run["failed"]) == (None, None, [])
    neg = counts["executors"]["outside"]["operators"]["neg"]
    assert (neg["claimed"], neg["passed"], neg["tests"]["passed"]) == (True, True, 1)


MATRIX = """
import pytest

@pytest.mark.parametrize("n", range(23))
def test_it(n):
    assert n != 20

@pytest.fixture
def broken():
    raise ValueError

def test_other(broken):
    pass
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one", "two"])
def test_shards(pytester: pytest.Pytester, workers: list[str]) -> None:
    """Each test that -k selects runs in one of the shards, whatever the number of workers of a shard."""
    pytester.makepyfile(MATRIX)
    runs = []
    for i in (1, 2, 3):
        only = ["-k", "test_it or test_other", "-v", *(workers if i == 2 else [])]
        options = [f"--thunder-shard={i}/3", f"--thunder-report={i}.json", f"--thunder-log={i}.log"]
        pytester.runpytest_inprocess(*only, *options)
        runs.append(json.loads((pytester.path / f"{i}.json").read_text())["run"])
    assert [run["shard"] for run in runs] == ["1/3", "2/3", "3/3"]
    assert [run["selected"] for run in runs] == [run["finished"] for run in runs] == [8, 8, 8]
    assert len({run["matrix"] for run in runs}) == 1
    failed = [test.partition("::")[2] for run in runs for test in run["failed"]]
    assert sorted(failed) == ["test_it[20]", "test_other"]
    lines = [json.loads(line) for i in (1, 2, 3) for line in (pytester.path / f"{i}.log").read_text().splitlines()]
    assert len({line["end"] for line in lines if "end" in line}) == 24
    assert sum("end" in line for line in lines) == 24
    assert [line["selected"] for line in lines if "selected" in line] == [8, 8, 8]


def test_an_interrupted_run(pytester: pytest.Pytester) -> None:
    """The report says how many tests were to run, and how many ended."""
    pytester.makepyfile(MATRIX)
    pytester.runpytest_inprocess("-x", "--thunder-shard=1/1", "--thunder-report=report.json")
    run = json.loads((pytester.path / "report.json").read_text())["run"]
    assert (run["selected"], run["finished"]) == (24, 21)


def test_a_shard_that_there_is_not(pytester: pytest.Pytester) -> None:
    """The run stops with the reason, not with a traceback."""
    pytester.makepyfile(MATRIX)
    result = pytester.runpytest_inprocess("--thunder-shard=4/3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert "a shard is written I/N, with I from 1 to N (such as 1/4), but not '4/3'" in text
    assert "Traceback" not in text


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
