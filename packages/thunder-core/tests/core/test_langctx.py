# SPDX-License-Identifier: Apache-2.0
"""Language contexts: which language is asked, and what happens where it has no such method."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from thunder.core import dtypes
from thunder.core.langctx import (
    LanguageContext,
    get_langctx,
    langctx,
    register_langctx,
    resolve_language,
    resolve_method,
    set_langctx,
)
from thunder.core.proxies import TensorProxy


@pytest.fixture
def toy() -> LanguageContext:
    """A language of two words."""
    language = LanguageContext("toy")
    language.add_method("add", lambda a, b: ("toy add", a, b))
    language.add_method("shout", lambda a, how="!": f"{a.name}{how}")
    language.add_property("size", lambda a: len(a.shape))
    return language


def a_tensor() -> TensorProxy:
    """A proxy."""
    return TensorProxy("a", shape=(2, 3), device="cpu", dtype=dtypes.float32)


def test_torchs_is_the_default() -> None:
    """Without anything said, and registered when it is first asked for."""
    assert get_langctx().name == "torch"
    code = "from thunder.core.langctx import get_langctx; assert 'add' in get_langctx().methods"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_operators_methods_and_properties_are_the_languages(toy: LanguageContext) -> None:
    """`a + b`, `a.shout()` and `a.size` mean what it says, in it alone."""
    a = a_tensor()
    with set_langctx(toy) as language:
        assert language is toy is get_langctx()
        assert a + 1 == ("toy add", a, 1)
        assert 1 + a == ("toy add", 1, a)
        assert a.shout() == "a!"
        assert a.shout(how="?") == "a?"
        assert a.size == 2
        assert resolve_method("shout") is toy.methods["shout"]
    assert get_langctx().name == "torch"


def test_what_a_language_has_not(toy: LanguageContext) -> None:
    """The error names the language."""
    with set_langctx(toy):
        with pytest.raises(AttributeError, match="no method or operator 'mul' in the language 'toy'"):
            a_tensor() * 2
        with pytest.raises(AttributeError, match="no attribute 'whisper' in the language 'toy'"):
            a_tensor().whisper()
        assert not hasattr(a_tensor(), "whisper")


def test_they_nest_and_end_with_errors(toy: LanguageContext) -> None:
    """The language before comes back."""
    other = LanguageContext("other")
    with set_langctx(toy):
        with pytest.raises(KeyError), set_langctx(other):
            assert get_langctx() is other
            raise KeyError
        assert get_langctx() is toy


def test_the_decorator(toy: LanguageContext) -> None:
    """A function is read in its language wherever it is called from, and keeps its name."""

    @langctx(toy)
    def f(a: Any, b: Any = 1) -> Any:
        """Adds."""
        return a + b

    a = a_tensor()
    assert f(a) == ("toy add", a, 1)
    assert f(a, b=2) == ("toy add", a, 2)
    assert (f.__name__, f.__doc__) == ("f", "Adds.")
    assert get_langctx().name == "torch"


def test_by_name(toy: LanguageContext) -> None:
    """A registered language is found by its name; an unknown one is an error that lists the known."""
    with pytest.raises(ValueError, match=r"no language 'klingon'; the languages are .*numpy.*torch"):
        resolve_language("klingon")
    toy.name = "toy of test_langctx"
    assert register_langctx(toy) is toy
    assert resolve_language(toy.name) is toy
    with set_langctx(toy.name):
        assert get_langctx() is toy


def test_each_thread_has_its_own(toy: LanguageContext) -> None:
    """A language set here is not set there."""
    seen: list[str] = []
    with set_langctx(toy):
        thread = threading.Thread(target=lambda: seen.append(get_langctx().name))
        thread.start()
        thread.join()
    assert seen == ["torch"]
