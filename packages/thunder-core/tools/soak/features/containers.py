# SPDX-License-Identifier: Apache-2.0
"""Lists, dicts, sets and their relatives."""

from __future__ import annotations

from soak.feature import Feature

FEATURES = [
    Feature(
        "item of a list",
        "l$ = [2.0, 1]",
        "l$[0]",
        mutate=("l$[0] = 3.0", "l$[0] = 2", "l$.insert(0, 5.0)", "l$ = [7.0]", "l$[0] += 1", "l$.clear()"),
        keep=("l$[0] = 2.0",),
        write=("l$[0] = 3.0", "l$.append(1)", "l$[0] += 1", "l$[0] = 2.0"),
    ),
    Feature(
        "length of a list",
        "l$ = [2.0, 1]",
        "len(l$)",
        mutate=("l$.append(1)", "l$.pop()", "l$[:] = []"),
        keep=("l$[0] = 5.0",),
        write=("l$.append(1)", "l$.extend([1, 2])", "l$.pop(); l$.append(3)"),
    ),
    Feature(
        "sum of a list",
        "l$ = [2.0, 1]",
        "sum(l$)",
        mutate=("l$.append(1)", "l$[1] = 7", "l$.reverse()"),
        write=("l$.append(2.0)", "l$.sort()", "l$.reverse()"),
    ),
    Feature(
        "membership in a list", "l$ = [2.0, 1]", "3 in l$", mutate=("l$.append(3)", "l$[0] = 3"), keep=("l$.append(9)",)
    ),
    Feature(
        "iteration with enumerate",
        "l$ = [2.0, 1]",
        "sum(i * v for i, v in enumerate(l$))",
        mutate=("l$.append(3)", "l$.reverse()"),
    ),
    Feature(
        "slice of a list",
        "l$ = [1.0, 2.0, 3.0]",
        "sum(l$[1:])",
        mutate=("l$[2] = 5.0", "l$.append(3.0)", "del l$[0]"),
        write=("l$[1:] = [4.0]", "del l$[0:0]"),
    ),
    Feature("index of a list", "l$ = [1.0, 2.0, 3.0]", "l$.index(2.0)", mutate=("l$.insert(0, 2.0)", "l$.remove(2.0)")),
    Feature("sorted list", "l$ = [3.0, 1.0, 2.0]", "sorted(l$)[0]", mutate=("l$.append(-1.0)", "l$[1] = 9.0")),
    Feature("maximum of a list", "l$ = [3.0, 1.0]", "max(l$)", mutate=("l$.append(9.0)", "l$.pop(0)")),
    Feature(
        "zip of lists",
        "l$ = [3.0, 1.0]\nm$ = [1.0, 2.0]",
        "sum(a * b for a, b in zip(l$, m$))",
        mutate=("l$[0] = 9.0", "m$.pop()"),
    ),
    Feature(
        "unpacked list", "l$ = [3.0, 1.0]", "(lambda a, *b: a + len(b))(*l$)", mutate=("l$[0] = 9.0", "l$.append(1.0)")
    ),
    Feature("pop from a list", "l$ = [float(i) for i in range(20)]", "l$.pop()", mutate=("l$.append(9.0)",)),
    Feature(
        "nested list",
        "l$ = [[1.0], [2.0, [3.0]]]",
        "l$[1][1][0]",
        mutate=("l$[1][1][0] = 5.0", "l$[1] = [0, [8.0]]"),
        write=("l$[1][1][0] += 1",),
    ),
    Feature("tuple", "t$ = (2.0, 1)", "t$[0] + len(t$)", mutate=("t$ = (3.0, 1)", "t$ = (2.0, 1, 1)", "t$ = [2.0, 1]")),
    Feature(
        "list in a tuple",
        "t$ = (2.0, [1])",
        "t$[1][0]",
        mutate=("t$[1][0] = 3", "t$[1].insert(0, 9)"),
        write=("t$[1][0] += 1",),
    ),
    Feature(
        "item of a dict",
        "d$ = {'a': 2.0, 'b': 1}",
        "d$['a']",
        mutate=("d$['a'] = 3.0", "d$['a'] = 2", "del d$['a']", "d$ = {'a': 5.0}", "d$.update(a=7.0)"),
        keep=("d$['b'] = 5",),
        write=("d$['a'] = 3.0", "d$['c'] = 1", "d$['a'] += 1", "d$['a'] = 2.0", "d$.pop('b', 0)"),
    ),
    Feature(
        "get from a dict",
        "d$ = {'a': 2.0}",
        "d$.get('z', 1.0)",
        mutate=("d$['z'] = 3.0",),
        write=("d$['z'] = 3.0", "d$.setdefault('z', 5.0)"),
    ),
    Feature("key of a dict", "d$ = {'a': 2.0}", "'z' in d$", mutate=("d$['z'] = 3.0",), write=("d$['z'] = 3.0",)),
    Feature(
        "length of a dict",
        "d$ = {'a': 2.0}",
        "len(d$)",
        mutate=("d$['z'] = 3.0", "d$.clear()"),
        write=("d$[len(d$)] = 1",),
    ),
    Feature(
        "order of a dict",
        "d$ = {'a': 2.0, 'b': 3.0}",
        "list(d$)[0]",
        mutate=("d$['a'] = d$.pop('a')", "d$ = {'b': 1, 'a': 2}"),
        write=("d$['a'] = d$.pop('a')",),
    ),
    Feature(
        "values of a dict", "d$ = {'a': 2.0, 'b': 3.0}", "sum(d$.values())", mutate=("d$['a'] = 5.0", "d$['c'] = 1.0")
    ),
    Feature(
        "items of a dict",
        "d$ = {'a': 2.0, 'b': 3.0}",
        "sum(v * len(k) for k, v in d$.items())",
        mutate=("d$['a'] = 5.0", "d$['ccc'] = 1.0"),
    ),
    Feature(
        "view of a dict",
        "d$ = {'a': 2.0}\nv$ = d$.values()",
        "sum(v$)",
        mutate=("d$['a'] = 5.0", "d$['c'] = 1.0"),
        entries=("function", "closure"),
    ),
    Feature(
        "dict with keys of numbers",
        "d$ = {1: 2.0, 2: 3.0}\nk$ = 1",
        "d$[k$]",
        mutate=("k$ = 2", "d$[1] = 9.0", "k$ = True"),
    ),
    Feature(
        "dict with keys of objects",
        "class K$:\n    pass\na$ = K$()\nb$ = K$()\nd$ = {a$: 1.0, b$: 2.0}",
        "d$[a$]",
        mutate=("d$[a$] = 3.0", "a$ = b$"),
        entries=("function", "closure", "method"),
    ),
    Feature(
        "unpacked dict",
        "d$ = {'a': 2.0}",
        "(lambda a=0.0, **b: a + len(b))(**d$)",
        mutate=("d$['a'] = 9.0", "d$['q'] = 1.0"),
    ),
    Feature(
        "merged dicts", "d$ = {'a': 2.0}\ne$ = {'a': 1.0}", "(d$ | e$)['a']", mutate=("e$['a'] = 9.0", "e$.clear()")
    ),
    Feature("equality of lists", "l$ = [1, 2]\nm$ = [1, 2]", "l$ == m$", mutate=("l$.append(3)", "m$[0] = 5")),
    Feature("equality of dicts", "l$ = {'a': 1}\nm$ = {'a': 1}", "l$ == m$", mutate=("l$['a'] = 2", "m$['b'] = 5")),
    Feature(
        "member of a set",
        "s$ = {1, 2}",
        "3 in s$",
        mutate=("s$.add(3)", "s$ = {3}", "s$ |= {3}"),
        keep=("s$.add(2)",),
        write=("s$.add(3)", "s$.add(2)", "s$.discard(1)"),
    ),
    Feature(
        "length of a set", "s$ = {1, 2}", "len(s$)", mutate=("s$.add(3)", "s$.clear()"), write=("s$.add(len(s$) + 1)",)
    ),
    Feature("sum of a set", "s$ = {1, 2}", "sum(s$)", mutate=("s$.add(3)",)),
    Feature("frozen set", "s$ = frozenset({1, 2})", "len(s$) + (3 in s$)", mutate=("s$ = frozenset({3})",)),
    Feature("subset", "s$ = {1, 2}\nt$ = {1}", "t$ <= s$", mutate=("t$.add(9)", "s$.clear()")),
    Feature(
        "deque",
        "q$ = collections.deque([1.0, 2.0], maxlen=3)",
        "q$[0] + len(q$)",
        mutate=("q$.append(3.0)", "q$.appendleft(5.0)", "q$.rotate(1)", "q$[0] = 9.0", "q$.popleft()"),
        write=("q$.append(4.0)", "q$.rotate()", "q$.appendleft(0.0)"),
    ),
    Feature(
        "maximal length of a deque",
        "q$ = collections.deque([1.0], maxlen=3)",
        "q$.maxlen",
        mutate=("q$ = collections.deque([1.0], maxlen=5)", "q$ = collections.deque([1.0])"),
    ),
    Feature(
        "pop from a deque",
        "q$ = collections.deque([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])",
        "q$.popleft()",
        mutate=("q$.appendleft(5.0)",),
    ),
    Feature(
        "append to a full deque",
        "q$ = collections.deque([1.0, 2.0], maxlen=2)",
        "q$[0]",
        mutate=("q$ = collections.deque(q$, maxlen=3)",),
        write=("q$.append(4.0)",),
    ),
    Feature(
        "default dict",
        "d$ = collections.defaultdict(lambda: 1.0)",
        "d$['a']",
        mutate=("d$['a'] = 3.0", "d$.default_factory = lambda: 2.0; d$.clear()", "d$.pop('a', 0)"),
        write=("d$['a'] += 1",),
    ),
    Feature(
        "factory of a default dict",
        "d$ = collections.defaultdict(int)",
        "d$.default_factory is int",
        mutate=("d$.default_factory = float", "d$.default_factory = None"),
    ),
    Feature(
        "missing key of a default dict",
        "d$ = collections.defaultdict(int)\nk$ = 'a'",
        "d$[k$] + len(d$)",
        mutate=("k$ = 'b'", "d$.default_factory = None; k$ = 'c'"),
    ),
    Feature(
        "ordered dict",
        "d$ = collections.OrderedDict(a=1.0, b=2.0)",
        "next(iter(d$.values()))",
        mutate=("d$.move_to_end('a')", "d$['a'] = 5.0", "d$.popitem(last=False)"),
        write=("d$.move_to_end('a')",),
    ),
    Feature(
        "counter",
        "c$ = collections.Counter('aab')",
        "c$['a'] + c$['zz']",
        mutate=("c$['a'] += 1", "c$.update('zz')", "c$.clear()"),
        write=("c$['a'] += 1", "c$.update('b')"),
    ),
    Feature(
        "most common of a counter",
        "c$ = collections.Counter('aab')",
        "c$.most_common(1)[0][0]",
        mutate=("c$.update('bbb')",),
    ),
    Feature(
        "total of a counter",
        "c$ = collections.Counter('aab')",
        "sum(c$.elements() and c$.values())",
        mutate=("c$.update('bbb')",),
    ),
    Feature(
        "chain map",
        "a$ = {'x': 1.0}\nb$ = {'x': 2.0, 'y': 3.0}\nc$ = collections.ChainMap(a$, b$)",
        "c$['x'] + c$['y']",
        mutate=("a$['y'] = 9.0", "b$['y'] = 4.0", "del a$['x']", "c$['x'] = 6.0", "c$.maps.insert(0, {'x': 100.0})"),
        write=("c$['x'] += 1",),
        entries=("function", "closure", "method"),
    ),
    Feature(
        "mapping proxy",
        "d$ = {'a': 2.0}\np$_ = types.MappingProxyType(d$)",
        "p$_['a']",
        mutate=("d$['a'] = 3.0", "d$['b'] = 3.0"),
        entries=("function", "closure", "method"),
    ),
    Feature(
        "length of a mapping proxy",
        "d$ = {'a': 2.0}\np$_ = types.MappingProxyType(d$)",
        "len(p$_)",
        mutate=("d$['b'] = 3.0",),
        entries=("function", "closure", "method"),
    ),
    Feature(
        "UserDict",
        "d$ = collections.UserDict(a=2.0)",
        "d$['a']",
        mutate=("d$['a'] = 3.0", "d$.data['a'] = 4.0"),
        write=("d$['a'] += 1",),
    ),
    Feature(
        "UserList",
        "l$ = collections.UserList([2.0])",
        "l$[0] + len(l$)",
        mutate=("l$[0] = 3.0", "l$.append(1)"),
        write=("l$.append(1)", "l$[0] += 1"),
    ),
    Feature(
        "UserString",
        "s$ = collections.UserString('ab')",
        "len(s$) + (s$ == 'ab')",
        mutate=("s$.data = 'abc'", "s$ = collections.UserString('xy')"),
    ),
    Feature(
        "list subclass",
        "class L$(list):\n    pass\nl$ = L$([2.0, 1.0])\nl$.k = 1.0",
        "l$[0] + len(l$) + l$.k",
        mutate=("l$[0] = 3.0", "l$.append(1)", "l$.k = 2.0"),
        write=("l$.append(1)", "l$.k += 1", "l$[0] = 4.0"),
    ),
    Feature(
        "list subclass with __iter__",
        "class L$(list):\n    def __iter__(self):\n        return iter(self[::-1])\nl$ = L$([2.0, 1.0])",
        "list(l$)[0]",
        mutate=("l$.append(5.0)",),
        write=("l$.append(3.0)",),
    ),
    Feature(
        "list subclass with __getitem__",
        """
            class L$(list):
                def __getitem__(self, i):
                    return list.__getitem__(self, i) * 2
            l$ = L$([2.0, 1.0])
            """,
        "l$[0]",
        mutate=("l$[0] = 5.0", "L$.__getitem__ = lambda self, i: 9.0"),
    ),
    Feature(
        "dict subclass",
        "class D$(dict):\n    pass\nd$ = D$(a=2.0)\nd$.k = 1.0",
        "d$['a'] + d$.k",
        mutate=("d$['a'] = 3.0", "d$.k = 2.0"),
        write=("d$['b'] = 1", "d$.k += 1"),
    ),
    Feature(
        "dict with __missing__",
        "class D$(dict):\n    k = 3.0\n    def __missing__(self, key):\n        return self.k\nd$ = D$(a=2.0)",
        "d$['z']",
        mutate=("d$['z'] = 7.0", "D$.k = 4.0", "d$.k = 5.0"),
    ),
    Feature(
        "dict with attributes",
        "class D$(dict):\n    __getattr__ = dict.__getitem__\n    __setattr__ = dict.__setitem__\nd$ = D$(a=2.0)",
        "d$.a",
        mutate=("d$.a = 3.0", "d$['a'] = 4.0"),
        write=("d$.a += 1", "d$.new = 1"),
    ),
    Feature(
        "set subclass",
        "class S$(set):\n    pass\ns$ = S$([1])\ns$.k = 1.0",
        "len(s$) + s$.k",
        mutate=("s$.add(2)", "s$.k = 2.0"),
        write=("s$.add(3)",),
    ),
    Feature(
        "tuple subclass",
        "class T$(tuple):\n    pass\nt$ = T$([2.0])\nt$.k = 1.0",
        "t$[0] + t$.k",
        mutate=("t$.k = 3.0", "t$ = T$([5.0]); t$.k = 1.0"),
        write=("t$.k += 1",),
    ),
    Feature(
        "heap",
        "import heapq\nl$ = [float(i) for i in range(12)]",
        "heapq.heappop(l$)",
        mutate=("heapq.heappush(l$, -1.0)",),
    ),
    Feature("bisect", "import bisect\nl$ = [1.0, 2.0, 3.0]", "bisect.bisect(l$, 2.5)", mutate=("l$.insert(0, 0.0)",)),
    Feature(
        "array",
        "import array\na$ = array.array('d', [2.0, 1.0])",
        "a$[0] + len(a$)",
        mutate=("a$[0] = 3.0", "a$.append(1.0)"),
        state=("list(a$)",),
        write=("a$[0] = 9.0",),
    ),
    Feature(
        "bytearray",
        "b$ = bytearray(b'ab')",
        "b$[0] + len(b$)",
        mutate=("b$[0] = 3", "b$.append(1)"),
        state=("bytes(b$)",),
        write=("b$.append(1)",),
    ),
    Feature(
        "memoryview",
        "b$ = bytearray(b'ab')\nm$ = memoryview(b$)",
        "m$[0]",
        mutate=("b$[0] = 3", "m$[0] = 9"),
        state=("bytes(b$)",),
        entries=("function", "closure", "method"),
    ),
    Feature("range", "r$_ = range(3)", "sum(r$_)", mutate=("r$_ = range(4)", "r$_ = range(0, 6, 2)")),
    Feature(
        "slice object", "s$ = slice(0, 2)", "sum([1.0, 2.0, 3.0][s$])", mutate=("s$ = slice(0, 3)", "s$ = slice(1, 3)")
    ),
    Feature("bytes", "b$ = b'ab'", "b$[0]", mutate=("b$ = b'xb'",)),
    Feature(
        "numpy array",
        "a$ = np.array([2.0, 1.0])",
        "float(a$[0])",
        mutate=("a$[0] = 3.0", "a$ = np.array([5.0, 1.0])", "a$ += 1"),
        write=("a$[0] = 9.0", "a$ += 1"),
    ),
    Feature(
        "numpy shape",
        "a$ = np.zeros((2, 3))",
        "a$.shape[0] + a$.ndim",
        mutate=("a$ = np.zeros((3, 2))", "a$.resize((3, 2), refcheck=False)"),
    ),
    Feature("numpy function", "a$ = np.array([2.0, 1.0])", "float(np.sum(a$))", mutate=("a$[0] = 3.0",)),
    Feature(
        "numpy scalar", "a$ = np.float64(2.0)", "float(a$) + 1", mutate=("a$ = np.float64(3.0)", "a$ = np.float32(2.0)")
    ),
    Feature("numpy constant", "k$ = 4.0", "float(np.sqrt(k$))", mutate=("k$ = 9.0",)),
    Feature(
        "tensor from numpy", "a$ = np.array([2.0], dtype=np.float32)", "torch.from_numpy(a$)", mutate=("a$[0] = 3.0",)
    ),
]
