# SPDX-License-Identifier: Apache-2.0
"""Attributes of objects, classes and their relatives."""

from __future__ import annotations

from soak.feature import Feature

_OBJECT = "class C$:\n    pass\no$ = C$()\no$.v = 2.0\no$.other = 1"

FEATURES = [
    Feature(
        "attribute of an object",
        _OBJECT,
        "o$.v",
        mutate=("o$.v = 3.0", "o$.v = 2", "o$.v += 1.0", "o$.v = True", "o$ = C$(); o$.v = 5.0", "del o$.v"),
        keep=("o$.other += 1", "o$.v = 2.0"),
        write=("o$.v = 3.0", "o$.v = o$.v + 1", "o$.v = 2.0", "o$.new = 1", "o$.v *= 0.5"),
    ),
    Feature(
        "integer attribute",
        "class C$:\n    pass\no$ = C$()\no$.n = 2",
        "o$.n",
        mutate=("o$.n = 3", "o$.n += 1", "o$.n = 2.0", "o$.n = True", "o$.n = -1", "o$.n = 0"),
        write=("o$.n = 3", "o$.n = 2", "o$.n += 1", "o$.n = o$.n * 2", "o$.m = o$.n"),
    ),
    Feature(
        "attribute by getattr",
        _OBJECT,
        'getattr(o$, "v")',
        mutate=("o$.v = 3.0", "del o$.v", 'setattr(o$, "v", 4.0)'),
        write=('setattr(o$, "v", 3.0)', 'setattr(o$, "v", getattr(o$, "v") + 1)'),
    ),
    Feature(
        "attribute with a default",
        "class C$:\n    pass\no$ = C$()",
        'getattr(o$, "v", 1.0)',
        mutate=("o$.v = 3.0", "C$.v = 4.0", "o$.__dict__['v'] = 6.0"),
        write=("o$.v = 2.0",),
    ),
    Feature(
        "hasattr of an object",
        "class C$:\n    pass\no$ = C$()",
        'hasattr(o$, "v")',
        mutate=("o$.v = 3.0", "C$.v = 4.0"),
        write=("o$.v = 2.0",),
    ),
    Feature("vars of an object", _OBJECT, "vars(o$)['v']", mutate=("o$.v = 3.0", "vars(o$)['v'] = 4.0")),
    Feature("length of vars", _OBJECT, "len(vars(o$))", mutate=("o$.w = 3.0", "del o$.other")),
    Feature("dict of an object", _OBJECT, "o$.__dict__['v']", mutate=("o$.v = 3.0", "o$.__dict__ = {'v': 7.0}")),
    Feature("dir of an object", _OBJECT, "'w' in dir(o$)", mutate=("o$.w = 3.0", "C$.w = 2")),
    Feature("object read by attrgetter", _OBJECT, "operator.attrgetter('v')(o$)", mutate=("o$.v = 3.0", "o$.v += 1")),
    Feature(
        "class of an object",
        "class C$:\n    k = 2.0\nclass D$(C$):\n    k = 3.0\no$ = C$()",
        "o$.k",
        mutate=("o$.__class__ = D$", "C$.k = 5.0", "o$.k = 7.0", "o$ = D$()"),
        write=("o$.k = 3.0", "type(o$).k = 4.0"),
    ),
    Feature(
        "name of the class",
        "class C$:\n    pass\nclass D$(C$):\n    pass\no$ = C$()",
        "type(o$).__name__",
        mutate=("o$.__class__ = D$", "o$ = D$()", "C$.__name__ = 'E'"),
    ),
    Feature(
        "class attribute",
        "class C$:\n    k = 2.0\n    n = 1",
        "C$.k",
        mutate=("C$.k = 3.0", "C$.k = 2", "del C$.k", "setattr(C$, 'k', 4.0)", "C$.k += 1.0"),
        keep=("C$.n = 5",),
        write=("C$.k = 3.0", "C$.k += 1.0", "C$.k = 2.0"),
        state=("C$.k",),
    ),
    Feature(
        "inherited attribute",
        "class A$:\n    k = 2.0\nclass B$_(A$):\n    pass\nclass C$(B$_):\n    pass\no$ = C$()",
        "o$.k",
        mutate=("A$.k = 3.0", "B$_.k = 4.0", "C$.k = 5.0", "C$.__bases__ = (type('Z', (), {'k': 9.0}),)"),
    ),
    Feature("vars of a class", "class C$:\n    k = 2.0", "vars(C$)['k']", mutate=("C$.k = 3.0",)),
    Feature("dict of a class", "class C$:\n    k = 2.0", "C$.__dict__['k']", mutate=("C$.k = 3.0",)),
    Feature(
        "get from the dict of a class", "class C$:\n    k = 2.0", "C$.__dict__.get('j', 1.0)", mutate=("C$.j = 3.0",)
    ),
    Feature("hasattr of a class", "class C$:\n    k = 2.0", "hasattr(C$, 'j')", mutate=("C$.j = 3.0",)),
    Feature("dir of a class", "class C$:\n    k = 2.0", "'j' in dir(C$)", mutate=("C$.j = 3.0",)),
    Feature(
        "members of an object",
        "class C$:\n    k = 2.0\no$ = C$()\no$.v = 3.0",
        "sum(v for _, v in inspect.getmembers(o$) if isinstance(v, float))",
        mutate=("C$.j = 3.0", "o$.v = 5.0", "C$.k = 1.0"),
    ),
    Feature(
        "members of a class",
        "class C$:\n    k = 2.0",
        "sum(v for _, v in inspect.getmembers(C$) if isinstance(v, float))",
        mutate=("C$.j = 3.0", "C$.k = 1.0"),
    ),
    Feature(
        "subclasses of a class",
        "class C$:\n    pass\nlive$ = []",
        "len(C$.__subclasses__())",
        mutate=("live$.append(type('D', (C$,), {}))",),
        entries=("function", "module"),
    ),
    Feature(
        "method",
        "class C$:\n    def m(self):\n        return 2.0\no$ = C$()",
        "o$.m()",
        mutate=("C$.m = lambda self: 3.0", "o$.m = lambda: 5.0", "C$.m.__code__ = (lambda self: 7.0).__code__"),
    ),
    Feature(
        "static and class methods",
        """
            class C$:
                k = 1.0
                @staticmethod
                def s():
                    return 2.0
                @classmethod
                def c(cls):
                    return cls.k
            """,
        "C$.s() + C$.c()",
        mutate=("C$.s = staticmethod(lambda: 3.0)", "C$.k = 4.0", "C$.c = classmethod(lambda cls: 8.0)"),
    ),
    Feature(
        "property",
        "class C$:\n    @property\n    def p(self):\n        return self.v * 2\no$ = C$()\no$.v = 2.0",
        "o$.p",
        mutate=("o$.v = 3.0", "C$.p = property(lambda self: 1.0)", "C$.p = 5.0"),
    ),
    Feature(
        "property with a setter",
        """
            class C$:
                @property
                def p(self):
                    return self.v * 2
                @p.setter
                def p(self, value):
                    self.v = value + 1
            o$ = C$()
            o$.v = 2.0
            """,
        "o$.p",
        mutate=("o$.p = 3.0", "o$.p += 1"),
        write=("o$.p = 2.0", "o$.p += 1"),
    ),
    Feature(
        "custom descriptor",
        """
            class D$:
                def __init__(self):
                    self.k = 2.0
                def __get__(self, obj, cls=None):
                    return self.k
            class C$:
                d = D$()
            o$ = C$()
            """,
        "o$.d",
        mutate=("vars(C$)['d'].k = 3.0", "vars(C$)['d'].k += 1.0", "C$.d = 9.0"),
        state=("vars(C$)['d'].k",),
    ),
    Feature(
        "custom data descriptor",
        """
            class D$:
                def __init__(self):
                    self.values = {}
                def __get__(self, obj, cls=None):
                    return self.values.get(id(obj), 1.0)
                def __set__(self, obj, value):
                    self.values[id(obj)] = value
            class C$:
                d = D$()
            o$ = C$()
            """,
        "o$.d",
        mutate=("o$.d = 3.0", "o$.d += 1.0"),
        write=("o$.d = 4.0", "o$.d += 1.0"),
        state=("o$.d",),
    ),
    Feature(
        "descriptor that counts",
        """
            class D$:
                n = 0
                def __get__(self, obj, cls=None):
                    self.n += 1
                    return self.n
            class C$:
                d = D$()
            o$ = C$()
            """,
        "o$.d",
        mutate=("vars(C$)['d'].n = 7",),
        state=("vars(C$)['d'].n",),
    ),
    Feature(
        "descriptor that keeps state in a weak dictionary",
        """
            class D$:
                def __init__(self):
                    self.values = weakref.WeakKeyDictionary()
                def __get__(self, obj, cls=None):
                    return self.values.get(obj, 1.0)
                def __set__(self, obj, value):
                    self.values[obj] = value
            class C$:
                d = D$()
            o$ = C$()
            """,
        "o$.d",
        mutate=("o$.d = 3.0", "o$.d += 1.0"),
        write=("o$.d = 4.0",),
        state=("o$.d",),
    ),
    Feature(
        "attribute by __getattr__",
        """
            class C$:
                def __init__(self):
                    self.table = {'v': 2.0}
                def __getattr__(self, name):
                    return self.table[name]
            o$ = C$()
            """,
        "o$.v",
        mutate=("o$.table['v'] = 3.0", "o$.v = 5.0", "o$.table = {'v': 7.0}"),
        write=("o$.table['v'] += 1",),
    ),
    Feature(
        "attribute by __getattribute__",
        """
            class C$:
                def __init__(self):
                    self.w = 2.0
                def __getattribute__(self, name):
                    return object.__getattribute__(self, 'w' if name == 'v' else name)
            o$ = C$()
            """,
        "o$.v",
        mutate=("o$.w = 3.0", "o$.w += 1"),
    ),
    Feature(
        "attribute set by __setattr__",
        """
            class C$:
                def __setattr__(self, name, value):
                    object.__setattr__(self, name, value * 2)
            o$ = C$()
            o$.v = 2.0
            """,
        "o$.v",
        mutate=("o$.v = 3.0",),
        write=("o$.v = 5.0", "o$.v += 1.0"),
    ),
    Feature(
        "slots",
        "class C$:\n    __slots__ = ('v', 'w')\no$ = C$()\no$.v = 2.0",
        "o$.v",
        mutate=("o$.v = 3.0", "o$.v += 1", "del o$.v"),
        keep=("o$.w = 1",),
        write=("o$.v = 3.0", "o$.w = 4.0", "o$.v += 1"),
    ),
    Feature("missing slot", "class C$:\n    __slots__ = ('v',)\no$ = C$()", "hasattr(o$, 'v')", mutate=("o$.v = 3.0",)),
    Feature(
        "dataclass",
        "@dataclasses.dataclass\nclass C$:\n    v: float = 2.0\n    w: int = 1\no$ = C$()",
        "o$.v + o$.w",
        mutate=("o$.v = 3.0", "o$.w += 1", "o$ = C$(5.0)", "o$ = dataclasses.replace(o$, v=7.0)"),
        write=("o$.v = 3.0", "o$.w += 1"),
    ),
    Feature(
        "frozen dataclass",
        "@dataclasses.dataclass(frozen=True)\nclass C$:\n    v: float = 2.0\n    w: int = 1\no$ = C$()",
        "o$.v + o$.w",
        mutate=("o$ = C$(5.0)", "object.__setattr__(o$, 'v', 4.0)"),
    ),
    Feature(
        "dataclass with slots",
        "@dataclasses.dataclass(slots=True)\nclass C$:\n    v: float = 2.0\no$ = C$()",
        "o$.v",
        mutate=("o$.v = 3.0", "o$.v += 1"),
        write=("o$.v += 1",),
    ),
    Feature(
        "asdict",
        "@dataclasses.dataclass\nclass C$:\n    v: float = 2.0\no$ = C$()",
        "dataclasses.asdict(o$)['v']",
        mutate=("o$.v = 3.0",),
    ),
    Feature(
        "replace of a dataclass",
        "@dataclasses.dataclass\nclass C$:\n    v: float = 2.0\n    w: float = 1.0\no$ = C$()",
        "dataclasses.replace(o$, w=0.0).v",
        mutate=("o$.v = 3.0",),
    ),
    Feature(
        "fields of a dataclass",
        "@dataclasses.dataclass\nclass C$:\n    v: float = 2.0\n    w: float = 1.0\no$ = C$()",
        "sum(getattr(o$, f.name) for f in dataclasses.fields(o$))",
        mutate=("o$.v = 3.0",),
    ),
    Feature(
        "equality of dataclasses",
        "@dataclasses.dataclass\nclass C$:\n    v: float = 2.0\no$ = C$()\np$_ = C$()",
        "o$ == p$_",
        mutate=("o$.v = 3.0", "p$_.v = 3.0"),
    ),
    Feature(
        "named tuple",
        "C$ = collections.namedtuple('C$', 'v w')\no$ = C$(2.0, 1)",
        "o$.v + o$[1]",
        mutate=("o$ = C$(3.0, 1)", "o$ = o$._replace(w=5)", "C$.v = property(lambda self: 9.0)"),
    ),
    Feature(
        "enum member",
        "class E$(enum.Enum):\n    A = 1.0\n    B = 2.0\no$ = E$.A",
        "o$.value",
        mutate=("o$ = E$.B", "E$.A._value_ = 5.0"),
    ),
    Feature(
        "value of an enum",
        "class E$(enum.Enum):\n    A = 1.0\n    B = 2.0",
        "E$.A.value",
        mutate=("E$.A._value_ = 5.0",),
        state=("E$.A.value",),
    ),
    Feature(
        "attribute of an enum member",
        "class E$(enum.Enum):\n    A = 1.0\nE$.A.extra = 2.0",
        "E$.A.extra",
        mutate=("E$.A.extra = 5.0", "E$.A.extra += 1"),
        write=("E$.A.extra += 1",),
        state=("E$.A.extra",),
    ),
    Feature(
        "method of an enum",
        "class E$(enum.Enum):\n    A = 1.0\n    def f(self):\n        return self.scale\nE$.A.scale = 2.0",
        "E$.A.f()",
        mutate=("E$.A.scale = 5.0",),
    ),
    Feature(
        "name of an enum member",
        "class E$(enum.Enum):\n    A = 1.0\n    BB = 2.0\no$ = E$.A",
        "o$.name",
        mutate=("o$ = E$.BB",),
    ),
    Feature(
        "members of an enum",
        "class E$(enum.Enum):\n    A = 1.0\n    B = 2.0",
        "sum(m.value for m in E$)",
        mutate=("E$.A._value_ = 5.0",),
    ),
    Feature(
        "flag",
        "class E$(enum.Flag):\n    A = 1\n    B = 2\no$ = E$.A",
        "bool(o$ & E$.B)",
        mutate=("o$ = E$.A | E$.B", "o$ = E$.B"),
    ),
    Feature(
        "int enum", "class E$(enum.IntEnum):\n    A = 1\n    B = 2\no$ = E$.A", "o$ + 1", mutate=("o$ = E$.B", "o$ = 1")
    ),
    Feature(
        "enum lookup",
        "class E$(enum.Enum):\n    A = 'a'\n    B = 'b'\nk$ = 'a'",
        "E$(k$) is E$.A",
        mutate=("k$ = 'b'",),
    ),
    Feature(
        "simple namespace",
        "o$ = types.SimpleNamespace(v=2.0)",
        "o$.v",
        mutate=("o$.v = 3.0", "o$.v += 1", "del o$.v"),
        write=("o$.v += 1", "o$.w = 2"),
    ),
    Feature(
        "function attribute",
        "def f$():\n    return f$.k\nf$.k = 2.0",
        "f$()",
        mutate=("f$.k = 3.0", "f$.k += 1"),
        write=("f$.k += 1",),
        state=("f$.k",),
    ),
    Feature(
        "metaclass attribute",
        "class M$(type):\n    k = 2.0\nclass C$(metaclass=M$):\n    pass",
        "C$.k",
        mutate=("M$.k = 3.0", "C$.k = 4.0"),
    ),
    Feature(
        "metaclass property",
        "class M$(type):\n    @property\n    def p(cls):\n        return cls.q\nclass C$(metaclass=M$):\n    q = 2.0",
        "C$.p",
        mutate=("C$.q = 3.0", "M$.p = 4.0"),
    ),
    Feature(
        "metaclass __getattr__",
        """
            class M$(type):
                table = {'z': 2.0}
                def __getattr__(cls, name):
                    return M$.table[name]
            class C$(metaclass=M$):
                pass
            """,
        "C$.z",
        mutate=("M$.table['z'] = 3.0", "C$.z = 4.0"),
    ),
    Feature(
        "metaclass __call__",
        "class M$(type):\n    k = 2.0\n    def __call__(cls):\n        return cls.k\nclass C$(metaclass=M$):\n    pass",
        "C$()",
        mutate=("M$.k = 3.0", "C$.k = 4.0"),
    ),
    Feature(
        "metaclass __instancecheck__",
        """
            class M$(type):
                yes = True
                def __instancecheck__(cls, obj):
                    return cls.yes
            class C$(metaclass=M$):
                pass
            """,
        "isinstance(1, C$)",
        mutate=("M$.yes = False", "C$.yes = False"),
    ),
    Feature(
        "new object",
        "class C$:\n    k = 2.0\n    def __init__(self):\n        self.v = self.k * 2",
        "C$().v",
        mutate=("C$.k = 3.0", "C$.__init__ = lambda self: setattr(self, 'v', 1.0)"),
    ),
    Feature(
        "counter in a class",
        "class C$:\n    made = 0\n    def __init__(self):\n        C$.made += 1",
        "(C$(), C$.made)[1]",
        mutate=("C$.made = 10",),
        state=("C$.made",),
    ),
    Feature(
        "chain of objects",
        "class C$:\n    pass\no$ = C$()\no$.a = C$()\no$.a.b = C$()\no$.a.b.v = 2.0",
        "o$.a.b.v",
        mutate=("o$.a.b.v = 3.0", "o$.a = o$.a.__class__(); o$.a.b = C$(); o$.a.b.v = 9.0"),
        write=("o$.a.b.v += 1", "o$.a.b = C$(); o$.a.b.v = 4.0"),
    ),
    Feature(
        "operators of an object",
        """
            class C$:
                v = 2.0
                def __add__(self, other):
                    return self.v + other
                def __len__(self):
                    return int(self.v)
                def __bool__(self):
                    return self.v > 1
                def __getitem__(self, i):
                    return self.v * i
                def __contains__(self, i):
                    return i == self.v
            o$ = C$()
            """,
        "(o$ + 1) + len(o$) + bool(o$) + o$[3] + (2.0 in o$)",
        mutate=("o$.v = 3.0", "C$.v = 1.0", "C$.__len__ = lambda self: 7"),
    ),
    Feature(
        "iteration of an object",
        "class C$:\n    def __iter__(self):\n        return iter(self.items)\no$ = C$()\no$.items = [1.0, 2.0]",
        "sum(o$)",
        mutate=("o$.items.append(3.0)", "o$.items[0] = 5.0"),
    ),
    Feature(
        "truth of an object",
        "class C$:\n    pass\no$ = C$()",
        "bool(o$)",
        mutate=("C$.__bool__ = lambda self: False", "C$.__len__ = lambda self: 0"),
    ),
    Feature(
        "equality with __eq__",
        """
            class C$:
                def __init__(self, k):
                    self.k = k
                def __eq__(self, other):
                    return self.k == other.k
                __hash__ = None
            o$, p$_ = C$(1), C$(1)
            """,
        "o$ == p$_",
        mutate=("o$.k = 2", "p$_.k = 2"),
    ),
    Feature(
        "hash of an object",
        """
            class C$:
                def __init__(self, k):
                    self.k = k
                def __hash__(self):
                    return self.k
            o$ = C$(3)
            """,
        "hash(o$)",
        mutate=("o$.k = 4",),
    ),
    Feature(
        "repr of an object",
        "class C$:\n    def __repr__(self):\n        return 'C' * self.k\no$ = C$()\no$.k = 3",
        "repr(o$)",
        mutate=("o$.k = 4",),
    ),
    Feature("formatted attribute", _OBJECT, 'f"{o$.v:.1f}"', mutate=("o$.v = 3.0", "o$.v = -0.0")),
    Feature(
        "object in a cycle",
        "class C$:\n    pass\no$ = C$()\no$.me = o$\no$.v = 2.0",
        "o$.me.me.v",
        mutate=("o$.v = 3.0",),
        write=("o$.me.v += 1",),
    ),
    Feature(
        "cached property",
        "class C$:\n    @functools.cached_property\n    def p(self):\n        return self.v * 2\no$ = C$()\no$.v = 2.0",
        "o$.p",
        mutate=("o$.__dict__.pop('p', None); o$.v += 3.0", "o$.p = 1.0", "o$ = C$(); o$.v = 9.0"),
    ),
    Feature(
        "exception object",
        "e$ = ValueError('a')\ne$.v = 2.0",
        "e$.v + len(e$.args)",
        mutate=("e$.v = 3.0", "e$.args = (1, 2)"),
        state=("e$.args",),
    ),
]
