# SPDX-License-Identifier: Apache-2.0
"""Entries that someone else has written or that are damaged: they are refused with a line, and nothing in them runs."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import marshal
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder
from thunder.saved import constants, programs, references, store
from thunder.saved.constants import Decoder
from thunder.saved.programs import SavedText
from thunder.saved.references import Stale
from thunder.saved.store import Store
from thunder.saved.verify import Names, Refused, verify

ran: list[str] = []


def canary(*args: Any) -> str:
    """The function that hostile entries try to call."""
    ran.append("ran")
    return "ran"


def f(x: torch.Tensor) -> torch.Tensor:
    """The function whose entries are replaced."""
    return torch.sin(x) + 1


def run() -> tuple[torch.Tensor, list[str]]:
    """Run `f` in a new jitted function, and return its result and the notes."""
    jitted = thunder.jit(f, save=True)
    found = jitted(torch.ones(3))
    return found, [e.reason for e in thunder.compile_stats(jitted).events.of("saved")]


@pytest.fixture
def entry(cache: Path) -> tuple[Path, dict[str, Any]]:
    """The file of the entry of `f`, and its content."""
    ran.clear()
    run()
    (file,) = (x for x in cache.rglob("*") if x.is_file())
    return file, json.loads(file.read_bytes().partition(b"\n")[2])


def assert_refused(reason: str = "") -> None:
    """The entry is a miss with a note, the result is right, and nothing of the entry ran."""
    found, notes = run()
    assert torch.equal(found, torch.sin(torch.ones(3)) + 1)
    assert notes[0].startswith("miss") and reason in notes[0], notes
    assert ran == []


def test_entry_is_found(entry: Any) -> None:
    """Without a change the entry is used."""
    assert run()[1][0].startswith("hit")


LINES = [
    "import os",
    "from os import system",
    "x = __import__('os')",
    "x = eval('1')",
    "exec('1')",
    "x = open('f')",
    "x = getattr(x, 'y')",
    "x = torch.load('f')",
    "torch.ops.load_library('f')",
    "torch.serialization.load('f')",
    "x = torch.hub.load('f')",
    "x = torch.from_file('f')",
    "x = torch.sin.__self__",
    "x = torch.sin.__globals__",
    "x = x.__class__.__bases__",
    "x = ().__class__.__mro__[1].__subclasses__()",
    "x = x.__subclasses__",
    "x = x.__reduce_ex__",
    "x = x.__builtins__",
    "x = x.__loader__",
    "x = x.__own__()",
    "x = (lambda: 1)()",
    "x = [i for i in x]",
    "x = f'{x}'",
    "x = f'{eval(1)}'",
    "x = '''a'''",
    "x = 'a' 'b'.join(x)",
    "x.y = 1",
    "x[0] = 1",
    "x += 1",
    "x: int = 1",
    "torch = x",
    "(torch, x) = x",
    "GuardFailed = x",
    "same_value = x",
    "x = (torch := x)",
    "global x",
    "while True: pass",
    "for i in x: pass",
    "with x: pass",
    "try: pass\n  except: pass",
    "assert x",
    "raise x",
    "raise RuntimeError(x)",
    "if x: raise SystemExit(1)",
    "if x: raise RuntimeError(torch.sin(x))",
    "if x: return 1",
    "yield from x",
    "yield torch",
    "x = yield",
    "x = await x",
    "x = x()",
    "x = x.item.__call__()",
    "x = x.apply_(x)",
    "x = x.numpy()",
    "x = (torch.sin)(x).backward()",
    "x = torch.sin(x); y = 1",
    "x = torch.sin(\\\n  x)",
    "x = torch.sin(x) # comment",
    "def g(): pass",
    "class A: pass",
    "x = torch",
    "x = torch.nn",
    "x = torch.sin",
    "x = Tensor.apply_(x, x)",
    "x = operator.attrgetter('a')",
    "x = torchex.eval(x)",
    "x = prims.sin(x)",
    "x = __builtins__",
    "x = torch.sin(**x)(x)",
    "x = torch\u200b.load('f')",
    "x = 1if x else eval(1)",
    "del torch.sin",
    "@x",
    "x = t1(x)",
    "x = t1 (x)",
    "x = t_f(x)",
    "x = v1.t_f(x)",
    "x = [t1][0](x)",
    "x = f't1'",
    "x = t1'a'",
    "x = rb'a'.decode()",
    "x = 'a\\\\' + eval('1') + 'b'",
    "x = 'a\\' + eval(1)",
    "x = 'a",
    "t1 = 'a' + \"b' + eval(1)",
]


# A prologue may read attributes, which it cannot call.
READS = ("x = x.__class__.__bases__",)


@pytest.mark.parametrize("line", LINES)
def test_lines_that_no_program_has(line: str) -> None:
    """Each of these lines is refused wherever it is."""
    for kind in ("program",) if line in READS else ("program", "prologue"):
        with pytest.raises(Refused):
            text = f"def computation(x):\n  y = torch.sin(x)\n  {line}\n  return y"
            verify(text, Names(calls=("same_value",), all=("_a_0",)), kind)


@pytest.mark.parametrize(
    "text",
    ["", "x = 1", "def f(x)\n  return x", "def f(x=eval(1)):\n  return x", "def f(x):\n return x", "def f(x): return x",
     "import os\ndef f(x):\n  return x", "def f(x) -> eval(1):\n  return x", "async def f(x):\n  return x",
     "def f(x):\n  return x\nprint(1)", "def f(x):\n  return x\n\n\ndef g(x):\n  return x", "def f(x):\n\treturn x"],
)  # fmt: skip
def test_texts_that_are_no_program(text: str) -> None:
    """A text is one function with a plain header."""
    with pytest.raises(Refused):
        verify(text, Names())


@pytest.mark.parametrize("name", ["t5", "v5", "t_weight", "_a_0"])
def test_assignments_to_constants(name: str) -> None:
    """A constant keeps its value, also one with a name that variables have."""
    for line in (f"{name} = x", f"(t1, {name}) = x"):
        with pytest.raises(Refused):
            verify(f"def computation(x):\n  {line}\n  return x", Names(all=(name,)))
        with pytest.raises(Refused):
            verify(f"def computation(x):\n  {line}\n  t1 = {name}(x)\n  return x", Names(calls=(name,)))


TEXT_OF = {
    "import": "def computation(x):\n  import os\n  return x",
    "eval": "def computation(x):\n  y = eval('1')\n  return x",
    "chain": "def computation(x):\n  y = x.__class__.__init__.__globals__\n  return x",
    "constant": "def computation(x):\n  y = _f_0(x)\n  return x",
    "helper": "def computation(x):\n  y = repeat_view(_f_0, x, (), {})\n  return y",
}
CANARY = ["ref", __name__, [["member", "canary"]], "function canary"]


@pytest.mark.parametrize("what", TEXT_OF)
def test_texts_are_not_run(entry: Any, rewrite: Any, what: str) -> None:
    """A hostile text in a well-formed entry is not compiled."""
    file, content = entry
    mark = references.fingerprint(canary, {})
    content["programs"]["computation"]["text"] = TEXT_OF[what]
    content["programs"]["computation"]["constants"] = {"_f_0": [*CANARY[:3], mark]}
    rewrite(file, content)
    assert_refused()


CONSTANTS: dict[str, Any] = {
    "unknown tag": ["pickle", "gASV"],
    "reduce": ["__reduce__", ["os", "system"], ["true"]],
    "module that is not imported": ["ref", "antigravity", [], "module antigravity"],
    "path through a dunder": ["ref", "os", [["attr", "__builtins__"]], "x"],
    "unknown step": ["ref", "os", [["call", "getcwd"]], "x"],
    "no list": {"a": 1},
    "enum of no class": ["enum", ["ref", "os", [], "module os"], "name", "x"],
    "path of no path class": [
        "text",
        ["ref", "builtins", [["member", "print"]], "builtin_function_or_method print"],
        "x",
    ],
    "dtype": ["torch", "load"],
    "function": [
        "function",
        0,
        ["ref", "os", [["member", "makedirs"]], "x"],
        [1],
        ["f", "f"],
        [],
        None,
        [[], []],
        [[], []],
    ],
    "operator": ["operator", "aten.nothing_like_this"],
    "deep": None,
}


@pytest.mark.parametrize("what", CONSTANTS)
def test_constants_are_not_read(entry: Any, rewrite: Any, what: str) -> None:
    """A constant that thunder does not write is stale or refused."""
    constant: Any = CONSTANTS[what]
    if what == "deep":
        for _ in range(150):
            constant = ["tuple", [constant]]
        constant = ["tuple", [["pickle", constant]]]
    with pytest.raises((Stale, Refused, RecursionError)):
        Decoder(f)(constant)
    file, content = entry
    content["programs"]["computation"]["constants"]["_x_0"] = constant
    rewrite(file, content)
    assert_refused()


FILES: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:-10]),
    "empty": lambda p: p.write_bytes(b""),
    "zeros": lambda p: os.truncate(p, 1 << 30),
    "bit flip": lambda p: p.write_bytes(p.read_bytes().replace(b"torch.sin", b"torch.cos")),
    "other version": lambda p: p.write_bytes(p.read_bytes().replace(b"thunder program 1", b"thunder program 2")),
    "not JSON": lambda p: p.write_bytes(p.read_bytes().partition(b"\n")[0] + b"\nx"),
    "symbolic link": lambda p: p.symlink_to(p.rename(p.parent.parent.parent / "entry")),
    "folder": lambda p: p.with_name("moved").mkdir() or p.unlink() or os.rename(p.with_name("moved"), p),
    "pipe": lambda p: p.unlink() or os.mkfifo(p),
    "writable by others": lambda p: p.chmod(0o666),
    "open directory": lambda p: p.parent.parent.chmod(0o755),
    "open folder": lambda p: p.parent.chmod(0o777),
}


@pytest.mark.parametrize("what", FILES)
def test_files_are_refused(entry: Any, what: str) -> None:
    """A file that is damaged or that others can write is not read."""
    FILES[what](entry[0])
    assert_refused()


def test_files_of_other_users_are_refused(entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the directory and of the files is the current user."""
    user = os.geteuid()
    monkeypatch.setattr(store.os, "geteuid", lambda: user + 1)
    assert_refused("belongs to another user")


def test_bit_flips(entry: Any) -> None:
    """Wherever a bit flips, the file is refused: its name is the hash of its content."""
    file, _ = entry
    data, key = file.read_bytes(), file.parent.name
    saved = Store(str(file.parent.parent))
    for at in range(0, len(data), max(1, len(data) // 97)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        try:
            content = saved.read(key, file.name)
        except Refused:
            continue
        assert content == entry[1] and at < data.index(b"\n")  # the time in the header
    assert hashlib.sha256(key.encode() + b"\n" + data.partition(b"\n")[2]).hexdigest() == file.name


@pytest.mark.parametrize(
    "field", ["kind", "call", "symbolic", "programs", "layout", "flags", "path", "leaves", "orders"]
)
@pytest.mark.parametrize("value", [None, 7, "x", [], {}])
def test_fields_of_other_types(entry: Any, rewrite: Any, field: str, value: Any) -> None:
    """An entry with a field that is missing or has another type is a miss, or it is still right."""
    file, content = entry
    content[field] = value
    rewrite(file, content)
    found, _ = run()
    assert torch.equal(found, torch.sin(torch.ones(3)) + 1)


def test_signatures(entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key, unsigned files and files of another key are refused, and files of other users are read."""
    monkeypatch.setenv("THUNDER_CACHE_KEY", "secret")
    assert_refused("is not signed")
    entry[0].parent.chmod(0o777)
    assert run()[1][0].startswith("hit")
    monkeypatch.setenv("THUNDER_CACHE_KEY", "other")
    assert_refused("is not signed")


def test_pruning(tmp_path: Path) -> None:
    """The files that were not used for the longest time are removed first."""
    saved = Store(str(tmp_path / "cache"), max_bytes=4000)
    names = []
    for i in range(20):
        names.append(saved.write("k" * 40, {"kind": "program", "text": f"{i:04d}" * 100}))
        os.utime(tmp_path / "cache" / ("k" * 40) / names[-1], (i, i))
    left = {file.name for file in saved.files()}
    assert sum(file.size for file in saved.files()) <= 4000 + 600
    assert names[-1] in left and names[0] not in left


def test_hostile_constant_of_a_guard_is_not_called() -> None:
    """Reading a reference through a module runs no code of the module."""
    assert constants.Decoder(f)(["ref", __name__, [["member", "canary"]], references.fingerprint(canary, {})]) is canary
    assert ran == []


def test_texts_that_are_programs() -> None:
    """Calls without a result, and strings with what looks like an assignment."""
    lines = ["set_item(x, 'same_value = x', torch.sin(y))", "set_item(x, 0, y)", "(a, _) = torch.sort(x)", "return a"]
    text = "\n  ".join(["def computation(x, y):", *lines])
    verify(text, Names(calls=("set_item", "same_value")))


CALLS = {
    "a key of sorted": "x = sorted(('1',), key=_f_0)",
    "a key of max": "x = max(('1',), ('2',), key=_f_0)",
    "a helper that calls a function": "x = repeat_view(_f_0, '1', (), {})",
    "a helper that constructs": "x = new_mask(_f_0, 1, 2, 3)",
    "a helper that assigns": "set_item(x, 0, _f_0)",
    "a method of a module": "x = v1.get('http://example.com')",
    "a method of a constant": "x = _f_0.get('http://example.com')",
    "a helper that prints": "write_text(x, _f_0)",
}


@pytest.mark.parametrize("what", CALLS)
def test_prologues_call_nothing_that_calls_its_arguments(what: str) -> None:
    """A prologue may mention functions of the user, which it compares, so what it calls must not call them."""
    text = f"def prologue(x):\n  {CALLS[what]}\n  return x"
    for constant in ([*CANARY[:3], references.fingerprint(canary, {})], ["ref", __name__, [["member", "Canary"]], "x"]):
        program = {"name": "prologue", "text": text, "constants": {"_f_0": constant}}
        with pytest.raises(Refused):
            SavedText(program).check("prologue", lambda: True)


class Canary:
    """A class that runs the canary."""

    def __init__(self, *args: Any) -> None:
        canary()


CONSTRUCTIONS = [
    "repeat_view(_c_0, x, (), {})",
    "new_mask(_c_0, x, 1, 2)",
    "new_slice(_c_0, 1, 2, 3)",
    "new_tuple(_c_0, x)",
    "new_object(_c_0)",
    "new_container(_c_0)",
]


@pytest.mark.parametrize("call", CONSTRUCTIONS)
def test_classes_are_not_called(call: str) -> None:
    """An epilogue that mentions a class cannot run its `__init__`."""
    ran.clear()
    constant = ["ref", __name__, [["member", "Canary"]], references.fingerprint(Canary, {})]
    text = f"def epilogue(x):\n  y = {call}\n  return y"
    function = SavedText({"name": "epilogue", "text": text, "constants": {"_c_0": constant}}).function(Decoder(f))
    with contextlib.suppress(TypeError):
        function(torch.ones(2))
    assert ran == []


def hostile_code() -> dict[str, Any]:
    """Return bytecode that runs the canary, as an entry contains it."""
    text = f"def computation(x):\n  return __import__({__name__!r}).canary()"
    code = next(x for x in compile(text, "", "exec").co_consts if isinstance(x, types.CodeType))
    return {"bytes": base64.b64encode(marshal.dumps(code)).decode(), "comments": []}


@pytest.mark.parametrize("key", [None, b"another key"])
def test_bytecode_that_the_user_has_not_signed(
    entry: Any, rewrite: Any, key: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of such a file is checked and compiled, and its bytecode is not even read."""
    file, content = entry
    assert "bytes" in content["programs"]["computation"]["code"]
    content["programs"]["computation"]["code"] = hostile_code()
    content["programs"]["prologue"]["code"] = {"bytes": "no bytecode", "comments": 7}
    rewrite(file, content, key)
    monkeypatch.setattr(programs, "load_code", None)
    out, notes = run()
    assert torch.equal(out, torch.sin(torch.ones(3)) + 1) and notes[0].startswith("hit") and ran == []


def test_bytecode_with_a_shared_key(entry: Any, rewrite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others who know the key cannot have their bytecode run."""
    file, content = entry
    content["programs"]["computation"]["code"] = hostile_code()
    rewrite(file, content, b"secret")
    monkeypatch.setenv("THUNDER_CACHE_KEY", "secret")
    out, notes = run()
    assert torch.equal(out, torch.sin(torch.ones(3)) + 1) and notes[0].startswith("hit") and ran == []


def test_bytecode_that_the_user_has_signed(entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used, and no text is compiled."""
    monkeypatch.setattr(SavedText, "check", None)
    assert run()[1][0].startswith("hit")
