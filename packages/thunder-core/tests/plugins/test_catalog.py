# SPDX-License-Identifier: Apache-2.0
"""Options are checked and explained; passes run in an order that does not depend on who was installed first."""

from __future__ import annotations

import itertools

import pytest

from thunder.core.errors import ThunderError
from thunder.plugins import PHASES, OptionSpec, PassContext, TransformSpec
from thunder.plugins.catalog import Catalog


def transform(name: str, *, before: tuple[str, ...] = (), after: tuple[str, ...] = (), phase: str = "before_grad"):
    return TransformSpec(name, lambda trace, context: trace, phase, before, after, owner=f"owner of {name}")


@pytest.mark.parametrize(
    ("option", "good", "bad", "error"),
    [
        (OptionSpec("level", int, 1), [1, 0, -3], ["1", 1.5, None, True], TypeError),
        (OptionSpec("level", int), [None, 2], ["2"], TypeError),
        (OptionSpec("scale", float, 1.0), [0.5, 2], ["2", False], TypeError),
        (OptionSpec("flag", bool, False), [True, False], [1, "yes"], TypeError),
        (OptionSpec("either", (int, str), "a"), [1, "b"], [1.5], TypeError),
        (OptionSpec("anything"), [1, "b", object(), True], [], TypeError),
        (OptionSpec("mode", str, "fast", choices=("fast", "exact")), ["fast", "exact"], ["slow"], ValueError),
    ],
)
def test_values(option: OptionSpec, good: list, bad: list, error: type[Exception]) -> None:
    """Type and choices; a bool is no number; None where it is the default."""
    for value in good:
        assert option.check(value) is value
    for value in bad:
        with pytest.raises(error, match=f"option '{option.name}' of thunder must be"):
            option.check(value)


def test_a_wrong_option_is_refused_early() -> None:
    """A name that cannot be a keyword, a default that the option itself would refuse."""
    with pytest.raises(ValueError, match="must be a Python identifier, but it is 'acme-level'"):
        OptionSpec("acme-level")
    with pytest.raises(TypeError, match="must be int, but it is '1'"):
        OptionSpec("level", int, "1")


def test_unknown_options() -> None:
    """An unknown option names the known ones and the likely one."""
    catalog = Catalog()
    catalog.add([OptionSpec("acme_level", int, 1)], [])
    assert catalog.check_options({"acme_level": 3}) == {"acme_level": 3}
    with pytest.raises(TypeError) as caught:
        catalog.check_options({"acme_levle": 3}, others=["cache"])
    told = "unknown compile option 'acme_levle', did you mean 'acme_level'? The options are: acme_level, cache"
    assert str(caught.value) == told
    with pytest.raises(TypeError, match=r"unknown compile option 'zzz'\. The options are: acme_level"):
        catalog.check_options({"zzz": 3})


def test_names_are_unique() -> None:
    """The second owner of a name is refused with both named, and with everything it brought."""
    catalog = Catalog()
    catalog.add([OptionSpec("level", owner="plugin 'a'")], [transform("fold")])
    with pytest.raises(ValueError, match="option 'level' of plugin 'b' is already registered by plugin 'a'"):
        catalog.add([OptionSpec("other"), OptionSpec("level", owner="plugin 'b'")], [transform("more")])
    with pytest.raises(ValueError, match="transform 'fold' of owner of fold is already registered"):
        catalog.add([OptionSpec("other")], [transform("fold")])
    assert set(catalog.options()) == {"level"}
    assert [spec.name for spec in catalog.transforms("before_grad")] == ["fold"]


def test_order() -> None:
    """before and after hold, names decide the rest, and the order of registration never matters."""
    specs = [
        transform("z", before=("a",)),
        transform("a"),
        transform("m", after=("a", "not installed")),
        transform("b", after=("m",), before=("not installed",)),
    ]
    for permutation in itertools.permutations(specs):
        catalog = Catalog()
        for spec in permutation:
            catalog.add([], [spec])
        assert [spec.name for spec in catalog.transforms("before_grad")] == ["z", "a", "m", "b"]
        assert catalog.transforms("after_execution") == ()


def test_what_cannot_be_ordered() -> None:
    """A cycle is refused when its last member arrives; who was there stays."""
    catalog = Catalog()
    catalog.add([], [transform("a", before=("b",))])
    with pytest.raises(ValueError, match="the transforms 'a' of owner of a, 'b' of owner of b cannot be ordered"):
        catalog.add([], [transform("b", before=("a",))])
    assert [spec.name for spec in catalog.transforms("before_grad")] == ["a"]


def test_phases() -> None:
    """A phase that does not exist is named with those that do."""
    for make in (lambda: transform("a", phase="late"), lambda: Catalog().transforms("late")):
        with pytest.raises(ValueError, match="before_grad, before_execution, after_execution"):
            make()
    assert all(PHASES.values())
    with pytest.raises(TypeError, match="transform 'a' must be callable"):
        TransformSpec("a", None, "before_grad")  # type: ignore[arg-type]


def test_applying() -> None:
    """A pass gets trace and context; one that fails, or forgets to return, is named with its owner."""
    context = PassContext("before_grad", {"acme_level": 2}, ("acme",))
    spec = TransformSpec("t", lambda trace, context: [*trace, context.options["acme_level"]], "before_grad")
    assert spec.apply([1], context) == [1, 2]
    broken = TransformSpec("t", lambda trace, context: 1 / 0, "before_grad", owner="plugin 'acme'")
    with pytest.raises(ThunderError, match="the pass 't' of plugin 'acme' failed: ZeroDivisionError: ") as caught:
        broken.apply([1], context)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def refuse(trace: object, context: object) -> object:
        raise ThunderError("the user's fault")

    with pytest.raises(ThunderError, match=r"^the user's fault$"):
        TransformSpec("t", refuse, "before_grad").apply([1], context)
    with pytest.raises(ThunderError, match="the pass 't' of plugin 'acme' returned no trace"):
        TransformSpec("t", lambda trace, context: None, "before_grad", owner="plugin 'acme'").apply([1], context)


def test_removal() -> None:
    """Everything of one owner goes, nothing of another."""
    catalog = Catalog()
    catalog.add([OptionSpec("x", owner="a"), OptionSpec("y", owner="b")], [transform("t")])
    catalog.remove("a")
    catalog.remove("owner of t")
    assert set(catalog.options()) == {"y"}
    assert catalog.transforms("before_grad") == ()
