# SPDX-License-Identifier: Apache-2.0
"""`thunder.plugins` itself: the functions over the manager of the process."""

from __future__ import annotations

import pytest

from thunder import plugins


@pytest.fixture
def process_manager(monkeypatch, manager_of, plugin):
    """A manager with one plugin, in the place of the process's own."""
    source = """
        @hookimpl
        def thunder_register_executors(registry):
            registry.register_executor(Executor("acme"))
            registry.register_option("acme_level", type=int, default=1)
            registry.register_transform("fold", lambda trace, context: trace, phase="after_execution")
            registry.register_transform("again", twice, phase="after_execution", after="fold")

        def twice(trace, context):
            return [*trace, context.phase, context.options, *context.executors]

        @hookimpl
        def thunder_conformance_profile(executor):
            return ConformanceProfile(dtypes=("float32",))
        """
    manager = manager_of(plugin("acme", source))
    monkeypatch.setattr(plugins, "_manager", manager)
    return manager


def test_functions_use_the_manager(process_manager, host) -> None:
    """Each function is the manager's method of that name."""
    assert plugins.manager() is process_manager
    assert [record.name for record in plugins.records()] == ["acme"]
    assert plugins.known_options() == {}
    assert plugins.load_named("acme").ready
    plugins.load_all()
    assert list(plugins.known_options()) == ["acme_level"]
    assert [spec.name for spec in plugins.registered_transforms("after_execution")] == ["fold", "again"]
    assert plugins.conformance_profile("acme").dtypes == ("float32",)
    plugins.reset()
    assert host.registered == {}
    assert plugins.known_options() == {}


def test_options_of_plugins_that_are_not_loaded(process_manager) -> None:
    """An unknown option loads the plugins before it is refused; a known one loads nothing."""
    assert plugins.check_options({}) == {}
    assert not plugins.records()[0].ready
    assert plugins.check_options({"acme_level": 2}) == {"acme_level": 2}
    assert plugins.records()[0].ready
    with pytest.raises(TypeError, match="must be int, but it is 'two'"):
        plugins.check_options({"acme_level": "two"})
    with pytest.raises(TypeError, match="unknown compile option 'acme_levels', did you mean 'acme_level'"):
        plugins.check_options({"acme_levels": 2}, others=("cache", "transforms"))


def test_passes(process_manager) -> None:
    """Each pass gets the trace of the one before it; one that changes nothing makes no trace."""
    plugins.load_all()
    traces = list(plugins.transformed([1], "after_execution", options={"acme_level": 2}, executors=["acme"]))
    assert traces == [[1, "after_execution", {"acme_level": 2}, "acme"]]
    assert list(plugins.transformed([1], "before_grad")) == []


@pytest.mark.parametrize(
    ("value", "order"),
    [(None, None), ("", None), (" , ", None), ("torch", ("torch",)), ("b, a,torch,b", ("b", "a", "torch"))],
)
def test_executor_order(monkeypatch, value: str | None, order: tuple[str, ...] | None) -> None:
    """THUNDER_EXECUTORS in the user's order, each name once; unset and empty are the same."""
    if value is None:
        monkeypatch.delenv("THUNDER_EXECUTORS", raising=False)
    else:
        monkeypatch.setenv("THUNDER_EXECUTORS", value)
    assert plugins.executor_order() == order


def test_everything_public_is_documented() -> None:
    """`__all__` is complete, sorted as it reads, and each function and class has a docstring."""
    for name in plugins.__all__:
        thing = getattr(plugins, name)
        if callable(thing):
            assert thing.__doc__, name
