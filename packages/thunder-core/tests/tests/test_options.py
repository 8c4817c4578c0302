# SPDX-License-Identifier: Apache-2.0
"""From a run's options to what it tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thunder import plugins
from thunder.tests.options import targets_of_run


def config(**options: Any) -> Any:
    """As much of a pytest configuration as is asked."""
    given = {
        "thunder_executor": None,
        "thunder_device": None,
        "thunder_dtypes": None,
        "thunder_full": False,
        "thunder_family": None,
        **options,
    }
    return SimpleNamespace(stash=pytest.Stash(), getoption=given.__getitem__)


def test_nothing_given() -> None:
    """The torch executor on the CPU; the same object each time."""
    run = config()
    (target,) = targets_of_run(run)
    assert (target.name, target.devices, target.full) == ("torch", ("cpu",), False)
    assert targets_of_run(run)[0] is target


def test_installed_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no executor is named, those of plugins that can run here are tested, too."""
    record = SimpleNamespace(ready=True, executors=(SimpleNamespace(name="python"),))
    broken = SimpleNamespace(ready=False, executors=(SimpleNamespace(name="nonesuch"),))
    monkeypatch.setattr(plugins, "records", lambda: (record, broken))
    assert [target.name for target in targets_of_run(config())] == ["torch", "python"]
    assert [target.name for target in targets_of_run(config(thunder_executor="torch"))] == ["torch"]


def test_several() -> None:
    """With commas, blanks allowed."""
    run = config(
        thunder_executor="torch, python", thunder_device="cpu", thunder_dtypes="float32,int8", thunder_full=True
    )
    first, second = targets_of_run(run)
    assert (first.name, second.name) == ("torch", "python")
    assert second.dtypes == (torch.float32, torch.int8)
    assert second.full


def test_what_cannot_be_tested() -> None:
    """Ends the run with the reason."""
    for options, message in (
        ({"thunder_executor": "nonesuch"}, "there is no executor 'nonesuch'"),
        ({"thunder_dtypes": "float63"}, "there is no dtype 'float63'"),
        ({"thunder_device": "no_such_device"}, "no device no_such_device"),
    ):
        with pytest.raises(pytest.UsageError, match=message):
            targets_of_run(config(**options))
