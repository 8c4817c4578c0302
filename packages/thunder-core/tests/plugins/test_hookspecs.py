# SPDX-License-Identifier: Apache-2.0
"""The hooks themselves: complete, documented, and the ones that the plugin API of version 1 promises."""

from __future__ import annotations

import inspect

import pluggy
import pytest

from thunder.plugins import API_VERSION, GROUP, HOOKS, hookspecs
from thunder.plugins.hookspecs import PROJECT, REGISTER_HOOKS

SIGNATURES = {
    "thunder_probe": ["env"],
    "thunder_register_executors": ["registry"],
    "thunder_register_operators": ["registry"],
    "thunder_register_implementations": ["registry"],
    "thunder_register_options": ["registry"],
    "thunder_register_transforms": ["registry"],
    "thunder_conformance_profile": ["executor"],
    "thunder_save_region": ["region"],
}


def test_the_contract_of_version_1() -> None:
    """Names and arguments: published plugins rely on them, so a change here needs another API version."""
    assert (API_VERSION, GROUP) == (1, "thunder.executors.v1")
    assert {name: list(inspect.signature(hook).parameters) for name, hook in HOOKS.items()} == SIGNATURES
    assert [f"thunder_register_{each}" for each in ("executors", "operators", "implementations")] == list(
        REGISTER_HOOKS[:3]
    )


def test_every_hook_is_listed() -> None:
    """HOOKS holds what pluggy finds in the module."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    assert set(vars(manager.hook)) == set(HOOKS)
    for name in ("thunder_probe", "thunder_conformance_profile", "thunder_save_region"):
        assert getattr(manager.hook, name).spec.opts["firstresult"]


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_typed_and_documented(name: str) -> None:
    """A summary line, a body, annotations for every argument and the result; no code."""
    hook = HOOKS[name]
    summary, blank, *rest = inspect.getdoc(hook).splitlines()
    assert summary.endswith((".", "?")) and not blank and len(" ".join(rest)) > 80
    assert set(hook.__annotations__) == {*SIGNATURES[name], "return"}
    assert hook(None) is None
