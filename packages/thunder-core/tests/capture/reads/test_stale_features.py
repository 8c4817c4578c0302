# SPDX-License-Identifier: Apache-2.0
"""Small programs, each with one feature of Python: right after a change, cached when nothing changes."""

from __future__ import annotations

import builtins
import decimal
import linecache
import math
import sys
import textwrap
import types
from collections.abc import Iterator

import pytest
import torch

import thunder

IMPORTS = """
import abc, collections, contextvars, dataclasses, decimal, enum, functools, importlib.util, math, pathlib, sys, types
import weakref
import numpy as np
"""
MODULE = "md = types.ModuleType('md_of_thunder_test'); md.K = 2.0\n"
ENUM = "class Mode(enum.Enum):\n    A = 2.0\n    B = 5.0\n"

# (name, definitions, the expression that multiplies `x`, a change of what it reads)
READS = [
    # Python modules, in any form
    ("module getattr", MODULE, "getattr(md, 'K')", "md.K = 5.0"),
    ("module default", MODULE, "getattr(md, 'J', 1.0)", "md.J = 5.0"),
    ("module variable", MODULE, "(lambda m: m.K)(md)", "md.K = 5.0"),
    ("module in a list", MODULE, "[md][0].K", "md.K = 5.0"),
    ("module attribute", MODULE + "class O: pass\no = O(); o.backend = md", "o.backend.K", "md.K = 5.0"),
    ("module hasattr", MODULE, "(2.0 if hasattr(md, 'J') else 1.0)", "md.J = 5.0"),
    ("module function", MODULE + "exec('def g(): return K', md.__dict__)", "getattr(md, 'g')()", "md.K = 5.0"),
    ("module __getattr__", MODULE + "md.__getattr__ = lambda name: 3.0", "md.J", "md.__getattr__ = lambda name: 5.0"),
    ("module of a library", "m = [math]", "m[0].pi", "math.pi = 3.0"),
    ("module import", MODULE + "sys.modules['md_of_thunder_test'] = md\ndef g():\n    import md_of_thunder_test as m\n"
     "    return m.K", "g()", "sys.modules['md_of_thunder_test'] = m = types.ModuleType('m'); m.K = 5.0"),
    # classes
    ("vars of a class", "class C: k = 2.0", "vars(C)['k']", "C.k = 5.0"),
    ("__dict__ of a class", "class C: k = 2.0", "C.__dict__.get('j', 1.0)", "C.j = 5.0"),
    ("dir of an object", "class C: pass\no = C(); o.a = 2", "len([n for n in dir(o) if n < 'c'])", "o.b = 2"),
    ("dir of an object's class", "class C: a = 2\no = C()", "len([n for n in dir(o) if n < 'c'])", "C.b = 2"),
    ("dir of a class", "class B: pass\nclass C(B): a = 2", "len([n for n in dir(C) if n < 'c'])", "B.b = 2"),
    ("dir of a new object", "class C: a = 2", "len([n for n in dir(C()) if n < 'c'])", "C.b = 2"),
    ("dir of the variables", "k = 2.0", "(lambda a, b: len(dir()) * k)(1, 2)", "k = 5.0"),
    ("alias of a class", "class C: k = 2.0", "(lambda c: c.k)(C)", "C.k = 5.0"),
    ("computed name", "class C: k = 2.0\nn = 'k'", "getattr(C, n + '')", "C.k = 5.0"),
    ("type(o).__name__", "class C: pass\no = C()", "len(type(o).__name__)", "C.__name__ = 'renamed'"),
    ("__class__ changed", "class C: k = 2.0\nclass D: k = 5.0\no = C()", "o.k", "o.__class__ = D"),
    ("__bases__ changed", "class A: k = 2.0\nclass B(A): k = 5.0\nclass C(A): pass\no = C()", "o.k",
     "C.__bases__ = (B,)"),
    ("metaclass attribute", "class M(type): k = 2.0\nclass C(metaclass=M): pass", "C.k", "M.k = 5.0"),
    ("shadowed metaclass", "class M(type): k = 2.0\nclass C(metaclass=M): pass", "C.k", "C.k = 5.0"),
    ("metaclass __call__", "class M(type):\n    def __call__(c, *a): return 2.0\nclass C(metaclass=M): pass", "C(1)",
     "M.__call__ = lambda c, *a: 5.0"),
    ("lazy property", ("from torch.distributions.utils import lazy_property\nclass C:\n    @lazy_property\n"
     "    def k(self): return 2.0\no = C()\ndef fresh():\n    k = o.k\n    o.__dict__.clear()\n    return k"),
     "fresh()", "C.k = lazy_property(lambda self: 5.0)"),
    ("metaclass __getattr__", "class M(type):\n    def __getattr__(c, n): return 2.0\nclass C(metaclass=M): pass",
     "C.z", "C.z = 5.0"),
    ("truth", "class C: pass\no = C()", "(2.0 if o else 3.0)", "C.__bool__ = lambda self: False"),
    ("equality", "class C: pass\na, b = C(), C()", "(2.0 if a == b else 3.0)", "C.__eq__ = lambda a, b: True"),
    ("callable", "class C: pass\no = C()", "(2.0 if callable(o) else 3.0)", "C.__call__ = lambda self: 1"),
    ("namedtuple field", "P = collections.namedtuple('P', 'a')\np = P(2.0)", "p.a", "P.a = property(lambda p: 5.0)"),
    # enumerations
    ("enum value", ENUM, "Mode.A.value", "Mode.A._value_ = 3.0"),
    ("enum variable", ENUM + "m = Mode.A", "m.value", "m = Mode.B"),
    ("enum by name", ENUM + "n = 'A'", "Mode[n].value", "n = 'B'"),
    ("enum by value", ENUM + "v = 2.0", "(2.0 if Mode(v) is Mode.A else 3.0)", "v = 5.0"),
    ("enum members", ENUM, "sum(m.value for m in Mode)", "Mode.A._value_ = 3.0"),
    ("enum attribute", ENUM + "Mode.A.extra = 2.0", "Mode.A.extra", "Mode.A.extra = 5.0"),
    ("enum in a list", ENUM + "Mode.A.extra = 2.0\nl = [Mode.A]", "l[0].extra", "Mode.A.extra = 5.0"),
    ("flag", "class F(enum.Flag):\n    A = 1\n    B = 2\nm = F.A", "(2.0 if m & F.B else 3.0)", "m = F.A | F.B"),
    ("combined flag", "class F(enum.Flag):\n    A = 1\n    B = 2\n    C = 4\nm = F.A", "(m | F.B).value", "m = F.C"),
    ("IntEnum", "class I(enum.IntEnum):\n    A = 1\n    B = 2\nm = I.A", "m", "m = I.B"),
    # abstract base classes
    ("ABC instance", "class B(abc.ABC): pass\nclass C: pass\no = C()", "(2.0 if isinstance(o, B) else 3.0)",
     "B.register(C)"),
    ("ABC subclass", "class B(abc.ABC): pass\nclass C: pass", "(2.0 if issubclass(C, B) else 3.0)", "B.register(C)"),
    ("collections.abc", "class C: pass\no = C()", "(2.0 if isinstance(o, collections.abc.Sequence) else 3.0)",
     "collections.abc.Sequence.register(C)"),
    # descriptors
    ("descriptor",
     "class D:\n    k = 2.0\n    def __get__(self, o, t): return self.k\nclass C: d = D()\no = C()", "o.d",
     "C.__dict__['d'].k = 5.0"),
    ("descriptor of a class", "class D:\n    k = 2.0\n    def __get__(self, o, t): return self.k\nclass C: d = D()",
     "C.d", "C.__dict__['d'].k = 5.0"),
    ("descriptor by id", ("class D:\n    def __init__(self): self.m = {}\n"
     "    def __get__(self, o, t): return self.m.get(id(o), 2.0)\n"
     "    def __set__(self, o, v): self.m[id(o)] = v\nclass C: d = D()\no = C()"), "o.d", "o.d = 5.0"),
    ("singledispatch", "@functools.singledispatch\ndef g(a): return 2.0\nv = 3", "g(v)",
     "g.register(int, lambda a: 5.0)"),
    ("singledispatchmethod",
     "class C:\n    @functools.singledispatchmethod\n    def g(self, a): return 2.0\no = C()\nv = 3",
     "o.g(v)", "C.__dict__['g'].register(int, lambda self, a: 5.0)"),
    # absence
    ("builtin", "def g():\n    try: return ABSENT\n    except NameError: return 2.0", "g()",
     "import builtins; builtins.ABSENT = 5.0"),
    ("global", "def g():\n    try: return ABSENT_HERE\n    except NameError: return 2.0", "g()", "ABSENT_HERE = 5.0"),
    ("import", ("def g():\n    try:\n        import absent_of_thunder_test as m\n        return m.K\n"
     "    except ImportError: return 2.0"), "g()",
     "sys.modules['absent_of_thunder_test'] = m = types.ModuleType('absent_of_thunder_test'); m.K = 5.0"),
    ("in sys.modules", "", "(2.0 if 'absent_of_thunder_test' in sys.modules else 3.0)",
     "sys.modules['absent_of_thunder_test'] = types.ModuleType('absent_of_thunder_test')"),
    # containers and other values
    ("maxlen", "d = collections.deque([1], maxlen=5)", "d.maxlen", "d = collections.deque([1], maxlen=7)"),
    ("default_factory", "d = collections.defaultdict(int)", "(2.0 if d.default_factory is int else 3.0)",
     "d.default_factory = list"),
    ("default of a context variable", "v = contextvars.ContextVar('v', default=[2.0])", "v.get()[0]",
     "v.get()[0] = 5.0"),
    ("content of a context variable", "v = contextvars.ContextVar('v'); v.set([2.0])", "v.get()[0]",
     "v.get()[0] = 5.0"),
    ("UserString", "s = collections.UserString('ab')", "len(s)", "s.data = 'abc'"),
    ("ChainMap", "c = collections.ChainMap({}, {'a': 2.0})", "c['a']", "c.maps[0]['a'] = 5.0"),
    ("decimal context", "D = decimal.Decimal(1)", "float(D / 3 * 100000)", "decimal.getcontext().prec = 3"),
    ("frozen dataclass",
     "@dataclasses.dataclass(frozen=True)\nclass C:\n    v: float\n    k = 2.0\nc = C(2.0)", "c.v * c.k",
     "c = C(5.0)"),
    ("NumPy", "k = 4.0", "float(np.sqrt(k))", "k = 9.0"),
    ("path", "p = pathlib.Path('/a/b.txt')", "len((p.parent / 'c').name + p.suffix)", "p = pathlib.Path('/a/b.py')"),
]  # fmt: skip

# (name, definitions, the body of the program, the state that it changes)
WRITES = [
    ("module attribute", MODULE, "md.K += 1; y = x * md.K", "md.K"),
    ("module setattr", MODULE, "setattr(md, 'K', 3.0); y = x", "md.K"),
    ("new module attribute", MODULE, "md.n = getattr(md, 'n', 0) + 1; y = x * md.n", "md.n"),
    ("deleted module attribute", MODULE + "md.n = 1", "md.__dict__.get('n') and delattr(md, 'n'); y = x",
     "hasattr(md, 'n')"),
    ("enum attribute", ENUM + "Mode.A.n = 0", "Mode.A.n += 1; y = x * Mode.A.n", "Mode.A.n"),
    ("class attribute", "class C: n = 0", "C.n += 1; y = x * C.n", "C.n"),
    ("metaclass property", ("class M(type):\n    @property\n    def k(c): return c._k\n    @k.setter\n"
     "    def k(c, v): c._k = v\nclass C(metaclass=M): _k = 2.0"), "C.k = C.k + 1; y = x * C.k", "C._k"),
    ("class of an object", "class C: k = 2.0\nclass D: k = 5.0\no = C()", "o.__class__ = D; y = x * o.k", "type(o)"),
    ("descriptor", ("class D:\n    n = 0\n    def __get__(self, o, t):\n        self.n += 1\n        return self.n\n"
     "class C: d = D()\no = C()"), "y = x * o.d", "C.__dict__['d'].n"),
    ("descriptor __delete__",
     "class D:\n    n = 0\n    def __delete__(self, o): self.n += 1\nclass C: d = D()\no = C()",
     "del o.d; y = x", "C.__dict__['d'].n"),
    ("move_to_end", "d = collections.OrderedDict(a=2.0, b=3.0)", "d.move_to_end('a'); y = x * next(iter(d.values()))",
     "list(d.items())"),
    ("UserList", "l = collections.UserList([1])", "l.append(1); y = x * len(l)", "list(l.data)"),
    ("bounded deque", "d = collections.deque([1, 2, 3], maxlen=3)", "d.append(5); y = x * d[0]", "list(d)"),
    ("new subclass", "class C:\n    n = 0\n    def __init_subclass__(cls): C.n += 1",
     "D = type('D', (C,), {}); y = x * (2 if D.__mro__[1] is C else 3)", "C.n"),
]  # fmt: skip


class _Program:
    """A module with a program `f`."""

    def __init__(self, name: str, definitions: str, body: str):
        self.module = types.ModuleType(name)
        source = f"{IMPORTS}\n{textwrap.dedent(definitions)}\ndef f(x):\n    {body}\n    return y\n"
        file = f"<{name}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        sys.modules[name] = self.module
        exec(compile(source, file, "exec"), self.module.__dict__)

    def run(self, text: str) -> None:
        exec(text, self.module.__dict__)

    def state(self, text: str) -> str:
        return repr(eval(text, self.module.__dict__)).replace(self.module.__name__, "")


@pytest.fixture
def kept() -> Iterator[None]:
    """Restore what the changes change outside of their modules."""
    context = decimal.getcontext().copy()
    yield
    for name in [n for n in sys.modules if n.startswith("program_") or n.endswith("of_thunder_test")]:
        del sys.modules[name]
    decimal.setcontext(context)
    builtins.__dict__.pop("ABSENT", None)
    math.pi = torch.pi


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(("name", "definitions", "expression", "change"), READS, ids=[row[0] for row in READS])
def test_what_is_read(name: str, definitions: str, expression: str, change: str) -> None:
    program = _Program(f"program_{name.replace(' ', '_')}", definitions, f"y = x * {expression}")
    f, x = program.module.f, torch.ones(2)
    jitted = thunder.jit(f)
    torch.testing.assert_close(jitted(x), f(x))
    torch.testing.assert_close(jitted(x), f(x))
    assert (thunder.cache_hits(jitted), thunder.cache_misses(jitted)) == (1, 1), thunder.explain(jitted)
    before = f(x)
    program.run(change)
    assert not torch.equal(f(x), before) or name == "__class__ changed" or "enum" in name
    torch.testing.assert_close(jitted(x), f(x))
    torch.testing.assert_close(jitted(x), f(x))


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(("name", "definitions", "body", "state"), WRITES, ids=[row[0] for row in WRITES])
def test_what_is_written(name: str, definitions: str, body: str, state: str) -> None:
    """Each call leaves the state that eager leaves."""
    eager, traced = (_Program(f"program_{kind}_{name.replace(' ', '_')}", definitions, body) for kind in ("a", "b"))
    jitted, x = thunder.jit(traced.module.f), torch.ones(2)
    for _ in range(6):
        torch.testing.assert_close(jitted(x), eager.module.f(x))
        assert traced.state(state).replace("program_b", "") == eager.state(state).replace("program_a", "")


@pytest.mark.usefixtures("kept")
def test_the_class_of_a_module() -> None:
    """It is the class that eager sees; the trace is not cached."""
    program = _Program("program_type", MODULE, "y = x * (2 if type(md) is types.ModuleType else 3)")
    x = torch.ones(2)
    for _ in range(2):
        torch.testing.assert_close(thunder.jit(program.module.f)(x), x * 2)
