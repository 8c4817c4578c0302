# SPDX-License-Identifier: Apache-2.0
"""Saved prologues call functions under `functools.lru_cache` if their file is signed, and no others."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder
from thunder.saved import signing
from thunder.saved.constants import Decoder
from thunder.saved.programs import SavedText
from thunder.saved.references import Stale, fingerprint
from thunder.saved.verify import Names, Refused, verify

calls: list[Any] = []


@functools.lru_cache
def scale(name: str, *, power: int = 1) -> float:
    """A function that a program calls."""
    calls.append((name, power))
    return float(len(name) ** power)


@functools.lru_cache
def table(n: int) -> torch.Tensor:
    """A function that returns a tensor."""
    return torch.arange(n).float()


@functools.lru_cache
def hostile(what: str) -> float:
    """A function that an entry of somebody else calls."""
    calls.append(what)
    return 9.0


def f(x: torch.Tensor) -> torch.Tensor:
    """A program that depends on memoized functions."""
    return x * scale("abc", power=2) + table(3)


def run() -> tuple[torch.Tensor, str]:
    """Run `f` in a new jitted function, as a process does that has called nothing before; return the last note."""
    for function in (scale, table, hostile):
        function.cache_clear()
    calls.clear()
    jitted = thunder.jit(f, save=True)
    return jitted(torch.ones(3)), thunder.compile_stats(jitted).events.of("saved")[0].reason


EXPECTED = torch.ones(3) * 9 + torch.arange(3)


def test_a_saved_program_calls_them(cache: Path) -> None:
    """They are called again, with the arguments of the program."""
    run()
    out, note = run()
    assert torch.equal(out, EXPECTED) and note.startswith("hit") and calls == [("abc", 2)]


def test_other_results(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is not used if a function returns another value, or has other code."""
    run()
    changed = functools.lru_cache(lambda name, *, power=1: 2.0)
    functools.update_wrapper(changed, scale.__wrapped__)
    monkeypatch.setitem(globals(), "scale", changed)
    out, note = run()
    assert torch.equal(out, torch.ones(3) * 2 + torch.arange(3)) and note.startswith("miss")


def call_hostile(prologue: Any) -> None:
    """Call another memoized function with other arguments."""
    for constant in prologue["constants"].values():
        if constant[:1] == ["weak"] and constant[1][2][-1:] == [["member", "scale"]]:
            constant[1][2:] = [[["member", "hostile"]], fingerprint(hostile, {})]
    prologue["text"] = prologue["text"].replace("'abc', power=2", "'rm -r'")


@pytest.mark.parametrize("signature", [None, b"another key"])
@pytest.mark.parametrize("change", [lambda prologue: None, call_hostile])
def test_files_that_the_user_has_not_signed(
    cache: Path, rewrite: Any, signature: bytes | None, change: Callable[[Any], Any]
) -> None:
    """An entry calls nothing, neither what it should nor something else, unless it is signed."""
    run()
    (file,) = (x for x in cache.rglob("*") if x.is_file())
    content = json.loads(file.read_bytes().partition(b"\n")[2])
    change(content["programs"]["prologue"])
    rewrite(file, content, signature)
    out, note = run()
    assert torch.equal(out, EXPECTED) and note.startswith("miss") and "not signed" in note
    assert calls == [("abc", 2)]  # by tracing


KEYS: dict[str, Callable[[Path], Any]] = {
    "readable by others": lambda p: p.chmod(0o644),
    "short": lambda p: p.write_bytes(b"short"),
    "another": lambda p: p.write_bytes(b"0" * 64),
    "missing": lambda p: p.unlink(),
    "symbolic link": lambda p: p.symlink_to(p.rename(p.with_name("moved"))),
    "pipe": lambda p: p.unlink() or os.mkfifo(p, 0o600),
}


@pytest.mark.parametrize("what", KEYS)
def test_keys_that_are_not_used(cache: Path, key: Path, what: str) -> None:
    """A key that others could know or replace signs nothing."""
    run()
    KEYS[what](key)
    out, note = run()
    assert torch.equal(out, EXPECTED) and note.startswith("miss")


def test_no_place_for_a_key(cache: Path, key: Path) -> None:
    """Without a key, such programs are not saved, and others are."""
    key.parent.write_text("no directory")
    jitted = thunder.jit(f, save=True)
    jitted(torch.ones(3))
    assert "THUNDER_CACHE_KEY" in thunder.compile_stats(jitted).events.of("saved")[-1].reason
    other = thunder.jit(torch.sin, save=True)
    other(torch.ones(3))
    assert signing.key_of_user() is None and thunder.compile_stats(other).events.of("saved")[-1].reason[:5] == "saved"


def test_the_shared_key_signs_them(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that users share needs no key of a user."""
    monkeypatch.setenv("THUNDER_CACHE_KEY", "secret")
    run()
    assert run()[1].startswith("hit")


LINES = [
    "x = call_memoized(_ReferenceType_1(), 1)",
    "x = call_memoized(x, 1)",
    "x = call_memoized(_ReferenceType_0, 1)",
    "x = call_memoized(_ReferenceType_0()(), 1)",
    "x = call_memoized (_ReferenceType_0(), 1)",
    "x = call_memoized(*x)",
    "x = call_memoized",
    "x = [call_memoized][0](_ReferenceType_1())",
    "x = _ReferenceType_0()(1)",
    "call_memoized = x",
]
NAMES = Names(("call_memoized",), ("_ReferenceType_0", "_ReferenceType_1"), {}, (), ("_ReferenceType_0",))


@pytest.mark.parametrize("line", LINES)
def test_lines_that_no_prologue_has(line: str) -> None:
    """Only the exact call of a named memoized function is a line of a prologue."""
    with pytest.raises(Refused):
        verify(f"def prologue(x):\n  {line}\n  return x", NAMES, "prologue")


def test_the_line_that_a_prologue_has() -> None:
    """Programs other than prologues do not have it."""
    text = "def prologue(x):\n  x = call_memoized(_ReferenceType_0(), (1, 'a'), n=x)\n  return x"
    verify(text, NAMES, "prologue")
    for kind in ("program", "source"):
        with pytest.raises(Refused):
            verify(text, NAMES, kind)


@pytest.mark.parametrize(
    "reference",
    [
        ["ref", "os", [["member", "system"]], "builtin_function_or_method system"],
        ["ref", "callable", [["attr", "load"]], "memoized function load 0"],
        ["ref", ["ref", "os", [], "module os"], [["attr", "load"]], "memoized function load 0"],
    ],
)
def test_constants_that_are_no_named_memoized_functions(reference: Any) -> None:
    """A weak reference to another function, or to one that a path leads to, may not be called."""
    text = "def prologue(x):\n  x = call_memoized(_ReferenceType_0(), 1)\n  return x"
    program = {"name": "prologue", "text": text, "constants": {"_ReferenceType_0": ["weak", reference]}}
    with pytest.raises(Refused):
        SavedText(program).check("prologue", lambda: True)


def test_each_file_has_a_signature_of_its_own() -> None:
    """The signature of an entry does not make its backward programs trusted."""
    decode = Decoder(f, signed=lambda: True)
    assert decode.signed
    with pytest.raises(Stale):
        decode.of_file(lambda: False)(["region", "thunder_ex_triton.saving", {}])
    assert not decode.of_file(lambda: False).signed
