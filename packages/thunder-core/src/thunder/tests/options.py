# SPDX-License-Identifier: Apache-2.0
"""Compute the targets of a pytest run from its options. `pytest_thunder` declares the options."""

from __future__ import annotations

import pytest

from thunder import plugins
from thunder.core.errors import PluginLoadError
from thunder.tests.known_failures import BadKnownFailures
from thunder.tests.target import WHOLE, BadTarget, Target, targets_of

__all__ = ["families_of_run", "targets_of_run"]

_KEY: pytest.StashKey[list[Target]] = pytest.StashKey()


def families_of_run(config: pytest.Config) -> list[str]:
    """Return the selected families of this run. None means all families, and the tests of the executor as a whole."""
    return _names(config.getoption("thunder_family"))


def targets_of_run(config: pytest.Config) -> list[Target]:
    """Return the targets of this run. They are cached."""
    if _KEY not in config.stash:
        try:
            config.stash[_KEY] = targets_of(
                _names(config.getoption("thunder_executor")) or _installed(),
                devices=_names(config.getoption("thunder_device")),
                dtypes=_names(config.getoption("thunder_dtypes")),
                full=config.getoption("thunder_full"),
                families=[family for family in families_of_run(config) if family != WHOLE],
            )
        except (BadTarget, BadKnownFailures, PluginLoadError, ValueError) as error:
            raise pytest.UsageError(str(error)) from None
    return config.stash[_KEY]


def _installed() -> list[str]:
    """Return the executors that a run without `--executor` tests: torch's, and those of plugins that can run here."""
    plugins.load_all()
    return ["torch", *[info.name for record in plugins.records() if record.ready for info in record.executors]]


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
