# SPDX-License-Identifier: Apache-2.0
"""`nox -s programs`: the verdicts of small programs, and the page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from programs import examine as examining
from programs.counting import Counter
from programs.examine import examine
from programs.program import Program, Project
from programs.projects import MODULES
from programs.report import page, problems, summary
from programs.results import Result, append, read
from programs.values import Difference, compare


def result_of(build: Callable[[], Any], *, trains: bool = False) -> Result:
    result = Result("project", "name")
    examine(Program("project", "name", "README", build, trains), result, how="thunder", save=lambda partial: None)
    return result


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time nothing."""
    monkeypatch.setattr(examining, "best_times", lambda calls: dict.fromkeys(calls, 1.0))


def inputs() -> tuple[torch.Tensor]:
    return (torch.randn(2, 3),)


def test_compiled() -> None:
    """A module with state, whose gradients are compared."""
    result = result_of(
        lambda: (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)), inputs), trains=True
    )
    assert (result.verdict, result.share, result.retraces, result.calls) == ("compiled", 1.0, 0, 10)
    assert result.first is not None
    assert result.ratio == 1.0


def test_pieces_and_eager() -> None:
    """Only the operators of modules that a partly eager function calls are inside."""

    def build(between: Callable[[Any], Any]) -> Any:
        block = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        between = thunder.disable(between)
        return (lambda x: block(between(x))), inputs, block

    found = result_of(lambda: build(lambda x: x.sin().cos()))
    assert (found.verdict, found.retraces) == ("pieces", 0)
    assert "partly eager" in found.reason
    assert result_of(lambda: (thunder.disable(lambda x: x.sin()), inputs)).verdict == "eager"


def test_retraces() -> None:
    """Calls that are traced again are counted."""

    def build() -> Any:
        table, counter = {"k": 0}, iter(range(1000))

        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * len(str(table["k"] // 2))

        def fresh() -> Any:
            table["k"] = 10 ** (next(counter) % 12)
            return inputs()

        return fn, fresh

    assert result_of(build).retraces > 0


def test_wrong_refused_and_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs from eager is wrong, what only thunder cannot run is refused."""

    def build() -> Any:
        return (lambda x: x + thunder_runs()), inputs

    def thunder_runs() -> int:
        return int(thunder.core.state.state.frontend is not None)

    monkeypatch.setattr(examining, "thunder", thunder)
    monkeypatch.setattr(thunder, "jit", lambda fn: lambda *args: fn(*args) + 1)
    assert result_of(build).verdict == "wrong"

    def refuses(fn: Any) -> Any:
        def call(*args: Any) -> Any:
            raise ValueError("no")

        return call

    monkeypatch.setattr(thunder, "jit", refuses)
    found = result_of(build)
    assert (found.verdict, found.reason.split(" | ")[0]) == ("refused", "ValueError: no")
    assert result_of(lambda: (lambda x: x.no_such_method(), inputs)).verdict == "eager fails"


def test_counting() -> None:
    """Operators of a program are inside, those of the user's code outside, and those of thunder's runtime neither."""
    jitted = thunder.jit(torch.nn.Linear(3, 3))
    x = torch.randn(2, 3)
    for _ in range(2):
        with Counter() as counter:
            jitted(x)
    assert counter.share == 1.0
    with Counter() as counter:
        x.sin()
    assert counter.share == 0.0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (torch.ones(2), torch.tensor([1.0, 1.001])),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}),
        ([torch.ones(2)], (torch.ones(2),)),
        (1, True),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
    ],
)
def test_differences(ours: Any, theirs: Any) -> None:
    """Values, dtypes, names, containers and types differ; equal ones do not."""
    with pytest.raises(Difference):
        compare(ours, theirs, "result")
    with contextlib.nullcontext():
        compare(theirs, theirs, "result")


def test_page(tmp_path: Any) -> None:
    """The page has a row for each program, and results are kept."""
    results = [
        Result("einops", "layers", "compiled", 1.0, first=0.1, eager=1.0, warm=1.1),
        Result("einops", "einsum", "refused", reason="ValueError: no"),
    ]
    for result in results:
        append(tmp_path / "results", result)
    assert read(tmp_path / "results") == {result.key: result for result in results}
    text = page(results)
    assert "| layers | README, layers in a Sequential | compiled | 100 % | 0 | 0.10 s | 1.10 |" in text
    assert "| einops/einsum | refused | ValueError: no |" in text
    assert problems(results) == results[1:]
    assert "1 refused" in summary(results)


def test_projects() -> None:
    """A project has a limited number of programs, with different names."""
    project = Project("p", rank=None, requires=[], limit=1)
    project.add("a", "README", lambda: None)
    with pytest.raises(ValueError, match="two programs"):
        project.add("a", "README", lambda: None)
    project.add("b", "README", lambda: None)
    assert list(project.programs) == ["a"]
    assert len(MODULES) == len(set(MODULES)) >= 12
