# SPDX-License-Identifier: Apache-2.0
"""Deprecated names still work, say what to use, and are gone in time."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path

import pytest

import thunder
import thunder.extend
import thunder.plugins
from thunder.core import deprecations
from thunder.core.deprecations import NAMES, Deprecation, removal, warn

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@pytest.mark.parametrize("name", NAMES)
def test_each_deprecation(name: str) -> None:
    """The new name exists, the changelog has a line, and the old name is not kept for longer than it must be."""
    deprecation = NAMES[name]
    module, _, new = deprecation.new.rpartition(".")
    assert hasattr(importlib.import_module(module), new)
    sections = re.split(r"^## ", CHANGELOG.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (section,) = (each for each in sections if each.startswith(f"{deprecation.since}."))
    assert f"`{name}`" in section
    assert number(thunder.__version__) < number(removal(deprecation.since)), f"remove {name}"


def test_what_is_removed_when() -> None:
    """The next minor version still supports it, as docs/plugins.md says."""
    assert [removal(version) for version in ("0.1.0", "0.9", "1.0.3")] == ["0.3", "0.11", "1.2"]
    with pytest.raises(ValueError, match="'new' is no version"):
        removal("new")


@pytest.mark.parametrize("module", ["thunder", "thunder.extend", "thunder.plugins"])
def test_old_names(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A use warns at the user's line, each time; other unknown names are errors, and `dir` does not show old ones."""
    monkeypatch.setitem(NAMES, f"{module}.old_name", Deprecation("thunder.extend.Trace", "0.1"))
    for _ in range(2):
        with pytest.warns(DeprecationWarning) as found:
            assert importlib.import_module(module).old_name is thunder.extend.Trace
        (warning,) = found
        assert warning.filename == __file__
        assert str(warning.message) == (
            f"{module}.old_name is deprecated since thunder-core 0.1, and 0.3 may remove it: use thunder.extend.Trace"
        )
    assert "old_name" not in dir(importlib.import_module(module))
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'no_such_name'"):
        importlib.import_module(module).no_such_name  # noqa: B018


def test_imports_of_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from thunder.extend import old_name` works, too."""
    monkeypatch.setitem(NAMES, "thunder.extend.old_name", Deprecation("thunder.extend.Trace", "0.1"))
    with pytest.warns(DeprecationWarning, match="use thunder.extend.Trace"):
        exec("from thunder.extend import old_name", {})


def test_other_deprecations() -> None:
    """An argument or a behavior: the function calls `warn`, and its caller is blamed."""

    def function() -> None:
        warn("f(old=)", "f(new=)", "0.1")

    with pytest.warns(DeprecationWarning, match=r"f\(old=\) is deprecated since thunder-core 0.1") as found:
        function()
    assert found[0].filename == __file__


def test_nothing_is_deprecated_by_accident() -> None:
    """The public modules' own names do not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for module in (thunder.extend, thunder.plugins):
            assert all(hasattr(module, name) for name in module.__all__)
    assert deprecations.__all__
