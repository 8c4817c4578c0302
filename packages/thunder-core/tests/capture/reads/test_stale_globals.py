# SPDX-License-Identifier: Apache-2.0
"""A cached program is never used where a global, a builtin, a function or a closure that it read has changed."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import types
from typing import Any

import pytest
import torch

X = torch.linspace(-1, 1, 6)


SCALE = 2.0
UNRELATED = 1.0
WEIGHT = torch.full((6,), 3.0)
OPTIONS: dict[str, Any] = {"scale": 2.0, "shift": 1}
NAMES = ["a", "b"]
FLAG = True


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def other_helper(x: torch.Tensor) -> torch.Tensor:
    return x * 5


def with_default(x: torch.Tensor, factor: float = 2.0, *, shift: float = 1.0) -> torch.Tensor:
    return x * factor + shift


def test_a_global_number(watch: Any, module_globals: Any) -> None:
    w = watch(lambda x: x * SCALE)
    module_globals("SCALE", 3.0)
    w.changed()
    module_globals("UNRELATED", 7.0)
    w.kept()
    module_globals("SCALE", 3)
    w.changed()


def test_a_global_tensor_flows_in(watch: Any, module_globals: Any) -> None:
    w = watch(lambda x: x * WEIGHT)
    module_globals("WEIGHT", torch.full((6,), 5.0))
    w.kept()
    WEIGHT.mul_(2)
    w.kept()
    module_globals("WEIGHT", torch.full((6,), 5.0, dtype=torch.float64))
    w.changed()
    module_globals("WEIGHT", torch.full((1,), 5.0))
    w.changed()
    module_globals("WEIGHT", 5)
    w.changed()


def test_a_global_flag_in_a_branch(watch: Any, module_globals: Any) -> None:
    w = watch(lambda x: x + 1 if FLAG else x - 1)
    module_globals("FLAG", False)
    w.changed()
    module_globals("FLAG", 0)
    w.changed()


def test_a_global_dict(watch: Any, module_globals: Any) -> None:
    w = watch(lambda x: x * OPTIONS["scale"])
    OPTIONS["scale"] = 4.0
    w.changed()
    OPTIONS["scale"] = 2.0
    module_globals("OPTIONS", {"scale": 7.0, "shift": 1})
    w.changed()


def test_a_global_list_grows(watch: Any) -> None:
    w = watch(lambda x: x * len(NAMES))
    NAMES.append("c")
    try:
        w.changed()
    finally:
        NAMES.pop()


def test_a_global_function_is_replaced(watch: Any, module_globals: Any) -> None:
    w = watch(lambda x: helper(x))
    module_globals("helper", other_helper)
    w.changed()


def test_code_of_a_function_is_replaced(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w = watch(lambda x: helper(x))
    monkeypatch.setattr(helper, "__code__", other_helper.__code__)
    w.changed()


def test_defaults_are_replaced(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w = watch(lambda x: with_default(x))
    monkeypatch.setattr(with_default, "__defaults__", (3.0,))
    w.changed()
    monkeypatch.setattr(with_default, "__kwdefaults__", {"shift": 9.0})
    w.changed()


def test_a_global_shadows_a_builtin(watch: Any) -> None:
    w = watch(lambda x: x * max(1, 2))
    vars(sys.modules[__name__])["max"] = min
    try:
        w.changed()
    finally:
        delattr(sys.modules[__name__], "max")


def test_a_builtin_is_replaced(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w = watch(lambda x: x * abs(-2))
    monkeypatch.setattr(builtins, "abs", lambda v: 7)
    w.changed()


def test_an_attribute_of_a_module_of_the_user(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = types.ModuleType("a_config")
    config.K = 2.0  # type: ignore[attr-defined]
    config.other = 1  # type: ignore[attr-defined]
    monkeypatch.setattr(sys.modules[__name__], "config_module", config, raising=False)
    w = watch(lambda x: x * config_module.K)  # type: ignore[name-defined]  # noqa: F821
    config.K = 5.0  # type: ignore[attr-defined]
    w.changed()
    config.other = 2  # type: ignore[attr-defined]
    w.kept()


def test_an_attribute_of_torch_that_is_no_operation(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "tripled", lambda x: x * 3, raising=False)
    w = watch(lambda x: torch.tripled(x))  # type: ignore[attr-defined]
    monkeypatch.setattr(torch, "tripled", lambda x: x * 4)
    w.changed()


def test_a_closure_cell(watch: Any) -> None:
    k = 2.0

    def change(v: float) -> None:
        nonlocal k
        k = v

    w = watch(lambda x: x * k)
    change(3.0)
    w.changed()


def test_a_closure_of_a_decorator(watch: Any) -> None:
    def scaled(options: dict[str, float]) -> Any:
        def decorate(fn: Any) -> Any:
            @functools.wraps(fn)
            def wrapper(x: Any) -> Any:
                return fn(x) * options["k"]

            return wrapper

        return decorate

    options = {"k": 2.0}

    @scaled(options)
    def f(x: Any) -> Any:
        return x + 1

    w = watch(f)
    options["k"] = 3.0
    w.changed()


def test_a_closure_tensor_flows_in(watch: Any) -> None:
    t = torch.ones(6)

    def change(v: Any) -> None:
        nonlocal t
        t = v

    w = watch(lambda x: x * t)
    change(torch.full((6,), 4.0))
    w.kept()
    change(torch.ones(6, dtype=torch.int64))
    w.changed()


def test_a_partial(watch: Any) -> None:
    part = functools.partial(with_default, factor=3.0)
    w = watch(lambda x: part(x))
    part.keywords["factor"] = 4.0
    w.changed()
    w2 = watch(functools.partial(with_default, factor=2.0))
    w2.kept()


def test_a_cached_helper(watch: Any) -> None:
    k = [2.0]

    @functools.lru_cache
    def factor() -> float:
        return k[0]

    w = watch(lambda x: x * factor())
    w.kept()


def test_annotations_that_are_evaluated_late(watch: Any) -> None:
    """Since Python 3.14 asking for a signature runs code of the function's module."""

    def double(x: Any) -> Any:
        return x * 2

    watch(lambda x: double(x) * len(inspect.signature(double).parameters))


NOTHING = object()
CHOSEN: Any = NOTHING


def test_sentinels(watch: Any) -> None:
    """An object without anything in it is itself."""
    global CHOSEN

    def f(x: Any) -> Any:
        return x if CHOSEN is NOTHING else x + 1

    watched = watch(f)
    CHOSEN = object()
    watched.changed()
