# SPDX-License-Identifier: Apache-2.0
"""Variables, defaults, functions, modules of Python, names that are absent."""

from __future__ import annotations

from soak.feature import Feature

_MODULE = "md$ = types.ModuleType('md$')\nmd$.K = 2.0\nmd$.t = {'a': 1.0}\nsys.modules['md$'] = md$"
_MODULE_CHANGES = ("md$.K = 3.0", "md$.K += 1", "del md$.K", "vars(md$)['K'] = 9.0", "md$.K = 2")
_GONE = "sys.modules.pop('md$', None)"
_GLOBAL = ("function",)

FEATURES = [
    Feature(
        "variable",
        "v$ = 2.0",
        "v$",
        mutate=("v$ = 3.0", "v$ += 1", "v$ = 2", "v$ = True", "v$ = 'a'", "v$ = None", "del v$"),
        keep=("v$ = 2.0",),
        write=("v$ = 3.0", "v$ = v$ + 1", "v$ = 2.0"),
    ),
    Feature(
        "integer variable",
        "n$ = 2",
        "n$",
        mutate=("n$ = 3", "n$ += 1", "n$ = 2.0", "n$ = 0"),
        write=("n$ = 3", "n$ += 1", "n$ = 2", "n$ = n$ * 2"),
    ),
    Feature(
        "variable by globals()",
        "v$ = 2.0",
        "globals()['v$']",
        mutate=("v$ = 3.0", "globals()['v$'] = 4.0", "v$ += 1"),
        write=("globals()['v$'] = 5.0",),
        entries=_GLOBAL,
    ),
    Feature(
        "variable in globals()",
        "v$ = 2.0",
        "'w$' in globals()",
        mutate=("w$ = 3.0", "globals()['w$'] = 2"),
        entries=_GLOBAL,
    ),
    Feature("variable by eval", "v$ = 2.0", "eval('v$')", mutate=("v$ = 3.0", "v$ += 1"), entries=_GLOBAL),
    Feature(
        "absent variable",
        "def read$():\n    try:\n        return w$\n    except NameError:\n        return 1.0",
        "read$()",
        mutate=("w$ = 3.0",),
        entries=_GLOBAL,
    ),
    Feature(
        "absent builtin",
        "def read$():\n    try:\n        return soak_w$\n    except NameError:\n        return 1.0",
        "read$()",
        mutate=("builtins.soak_w$ = 3.0",),
        undo="vars(builtins).pop('soak_w$', None)",
        entries=_GLOBAL,
    ),
    Feature("builtin shadowed", "l$ = [1.0]", "len(l$)", mutate=("len = lambda l: 7",), entries=_GLOBAL),
    Feature(
        "builtin replaced",
        "l$ = [1.0]\nbuiltins.soak_f$ = len",
        "soak_f$(l$)",
        mutate=("builtins.soak_f$ = lambda l: 7",),
        undo="vars(builtins).pop('soak_f$', None)",
        entries=_GLOBAL,
    ),
    Feature(
        "default argument",
        "def f$(k=2.0):\n    return k",
        "f$()",
        mutate=("f$.__defaults__ = (3.0,)", "f$.__defaults__ = (f$.__defaults__[0] + 1,)"),
        keep=("f$.__defaults__ = (2.0,)",),
    ),
    Feature(
        "mutable default",
        "def f$(k=[2.0]):\n    return k[0] + len(k)",
        "f$()",
        mutate=("f$.__defaults__[0].append(1)", "f$.__defaults__[0][0] = 5.0"),
    ),
    Feature(
        "default that collects",
        "def f$(k=[]):\n    k.append(1)\n    return len(k)",
        "f$()",
        mutate=("f$.__defaults__[0].clear()",),
        state=("f$.__defaults__",),
    ),
    Feature(
        "keyword-only default",
        "def f$(*, k=2.0):\n    return k",
        "f$()",
        mutate=(
            "f$.__kwdefaults__ = {'k': 3.0}",
            "f$.__kwdefaults__['k'] += 1",
            "f$.__kwdefaults__ = {'k': f$.__kwdefaults__['k'] * 2}",
        ),
    ),
    Feature(
        "code of a function",
        "def f$():\n    return 2.0",
        "f$()",
        mutate=("f$.__code__ = (lambda: 3.0).__code__", "f$ = lambda: 5.0"),
        entries=("function", "closure", "argument"),
    ),
    Feature("name of a function", "def f$():\n    return 2.0", "len(f$.__name__)", mutate=("f$.__name__ = 'longer'",)),
    Feature(
        "cell of a closure",
        """
            def make$():
                k = 2.0
                def get():
                    return k
                def put(v):
                    nonlocal k
                    k = v
                return get, put
            get$, put$ = make$()
            """,
        "get$()",
        mutate=("put$(3.0)", "put$(get$() + 1)", "get$.__closure__[0].cell_contents = 9.0"),
        write=("put$(4.0)", "put$(get$() + 1)"),
        state=("get$()",),
    ),
    Feature(
        "object in a cell",
        "def make$():\n    o = Holder()\n    o.v = 2.0\n    return lambda: o.v, o\nget$, o$ = make$()",
        "get$()",
        mutate=("o$.v = 3.0", "o$.v += 1"),
    ),
    Feature(
        "counter in a cell",
        """
            def make$():
                n = 0
                def count():
                    nonlocal n
                    n += 1
                    return n
                return count
            f$ = make$()
            """,
        "f$()",
        mutate=("f$()",),
        state=("f$.__closure__[0].cell_contents",),
    ),
    Feature(
        "function in a variable",
        "def a$():\n    return 2.0\ndef b$():\n    return 3.0\nf$ = a$",
        "f$()",
        mutate=("f$ = b$", "f$ = lambda: 7.0"),
    ),
    Feature("function in a dict", "d$ = {'f': lambda: 2.0}", "d$['f']()", mutate=("d$['f'] = lambda: 3.0",)),
    Feature(
        "partial",
        "def f$(a, b=1.0):\n    return a + b\np$_ = functools.partial(f$, 2.0)",
        "p$_()",
        mutate=("p$_ = functools.partial(f$, 3.0)", "p$_.keywords['b'] = 5.0", "f$.__defaults__ = (9.0,)"),
        state=("p$_.args", "p$_.keywords"),
    ),
    Feature(
        "arguments of a partial",
        "def f$(a, b=1.0):\n    return a + b\np$_ = functools.partial(f$, 2.0, b=3.0)",
        "p$_.args[0] + p$_.keywords['b']",
        mutate=("p$_ = functools.partial(f$, 4.0, b=3.0)", "p$_.keywords['b'] = 5.0"),
    ),
    Feature(
        "partial method",
        """
            class C$:
                def f(self, a):
                    return a * self.k
                g = functools.partialmethod(f, 2.0)
            o$ = C$()
            o$.k = 1.0
            """,
        "o$.g()",
        mutate=("o$.k = 3.0",),
    ),
    Feature(
        "lru_cache",
        "c$_ = [2.0]\n@functools.lru_cache\ndef f$(n):\n    return c$_[0] * n",
        "f$(3)",
        mutate=("f$.cache_clear(); c$_[0] += 1.0", "c$_[0] = 7.0"),
    ),
    Feature(
        "information of an lru_cache",
        "@functools.lru_cache\ndef f$(n):\n    return n\nf$(1)",
        "f$.cache_info().currsize",
        mutate=("f$(2)", "f$.cache_clear()"),
    ),
    Feature(
        "memo in a dict",
        "m$ = {}\nk$ = 2.0\ndef f$(n):\n    if n not in m$:\n        m$[n] = n * k$\n    return m$[n]",
        "f$(3)",
        mutate=("m$.clear(); k$ = 5.0", "m$[3] = 1.0"),
        entries=("function", "closure"),
    ),
    Feature(
        "single dispatch",
        "@functools.singledispatch\ndef f$(a):\n    return 1.0\nv$ = 2",
        "f$(v$)",
        mutate=("f$.register(int, lambda a: 3.0)", "v$ = 'a'"),
        entries=("function", "closure", "argument"),
    ),
    Feature(
        "wrapped function",
        """
            def deco$(f):
                @functools.wraps(f)
                def g():
                    return f() * g.k
                g.k = 2.0
                return g
            @deco$
            def f$():
                return 3.0
            """,
        "f$()",
        mutate=("f$.k = 4.0", "f$.__wrapped__ = None"),
    ),
    Feature("callable object", "o$ = Holder()\no$.f = 1", "callable(o$.f)", mutate=("o$.f = len", "o$.f = Holder()")),
    Feature(
        "callable of an instance",
        "class C$:\n    pass\no$ = C$()",
        "callable(o$)",
        mutate=("C$.__call__ = lambda self: 1",),
    ),
    Feature(
        "signature of a function",
        "def f$(a, b=2):\n    pass",
        "len(inspect.signature(f$).parameters)",
        mutate=("f$ = lambda: 1", "f$.__signature__ = inspect.signature(lambda: 1)"),
        entries=("function", "closure", "argument"),
    ),
    Feature(
        "default in a signature",
        "def f$(a, b=2):\n    pass",
        "inspect.signature(f$).parameters['b'].default",
        mutate=("f$.__defaults__ = (5,)",),
    ),
    Feature(
        "annotations of a function",
        "def f$(a: 'x'):\n    pass",
        "len(f$.__annotations__)",
        mutate=("f$.__annotations__['b'] = 'y'",),
    ),
    Feature("source of a function", "def f$():\n    return 2.0", "len(inspect.getsource(f$))", entries=("function",)),
    Feature(
        "attribute of a module",
        _MODULE,
        "md$.K",
        mutate=_MODULE_CHANGES,
        write=("md$.K = 3.0", "md$.K += 1"),
        undo=_GONE,
        state=("md$.__dict__.get('K')",),
    ),
    Feature("attribute of a module by getattr", _MODULE, "getattr(md$, 'K')", mutate=_MODULE_CHANGES, undo=_GONE),
    Feature(
        "attribute of a module with a default", _MODULE, "getattr(md$, 'J', 1.0)", mutate=("md$.J = 3.0",), undo=_GONE
    ),
    Feature(
        "attribute of a module by another name", _MODULE, "(lambda m: m.K)(md$)", mutate=_MODULE_CHANGES, undo=_GONE
    ),
    Feature(
        "module in an attribute",
        _MODULE + "\no$ = Holder()\no$.backend = md$",
        "o$.backend.K",
        mutate=(*_MODULE_CHANGES, "o$.backend = types.SimpleNamespace(K=7.0)"),
        undo=_GONE,
    ),
    Feature("module in a list", _MODULE + "\nl$ = [md$]", "l$[0].K", mutate=_MODULE_CHANGES, undo=_GONE),
    Feature("vars of a module", _MODULE, "vars(md$)['K']", mutate=_MODULE_CHANGES, undo=_GONE),
    Feature("dict of a module", _MODULE, "md$.__dict__['K']", mutate=_MODULE_CHANGES, undo=_GONE),
    Feature("hasattr of a module", _MODULE, "hasattr(md$, 'J')", mutate=("md$.J = 3.0",), undo=_GONE),
    Feature("dir of a module", _MODULE, "'J' in dir(md$)", mutate=("md$.J = 3.0",), undo=_GONE),
    Feature(
        "dict in a module",
        _MODULE,
        "md$.t['a']",
        mutate=("md$.t['a'] = 5.0", "md$.t = {'a': 6.0}"),
        write=("md$.t['a'] += 1",),
        undo=_GONE,
        state=("md$.t",),
    ),
    Feature(
        "module with __getattr__",
        _MODULE + "\nmd$.__getattr__ = lambda name: len(name)",
        "md$.abc",
        mutate=("md$.__getattr__ = lambda name: 9", "md$.abc = 5.0"),
        undo=_GONE,
    ),
    Feature(
        "module by sys.modules",
        _MODULE,
        "sys.modules['md$'].K",
        mutate=(*_MODULE_CHANGES, "sys.modules['md$'] = types.SimpleNamespace(K=8.0)"),
        undo=_GONE,
    ),
    Feature(
        "module in sys.modules",
        _MODULE,
        "'nothing$' in sys.modules",
        mutate=("sys.modules['nothing$'] = md$",),
        undo=_GONE + "; sys.modules.pop('nothing$', None)",
    ),
    Feature("module by import_module", _MODULE, "importlib.import_module('md$').K", mutate=_MODULE_CHANGES, undo=_GONE),
    Feature(
        "import inside",
        _MODULE + "\ndef f$():\n    import md$\n    return md$.K",
        "f$()",
        mutate=(*_MODULE_CHANGES, "sys.modules['md$'] = types.SimpleNamespace(K=8.0)"),
        undo=_GONE,
    ),
    Feature(
        "import from inside",
        _MODULE + "\ndef f$():\n    from md$ import K\n    return K",
        "f$()",
        mutate=_MODULE_CHANGES,
        undo=_GONE,
    ),
    Feature(
        "absent module",
        """
            def f$():
                try:
                    import absent$
                except ImportError:
                    return 1.0
                return absent$.K
            """,
        "f$()",
        mutate=("absent$_ = types.ModuleType('absent$'); absent$_.K = 3.0; sys.modules['absent$'] = absent$_",),
        undo="sys.modules.pop('absent$', None)",
    ),
    Feature(
        "spec of a module",
        "k$ = 1",
        "importlib.util.find_spec('soak_absent$') is None",
        mutate=("m$ = types.ModuleType('m'); m$.__spec__ = types; sys.modules['soak_absent$'] = m$",),
        undo="sys.modules.pop('soak_absent$', None)",
    ),
    Feature(
        "own module by name", "v$ = 2.0", "sys.modules[__name__].v$", mutate=("v$ = 3.0", "v$ += 1"), entries=_GLOBAL
    ),
    Feature(
        "constant of math", "k$ = math.pi", "math.pi", mutate=("math.pi = 3.0",), undo="math.pi = 3.141592653589793"
    ),
    Feature(
        "sys.argv",
        "k$ = 1",
        "len(sys.argv)",
        mutate=("sys.argv.append('a')",),
        undo="sys.argv[1:] = [a for a in sys.argv[1:] if a != 'a']",
    ),
    Feature("sys.path", "k$ = 1", "'soak' in sys.path", mutate=("sys.path.append('soak')",)),
    Feature("recursion limit", "k$ = 1", "sys.getrecursionlimit()", mutate=("sys.setrecursionlimit(2345)",)),
    Feature(
        "type alias in a variable",
        "C$ = torch.Tensor",
        "isinstance(x, C$)",
        mutate=("C$ = int", "C$ = (int, torch.Tensor)", "C$ = nn.Parameter"),
    ),
    Feature(
        "exception type in a variable",
        "E$ = KeyError\ndef f$():\n    try:\n        return {}['a']\n    except E$:\n        return 1.0",
        "f$()",
        mutate=("E$ = LookupError", "E$ = ValueError"),
        entries=("function", "closure"),
    ),
    Feature(
        "raised exception",
        "k$ = 1\ndef f$(k):\n    if k > 2:\n        raise RuntimeError(k)\n    return k",
        "f$(k$)",
        mutate=("k$ = 3", "k$ = 0"),
    ),
    Feature("assertion", "k$ = 1\ndef f$(k):\n    assert k < 3\n    return k", "f$(k$)", mutate=("k$ = 3", "k$ = 0")),
    Feature(
        "match statement",
        """
            k$ = {'a': 1}
            def f$(k):
                match k:
                    case {'a': int(v)}:
                        return v
                    case [a, *b]:
                        return len(b)
                    case _:
                        return 7.0
            """,
        "f$(k$)",
        mutate=("k$ = [1, 2]", "k$ = {'a': 2}", "k$['a'] = 3.0"),
    ),
    Feature(
        "star arguments",
        "a$ = [1.0, 2.0]\nk$ = {'c': 3.0}\ndef f$(a, b=0.0, c=0.0):\n    return a + b + c",
        "f$(*a$, **k$)",
        mutate=("a$[0] = 5.0", "k$['c'] = 4.0", "k$.clear()"),
    ),
]
