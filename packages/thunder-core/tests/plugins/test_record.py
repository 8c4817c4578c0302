# SPDX-License-Identifier: Apache-2.0
"""Records: what they keep of a failure, and what they tell a person and a program."""

from __future__ import annotations

import gc
import json
import weakref

import pytest

from thunder.plugins import PluginLoadError, PluginRecord, PluginState
from thunder.plugins.record import PENDING


def fail_in(record: PluginRecord, stage: str | None, error: BaseException) -> None:
    record.stage = stage
    try:
        raise error
    except BaseException as caught:
        record.fail(caught)


def test_a_failure_is_kept_as_text(plugin) -> None:
    """Stage, type and first line in the reason; the rest in the traceback; no reference to the exception."""

    class Broken(RuntimeError):
        pass

    record = plugin("acme")
    error = Broken("no device\nsecond line")
    gone = weakref.ref(error)
    fail_in(record, "thunder_probe", error)
    del error
    gc.collect()  # an exception and the frame that caught it hold each other
    assert record.state is PluginState.FAILED
    assert record.reason == "thunder_probe: Broken: no device"
    assert "second line" in record.traceback
    assert "fail_in" in record.traceback
    assert gone() is None


@pytest.mark.parametrize(
    ("error", "reason"), [(KeyError(), "import: KeyError"), (SystemExit(3), "import: SystemExit: 3")]
)
def test_a_failure_without_words(plugin, error: BaseException, reason: str) -> None:
    """An exception that says nothing is still named."""
    record = plugin("acme")
    fail_in(record, "import", error)
    assert record.reason == reason


def test_description_and_error(plugin) -> None:
    """One line with plugin, distribution, state and reason; the error adds where to look."""
    record = plugin("acme")
    assert record.describe() == "executor plugin 'acme' (thunder-ex-acme 1.0) is compatible"
    record.end(PluginState.UNAVAILABLE, "no GPU.")
    assert record.describe() == "executor plugin 'acme' (thunder-ex-acme 1.0) is unavailable: no GPU."
    error = record.load_error()
    assert isinstance(error, PluginLoadError)
    assert str(error) == f"{record.describe()} `python -m thunder doctor acme` shows more."
    record.end(PluginState.BLOCKED, "disabled by THUNDER_DISABLE_PLUGINS")
    assert str(record.load_error()).endswith("is blocked: disabled by THUNDER_DISABLE_PLUGINS.")
    record.version = None
    assert record.source == "thunder-ex-acme"


def test_states(plugin) -> None:
    """Loading may still change the first ones; only READY is ready."""
    record = plugin("acme")
    for state in PluginState:
        record.end(state)
        assert record.pending is (state in PENDING)
        assert record.ready is (state is PluginState.READY)


def test_json(plugin, manager_of) -> None:
    """Everything of a record survives JSON."""
    record = plugin("acme")
    manager_of(record).load_named("acme")
    told = json.loads(json.dumps(record.to_dict()))
    assert told["name"] == "acme"
    assert told["state"] == "ready"
    assert told["group"] == "thunder.executors.v1"
    assert told["executors"] == [{"name": "acme", "version": "1.0", "priority": 0, "default": True}]
