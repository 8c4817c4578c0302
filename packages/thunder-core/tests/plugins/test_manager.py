# SPDX-License-Identifier: Apache-2.0
"""The manager: one plugin at a time, whatever goes wrong in it stays in it, and the record tells all."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from outcomes import in_threads

from thunder.plugins import PluginLoadError, PluginState
from thunder.plugins.hookspecs import REGISTER_HOOKS

GOOD = """
    @hookimpl
    def thunder_probe(env):
        return Availability(True)

    @hookimpl
    def thunder_register_executors(registry):
        registry.register_executor(Executor("acme", "2"), default=True, priority=5)

    @hookimpl
    def thunder_register_operators(registry):
        registry.register_operator("acme_mul", like=None, fn=None)

    @hookimpl
    def thunder_register_implementations(registry):
        registry.register_implementation("torch.mul", registry.operator("acme_mul"))

    @hookimpl
    def thunder_register_options(registry):
        registry.register_option("acme_level", type=int, default=1)

    @hookimpl
    def thunder_register_transforms(registry):
        registry.register_transform("acme_fold", lambda trace: trace, phase="before_grad")

    @hookimpl
    def thunder_conformance_profile(executor):
        return ConformanceProfile(devices=("cpu", executor.name))
    """

REGISTER = """
    @hookimpl
    def thunder_register_executors(registry):
        registry.register_executor(Executor("acme"))
        registry.register_option("acme_level")
    """


def hook(signature: str, body: str) -> str:
    """The source of one hook."""
    return f"@hookimpl\ndef {signature}:\n    {body}"


#: What can go wrong: the sources of the plugin, and the reason that is recorded.
BROKEN: dict[str, tuple[list[str], str]] = {
    "import": (["import no_such_library_"], "import: ModuleNotFoundError: No module named 'no_such_library_'"),
    "exit": (["import sys; sys.exit('no licence')"], "import: SystemExit: no licence"),
    "syntax": (["def (:"], "import: SyntaxError: invalid syntax"),
    "empty": ([""], "hooks: TypeError: {module} implements no hook: mark its hooks with @thunder.plugins.hookimpl"),
    "unmarked": (
        ["def thunder_probe(env): return Availability(True)"],
        "hooks: TypeError: thunder_probe in {module} is not marked with @thunder.plugins.hookimpl",
    ),
    "misspelt": (
        [hook("thunder_register_executor(registry)", "pass")],
        "hooks: TypeError: thunder_register_executor in {module} is not a hook of thunder: did you mean thunder_reg",
    ),
    "other prefix": ([hook("probe(env)", "pass")], "hooks: PluginValidationError: unknown hook 'probe'"),
    "wrong argument": (
        [hook("thunder_probe(environment)", "pass")],
        "hooks: TypeError: thunder_probe in {module} has an argument 'environment', but the hook's are 'env'",
    ),
    "probe raises": (
        [REGISTER, hook("thunder_probe(env)", "raise OSError('libacme.so: not found')")],
        "thunder_probe: OSError: libacme.so: not found",
    ),
    "probe answers": (
        [REGISTER, hook("thunder_probe(env)", "return 'yes'")],
        "thunder_probe: TypeError: thunder_probe must return a thunder.plugins.Availability, but it returned 'yes'",
    ),
    "no executors": (
        [hook("thunder_register_executors(registry)", "pass")],
        "commit: ValueError: plugin 'acme' registers no executor, no option and no transform",
    ),
    "unknown symbol": (
        [
            REGISTER,
            hook("thunder_register_implementations(registry)", "registry.register_implementation('unknown')"),
        ],
        "commit: ValueError: there is no symbol with the id 'unknown'",
    ),
    **{
        f"{name} raises": (
            [REGISTER, hook(f"{name}(registry)", "raise RuntimeError('on purpose')")],
            f"{name}: RuntimeError: on purpose",
        )
        for name in REGISTER_HOOKS[1:]
    },
}


def test_a_plugin_is_loaded(plugin: Callable[..., Any], manager_of: Callable[..., Any], host: Any) -> None:
    """Everything it brings is in use, and its record says what that is."""
    record = plugin("acme", GOOD)
    manager = manager_of(record)
    assert manager.load_named("acme") is record
    assert (record.state, record.reason, record.stage) == (PluginState.READY, None, None)
    executor, default, priority = host.registered["acme"]
    assert (executor.version, default, priority) == ("2", True, 5)
    assert executor.implementations[0][0] == "torch.mul"
    told = record.to_dict()
    assert told["executors"] == [{"name": "acme", "version": "2", "priority": 5, "default": True}]
    assert (told["operators"], told["options"], told["transforms"]) == (["acme_mul"], ["acme_level"], ["acme_fold"])
    assert manager.catalog.check_options({"acme_level": 2}) == {"acme_level": 2}
    assert [spec.name for spec in manager.catalog.transforms("before_grad")] == ["acme_fold"]
    assert manager.owner_of("acme") is record
    assert manager.conformance_profile("acme").devices == ("cpu", "acme")
    assert manager.conformance_profile("torch") is None


def test_what_the_import_took(plugin, manager_of, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the module alone: what hooks import is not counted."""
    clock = SimpleNamespace(perf_counter=iter((10.0, 13.5)).__next__)
    monkeypatch.setattr(sys.modules["thunder.plugins.manager"], "time", clock)
    record = plugin("acme", GOOD)
    assert record.import_seconds is None
    manager_of(record).load_named("acme")
    assert record.to_dict()["import_seconds"] == 3.5


def test_what_is_said_of_a_plugin_that_can_run(
    plugin: Callable[..., Any], manager_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is used, and its record and a line of the log have what its probe said."""
    record = plugin("acme", GOOD.replace("Availability(True)", "Availability(True, 'built for another torch')"))
    with caplog.at_level(logging.INFO, "thunder.plugins"):
        manager_of(record).load_named("acme")
    assert (record.state, record.reason) == (PluginState.READY, "built for another torch")
    assert "is ready: built for another torch" in caplog.text


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_breaks_nothing(kind: str, plugin, manager_of, host, caplog) -> None:
    """It is recorded with stage, reason and traceback, logged once, leaves nothing behind, and harms no other."""
    sources, reason = BROKEN[kind]
    broken = plugin("acme", *sources)
    first, last = plugin("aaa"), plugin("zzz")
    manager = manager_of(first, broken, last)
    with caplog.at_level(logging.DEBUG, logger="thunder.plugins"):
        manager.load_all()
        manager.load_all()
    assert set(host.registered) == {"aaa", "zzz"}
    assert manager.catalog.options() == {}
    assert broken.state is PluginState.FAILED
    expected = reason.format(module=broken.entry_point.value)
    assert broken.reason.startswith(expected)
    assert broken.stage == expected.partition(":")[0]
    assert "Traceback" in broken.traceback
    warnings = [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "'acme' (thunder-ex-acme 1.0) failed: " in warnings[0]
    assert "\n" not in warnings[0]
    with pytest.raises(PluginLoadError, match=re.escape(expected)):
        manager.load_named("acme")


def test_a_plugin_that_cannot_run_here(plugin, manager_of, host, caplog) -> None:
    """The probe's no is no fault: it is told to who asks, and registers nothing."""
    record = plugin("acme", REGISTER, hook("thunder_probe(env)", "return Availability(False, 'needs a GPU')"))
    manager = manager_of(record)
    with caplog.at_level(logging.INFO, logger="thunder.plugins"):
        manager.load_all()
        manager.load_all()
    assert (record.state, record.reason) == (PluginState.UNAVAILABLE, "needs a GPU")
    assert [(entry.levelname, entry.message) for entry in caplog.records] == [("INFO", record.describe())]
    assert host.registered == {}
    with pytest.raises(PluginLoadError, match="is unavailable: needs a GPU"):
        manager.load_named("acme")


def test_a_probe_may_leave_its_argument_out(plugin, manager_of) -> None:
    """pluggy hands an implementation the arguments that it names."""
    record = plugin("acme", REGISTER, hook("thunder_probe()", "return Availability(True)"))
    manager_of(record).load_named("acme")
    assert record.ready


@pytest.mark.parametrize(
    ("sources", "traceback"), [((), False), (("raise ImportError('libtorch.so: undefined symbol')",), True)]
)
def test_broken_torch_is_not_the_plugins_fault(plugin, manager_of, broken_env, host, sources, traceback: bool) -> None:
    """Where torch cannot be imported, that is the reason, whatever the plugin says of itself."""
    record = plugin("acme", *sources)
    manager = manager_of(record, env=broken_env)
    manager.load_all()
    assert record.state is PluginState.UNAVAILABLE
    assert record.reason.startswith("torch cannot be imported (ImportError: libtorch.so")
    assert (record.traceback is not None) is traceback
    assert host.registered == {}


def test_without_torch_the_registry_of_executors_is_left_alone(plugin, manager_of, broken_env) -> None:
    """thunder.extend cannot be imported without torch, so nothing may ask it for executors."""

    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    record = plugin("acme", REGISTER)
    manager = manager_of(record, env=broken_env, host=Untouchable())
    with pytest.raises(PluginLoadError, match="torch cannot be imported"):
        manager.load_named("acme")
    with pytest.raises(PluginLoadError, match="there is no executor 'other'"):
        manager.load_named("other")
    manager.reset()


def test_naming_one_imports_no_other(plugin, manager_of, host) -> None:
    """Neither what comes before it nor what comes after it; the rest when all are wanted."""
    before, wanted, after = plugin("aaa"), plugin("acme"), plugin("zzz")
    manager = manager_of(before, wanted, after)
    manager.load_named("acme")
    assert set(host.registered) == {"acme"}
    assert wanted.entry_point.value in sys.modules
    assert before.entry_point.value not in sys.modules
    assert after.entry_point.value not in sys.modules
    manager.load_all()
    assert set(host.registered) == {"aaa", "acme", "zzz"}


def test_an_executor_of_another_name(plugin, manager_of, host) -> None:
    """An executor that is not called as its plugin is found by loading all of them."""
    source = """
        @hookimpl
        def thunder_register_executors(registry):
            registry.register_executor(Executor("acme_attention"))
            registry.register_executor(Executor("acme_norms"))
        """
    record = plugin("acme", source)
    manager = manager_of(record, plugin("zzz"))
    assert manager.load_named("acme_norms") is record
    assert set(host.registered) == {"acme_attention", "acme_norms", "zzz"}


def test_unknown_names(plugin, manager_of, host) -> None:
    """The error lists executors and plugins, and the likely one."""
    host.register_executor(plugin_executor := _Executor("torch"))
    manager = manager_of(plugin("acme"))
    with pytest.raises(PluginLoadError) as caught:
        manager.load_named("amce")
    assert str(caught.value) == (
        "there is no executor 'amce', and no installed distribution provides a plugin of that name, "
        "did you mean 'acme'? "
        "Executors: acme, torch; plugins: acme"
    )
    assert plugin_executor in host.get_all_executors()


def test_a_distribution_that_announces_no_plugin(plugin, manager_of, site, monkeypatch) -> None:
    """It is installed, and its entry point is in another group: the error says so."""
    folder = site("thunder-ex-amce", version="0.3", entry_points={"thunder.executor.v1": {"amce": "amce"}})
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(
        PluginLoadError, match=r"thunder-ex-amce 0.3 is installed, but has no entry point 'amce' in the "
    ):
        manager_of(plugin("acme")).load_named("amce")


class _Executor:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize("state", [PluginState.BLOCKED, PluginState.INCOMPATIBLE])
def test_what_metadata_rules_out_is_not_imported(plugin, manager_of, state: PluginState, caplog) -> None:
    """A disabled or incompatible plugin stays unimported, and naming it gives its reason."""
    record = plugin("acme", state=state, reason="made for plugin API 2")
    manager = manager_of(record)
    manager.load_all()
    assert record.entry_point.value not in sys.modules
    assert len(caplog.records) == (1 if state is PluginState.INCOMPATIBLE else 0)
    with pytest.raises(PluginLoadError, match=f"is {state.value}: made for plugin API 2"):
        manager.load_named("acme")


def test_a_conflict(plugin, manager_of, caplog) -> None:
    """The loser of a name is logged; the name stands for the winner, also when that one is broken."""
    loser = plugin("acme", distribution="b", state=PluginState.BLOCKED, reason="a and b", conflict="a and b")
    winner = plugin("acme", "import no_such_library_", distribution="a", conflict="a and b")
    manager = manager_of(loser, winner)
    assert manager.find("acme") is winner
    with pytest.raises(PluginLoadError, match="no_such_library_"):
        manager.load_named("acme")
    assert sum("(b 1.0) is blocked: a and b" in entry.message for entry in caplog.records) == 1


def test_two_plugins_with_one_executor(plugin, manager_of, host) -> None:
    """Of two plugins that bring executors of one name the second fails, and says so."""
    first, second = plugin("first", REGISTER), plugin("second", REGISTER)
    manager_of(first, second).load_all()
    assert first.ready
    assert second.reason.startswith("commit: ValueError: an executor named 'acme' is already registered")
    assert list(host.registered) == ["acme"]


def test_bypassing_the_registry(plugin, manager_of, host) -> None:
    """A plugin that registers executors by itself while it is imported, and then fails, leaves none behind."""
    sys.modules["host_of_this_test"] = host
    try:
        leak = "host_of_this_test.register_executor(Executor('leak'), default=True)"
        record = plugin("acme", "import host_of_this_test", leak, "1 / 0")
        host.register_executor(_Executor("mine"))
        manager_of(record).load_all()
    finally:
        del sys.modules["host_of_this_test"]
    assert record.state is PluginState.FAILED
    assert list(host.registered) == ["mine"]


def test_a_plugin_that_compiles_while_it_is_imported(plugin, manager_of, host) -> None:
    """It comes back into load_all: the others are still loaded, once, after it."""
    calls: list[str] = []
    first = plugin("acme", "import host_of_this_test as h", "h.load_all()", "h.load_named_quietly()", REGISTER)
    manager = manager_of(first, plugin("zzz"))

    def named() -> None:
        with pytest.raises(PluginLoadError):
            manager.load_named("acme")
        calls.append("named")

    host.load_all, host.load_named_quietly = manager.load_all, named
    sys.modules["host_of_this_test"] = host
    try:
        manager.load_named("acme")
        assert list(host.registered) == ["acme"]
        manager.load_all()
    finally:
        del sys.modules["host_of_this_test"]
    assert list(host.registered) == ["acme", "zzz"]
    assert calls == ["named"]


def test_an_interrupt_passes(plugin, manager_of, host) -> None:
    """Control-C while a plugin is loaded reaches the user, and the next use tries again."""
    source = """
        import sys
        sys.first_time_of_this_test = not hasattr(sys, "first_time_of_this_test")
        @hookimpl
        def thunder_probe(env):
            if sys.first_time_of_this_test:
                sys.first_time_of_this_test = False
                raise KeyboardInterrupt
        """
    record = plugin("acme", source, REGISTER)
    manager = manager_of(record)
    try:
        with pytest.raises(KeyboardInterrupt):
            manager.load_all()
        assert (record.state, record.stage) == (PluginState.COMPATIBLE, None)
        manager.load_all()
    finally:
        del sys.first_time_of_this_test
    assert record.ready
    assert list(host.registered) == ["acme"]


def test_threads_load_once(plugin, manager_of, host) -> None:
    """Eight threads compile at the same time; each plugin is loaded once, and nobody goes on before it is."""
    record = plugin("acme", "import time", "time.sleep(0.05)", REGISTER)
    manager = manager_of(record)
    seen: list[bool] = []
    start = threading.Barrier(8)

    def compile_something() -> None:
        start.wait()
        manager.load_all()
        seen.append("acme" in host.registered)

    in_threads(compile_something, [()] * 8)
    assert seen == [True] * 8
    assert record.ready


def test_an_object_as_plugin(plugin, manager_of, host) -> None:
    """The entry point may name an instance; a class is refused with a reason."""
    source = """
        class Plugin:
            @hookimpl
            def thunder_register_executors(self, registry):
                registry.register_executor(Executor("acme"))
        instance = Plugin()
        """
    record = plugin("acme", source)
    module = record.entry_point.value
    record.entry_point = type(record.entry_point)("acme", f"{module}:instance", record.entry_point.group)
    manager_of(record).load_named("acme")
    wrong = plugin("other", source)
    wrong.entry_point = type(record.entry_point)("other", f"{module}:Plugin", record.entry_point.group)
    manager_of(wrong).load_all()
    assert (
        wrong.reason
        == f"hooks: TypeError: {module}:Plugin is a class; the entry point must name a module, or an instance"
    )


def test_a_wrong_profile(plugin, manager_of) -> None:
    """The conformance suite gets a profile, none, or an error that names the plugin."""
    manager = manager_of(plugin("acme", REGISTER, hook("thunder_conformance_profile(executor)", "return {}")))
    manager.load_all()
    with pytest.raises(TypeError, match=r"thunder_conformance_profile of thunder-ex-acme 1\.0 returned \{\}"):
        manager.conformance_profile("acme")
    without = manager_of(plugin("bare"))
    without.load_all()
    assert without.conformance_profile("bare") is None


def test_reset(plugin, manager_of, host) -> None:
    """Everything that plugins brought goes; what the program registered stays; the next use starts anew."""
    record = plugin("acme", GOOD)
    manager = manager_of(record)
    mine = _Executor("mine")
    host.register_executor(mine)
    manager.reset()
    manager.load_all()
    manager.reset()
    assert host.get_all_executors() == (mine,)
    assert (manager.catalog.options(), manager.catalog.transforms("before_grad")) == ({}, ())
    assert manager.owner_of("acme") is None
    record.state = PluginState.COMPATIBLE
    manager.load_all()
    assert set(host.registered) == {"mine", "acme"}
