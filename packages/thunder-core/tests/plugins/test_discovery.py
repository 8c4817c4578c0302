# SPDX-License-Identifier: Apache-2.0
"""Discovery: from metadata alone, without an import, whatever shape the metadata is in."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from thunder.core.environment import names_in
from thunder.plugins import GROUP, PluginRecord, PluginState
from thunder.plugins.discovery import core_version, disabled_names, discover


def found(*folders: Path, core: str = "0.1.0", **environ: str) -> dict[tuple[str, str], PluginRecord]:
    """The records of scratch site directories, by plugin and distribution."""
    distributions = metadata.distributions(path=[str(folder) for folder in folders])
    records = discover(distributions, environ=environ, core=core)
    return {(record.name, record.distribution): record for record in records}


def only(*folders: Path, **options: str) -> PluginRecord:
    (record,) = found(*folders, **options).values()
    return record


def test_a_plugin_is_found_and_not_imported(site) -> None:
    """Name, distribution, version, target and range come from metadata; a module that does not exist is no matter."""
    folder = site(
        "thunder-ex-acme",
        version="2.1",
        entry_points={GROUP: {"acme": "no_such_module.plugin"}, "console_scripts": {"acme": "x:y"}},
        requires=("torch>=2", "thunder-core>=0.1,<0.3"),
    )
    site("unrelated", entry_points={"pytest11": {"unrelated": "u"}})
    record = only(folder)
    assert (record.name, record.distribution, record.version) == ("acme", "thunder-ex-acme", "2.1")
    assert record.entry_point.value == "no_such_module.plugin"
    assert record.requires_core == ">=0.1,<0.3"
    assert record.state is PluginState.COMPATIBLE
    assert record.reason is None
    assert "no_such_module" not in sys.modules


@pytest.mark.parametrize(
    ("requires", "core", "reason"),
    [
        ("thunder-core>=0.2", "0.1.0", "requires thunder-core>=0.2, but 0.1.0 is installed"),
        ("thunder-core<0.3", "0.3.dev1", "requires thunder-core<0.3, but 0.3.dev1 is installed"),
        (
            "thunder-core>>0.1",
            "0.1.0",
            "its requirement thunder-core>>0.1 cannot be read: '>>0.1' is not a version range",
        ),
    ],
)
def test_another_core(site, requires: str, core: str, reason: str) -> None:
    """A range that leaves this thunder-core out is told with both sides."""
    record = only(site("acme", entry_points={GROUP: {"acme": "acme"}}, requires=(requires,)), core=core)
    assert (record.state, record.reason) == (PluginState.INCOMPATIBLE, reason)


@pytest.mark.parametrize(
    "requires",
    [(), ("thunder-core",), ("thunder-core[tests] ; extra == 'tests'",), ("thunder-core>=0.1", "thunder-core<0.2")],
)
def test_a_core_that_fits(site, requires: tuple[str, ...]) -> None:
    """No range, a bare name, an extra's own requirement, several ranges."""
    assert only(site("acme", entry_points={GROUP: {"acme": "acme"}}, requires=requires)).state is PluginState.COMPATIBLE


def test_another_api(site) -> None:
    """A plugin of another API version is reported; one that offers several is taken at ours, once."""
    site("thunder-ex-later", entry_points={"thunder.executors.v2": {"later": "later"}})
    site("unrelated", entry_points={"thunder.executors.v1.internal": {"x": "x"}, "thunder.executors.vx": {"x": "x"}})
    folder = site("both", entry_points={"thunder.executors.v2": {"both": "two"}, GROUP: {"both": "one"}})
    records = found(folder)
    assert set(records) == {("later", "thunder-ex-later"), ("both", "both")}
    later = records["later", "thunder-ex-later"]
    assert later.state is PluginState.INCOMPATIBLE
    assert later.reason == (
        "made for plugin API 2, but this thunder-core has 1: "
        "install a version of thunder-ex-later that offers 'thunder.executors.v1'"
    )
    assert records["both", "both"].entry_point.value == "one"


@pytest.mark.parametrize("disabled", ["acme", "other, acme", "Thunder_Ex.Acme", "*", " , acme ,"])
def test_disabled(site, disabled: str) -> None:
    """By plugin, by distribution however it is spelt, or all."""
    record = only(site("thunder-ex-acme", entry_points={GROUP: {"acme": "a"}}), THUNDER_DISABLE_PLUGINS=disabled)
    assert (record.state, record.reason) == (PluginState.BLOCKED, "disabled by THUNDER_DISABLE_PLUGINS")


@pytest.mark.parametrize("disabled", ["", "Acme", "acm", "acme2", ","])
def test_not_disabled(site, disabled: str) -> None:
    """Only exact names of plugins count."""
    record = only(site("thunder-ex-acme", entry_points={GROUP: {"acme": "a"}}), THUNDER_DISABLE_PLUGINS=disabled)
    assert record.state is PluginState.COMPATIBLE


@pytest.mark.parametrize("name", ["torch", "python"])
def test_reserved_names(site, name: str) -> None:
    """Core's own executors cannot be taken over by name."""
    record = only(site("acme", entry_points={GROUP: {name: "acme"}}))
    assert (record.state, record.reason) == (
        PluginState.BLOCKED,
        f"the name {name!r} belongs to an executor of thunder-core",
    )


@pytest.mark.parametrize(
    ("distributions", "winner"),
    [
        (("b-kernels", "a-kernels"), "a-kernels"),
        (("a-kernels", "thunder-ex-acme"), "thunder-ex-acme"),
        (("Thunder_Ex_Acme", "a-kernels", "z-kernels"), "Thunder_Ex_Acme"),
    ],
)
def test_two_plugins_of_one_name(site, distributions: tuple[str, ...], winner: str) -> None:
    """The distribution named after the plugin wins, else the first in the alphabet; every record names all of them."""
    for distribution in distributions:
        folder = site(distribution, entry_points={GROUP: {"acme": "acme"}})
    records = found(folder)
    assert len(records) == len(distributions)
    for (_, distribution), record in records.items():
        assert all(f"{other} 1.0" in record.conflict for other in distributions)
        assert f"that of {winner} is used" in record.conflict
        assert record.state is (PluginState.COMPATIBLE if distribution == winner else PluginState.BLOCKED)
        if distribution != winner:
            assert record.reason.startswith(record.conflict)
            assert f"THUNDER_DISABLE_PLUGINS={winner}" in record.reason


def test_the_other_one_can_be_had(site) -> None:
    """Disabling the winner's distribution, or its being incompatible, leaves the name to the other."""
    site("a-kernels", entry_points={GROUP: {"acme": "acme"}})
    site("b-kernels", entry_points={GROUP: {"acme": "acme"}})
    folder = site("c-kernels", entry_points={GROUP: {"acme": "acme"}}, requires=("thunder-core>=9",))
    records = found(folder, THUNDER_DISABLE_PLUGINS="a-kernels")
    states = {distribution: record.state.value for (_, distribution), record in records.items()}
    assert states == {"a-kernels": "blocked", "b-kernels": "compatible", "c-kernels": "incompatible"}
    assert not any(record.conflict for record in records.values())


def test_the_first_copy_counts(site) -> None:
    """Of two copies of a distribution on the path Python imports the first; so does discovery, without a conflict."""
    first = site("thunder-ex-acme", version="2.0", entry_points={GROUP: {"acme": "new"}}, folder="first")
    second = site("thunder_ex_acme", version="1.0", entry_points={GROUP: {"acme": "old"}}, folder="second")
    record = only(first, second)
    assert (record.version, record.conflict) == ("2.0", None)


def test_broken_metadata(site) -> None:
    """One distribution's broken metadata hides that distribution and no other."""
    folder = site("a-broken", entry_points={GROUP: {"broken": "broken"}})
    (folder / "a_broken-1.0.dist-info" / "METADATA").unlink()
    (folder / "empty-1.0.dist-info").mkdir()
    bad = site("b-broken", entry_points={GROUP: {"worse": "worse"}})
    (bad / "b_broken-1.0.dist-info" / "entry_points.txt").write_bytes(b"[thunder.executors.v1]\nworse = \xff\xfe\n")
    site("thunder-ex-acme", entry_points={GROUP: {"acme": "acme"}})
    assert ("acme", "thunder-ex-acme") in found(folder)


def test_order(site) -> None:
    """By plugin name, not in the order in which a directory lists them."""
    for distribution, name in (("x", "b"), ("y", "a"), ("w", "c")):
        folder = site(distribution, entry_points={GROUP: {name: name}})
    assert [name for name, _ in found(folder)] == ["a", "b", "c"]


def test_this_environment(monkeypatch) -> None:
    """Without arguments it looks at sys.path, os.environ and the installed thunder-core."""
    assert core_version() == metadata.version("thunder-core")
    monkeypatch.setenv("THUNDER_DISABLE_PLUGINS", "b,a, b")
    assert disabled_names() == {"a", "b"}
    assert names_in("THUNDER_DISABLE_PLUGINS") == ("b", "a")
    assert isinstance(discover(), list)


def test_a_source_tree_without_metadata(site, monkeypatch) -> None:
    """Where thunder-core is not installed, ranges cannot be judged and hold nobody up."""

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    folder = site("acme", entry_points={GROUP: {"acme": "acme"}}, requires=("thunder-core>=9",))
    monkeypatch.setattr(metadata, "version", missing)
    assert core_version() is None
    (record,) = discover(metadata.distributions(path=[str(folder)]), environ={})
    assert record.state is PluginState.COMPATIBLE
