# SPDX-License-Identifier: Apache-2.0
"""State of the process: decimal context, random numbers, iterators, files, copies, abstract classes."""

from __future__ import annotations

from soak.feature import Feature

_FILE = "p$_ = os.path.join(tempfile.gettempdir(), 'soak-' + str(os.getpid()) + '-$')\nopen(p$_, 'w').write('ab')"
_NO_FILE = (
    "import os, tempfile; p_ = os.path.join(tempfile.gettempdir(), 'soak-' + str(os.getpid()) + '-$'); "
    "os.path.exists(p_) and os.remove(p_)"
)

FEATURES = [
    Feature(
        "decimal context",
        "k$ = decimal.Decimal(1)",
        "float(k$ / 3)",
        mutate=("decimal.getcontext().prec = 5", "decimal.getcontext().prec = 3"),
        state=("decimal.getcontext().prec",),
    ),
    Feature(
        "precision of decimals",
        "k$ = 1",
        "decimal.getcontext().prec",
        mutate=("decimal.getcontext().prec = 5",),
        write=("decimal.getcontext().prec = 7",),
        state=("decimal.getcontext().prec",),
    ),
    Feature(
        "local decimal context",
        """
            k$ = 5
            def f$(k):
                with decimal.localcontext() as c:
                    c.prec = k
                    return float(decimal.Decimal(1) / 3)
            """,
        "f$(k$)",
        mutate=("k$ = 3",),
        state=("decimal.getcontext().prec",),
    ),
    Feature(
        "random number", "k$ = 1", "random.random()", mutate=("random.seed(5)",), state=("hash(random.getstate())",)
    ),
    Feature(
        "random integer",
        "k$ = 10",
        "random.randint(0, k$)",
        mutate=("random.seed(5)", "k$ = 20"),
        state=("hash(random.getstate())",),
    ),
    Feature(
        "random choice",
        "l$ = [1.0, 2.0, 3.0]",
        "random.choice(l$)",
        mutate=("random.seed(5)", "l$.append(9.0)"),
        state=("hash(random.getstate())",),
    ),
    Feature(
        "random generator",
        "g$ = random.Random(3)",
        "g$.random()",
        mutate=("g$.seed(5)", "g$ = random.Random(8)"),
        state=("hash(g$.getstate())",),
    ),
    Feature(
        "shuffled list",
        "l$ = [1.0, 2.0, 3.0, 4.0]",
        "(random.shuffle(l$), l$[0])[1]",
        mutate=("random.seed(5)",),
        state=("hash(random.getstate())",),
    ),
    Feature(
        "seeding inside",
        "k$ = 1",
        "(random.seed(k$), random.random())[1]",
        mutate=("k$ = 2",),
        state=("hash(random.getstate())",),
    ),
    Feature(
        "numpy's random number",
        "k$ = 1",
        "float(np.random.rand())",
        mutate=("np.random.seed(5)",),
        state=("float(np.random.get_state()[1].sum()) + np.random.get_state()[2]",),
    ),
    Feature(
        "numpy's generator",
        "g$ = np.random.default_rng(3)",
        "float(g$.random())",
        mutate=("g$ = np.random.default_rng(4)", "g$.random()"),
        state=("str(g$.bit_generator.state)",),
    ),
    Feature(
        "torch's random number",
        "k$ = 1",
        "torch.rand(())",
        mutate=("torch.manual_seed(5)",),
        state=("torch.get_rng_state()",),
    ),
    Feature(
        "torch's seed",
        "k$ = 1",
        "torch.initial_seed()",
        mutate=("torch.manual_seed(5)",),
        state=("torch.initial_seed()",),
    ),
    Feature(
        "torch's random number as a number",
        "k$ = 1",
        "torch.rand(()).item()",
        mutate=("torch.manual_seed(5)",),
        state=("torch.get_rng_state()",),
    ),
    Feature(
        "seeding torch inside",
        "k$ = 1",
        "(torch.manual_seed(k$), torch.rand(()))[1]",
        mutate=("k$ = 2",),
        state=("torch.get_rng_state()",),
    ),
    Feature(
        "torch's generator",
        "g$ = torch.Generator().manual_seed(3)",
        "torch.rand((), generator=g$)",
        mutate=("g$.manual_seed(5)", "g$ = torch.Generator().manual_seed(8)"),
        state=("g$.get_state()",),
    ),
    Feature(
        "seeding a generator inside",
        "g$ = torch.Generator()\nk$ = 1",
        "torch.rand((), generator=g$.manual_seed(k$))",
        mutate=("k$ = 2",),
        state=("g$.get_state()", "g$.initial_seed()"),
    ),
    Feature(
        "seed of a generator",
        "g$ = torch.Generator().manual_seed(3)",
        "g$.initial_seed()",
        mutate=("g$.manual_seed(5)",),
    ),
    Feature(
        "state of a generator restored",
        "g$ = torch.Generator().manual_seed(3)\ns$ = g$.get_state()",
        "(g$.set_state(s$), torch.rand((), generator=g$))[1]",
        mutate=("s$ = torch.Generator().manual_seed(9).get_state()",),
        state=("g$.get_state()",),
    ),
    Feature(
        "forked random state",
        "k$ = 1\ndef f$():\n    with torch.random.fork_rng():\n        return torch.rand(())",
        "f$()",
        mutate=("torch.manual_seed(5)",),
        state=("torch.get_rng_state()",),
    ),
    Feature(
        "iterator", "i$ = iter([float(i) for i in range(30)])", "next(i$)", mutate=("next(i$)", "i$ = iter([7.0] * 30)")
    ),
    Feature(
        "counting iterator",
        "i$ = itertools.count(2)",
        "next(i$)",
        mutate=("next(i$)", "i$ = itertools.count(9)"),
        state=("repr(i$)",),
    ),
    Feature("cycle", "i$ = itertools.cycle([1.0, 2.0, 3.0])", "next(i$)", mutate=("next(i$)",)),
    Feature(
        "generator",
        "def g$():\n    n = 1.0\n    while True:\n        yield n\n        n += 1\ni$ = g$()",
        "next(i$)",
        mutate=("next(i$)", "i$ = g$()"),
        state=("i$.gi_frame.f_locals",),
    ),
    Feature(
        "generator that reads state",
        "l$ = [1.0]\ndef g$():\n    while True:\n        yield l$[0]\ni$ = g$()",
        "next(i$)",
        mutate=("l$[0] = 4.0",),
        entries=("function", "closure"),
    ),
    Feature(
        "file handle",
        "f$ = io.StringIO('a\\nbb\\nccc\\n' + 'd\\n' * 30)",
        "f$.readline()",
        mutate=("f$.seek(0)",),
        state=("f$.tell()",),
    ),
    Feature(
        "text buffer",
        "f$ = io.StringIO()",
        "len(f$.getvalue())",
        mutate=("f$.write('abc')",),
        write=("f$.write('x')",),
        state=("f$.getvalue()",),
    ),
    Feature(
        "bytes buffer", "f$ = io.BytesIO(b'a' * 30)", "len(f$.read(1))", mutate=("f$.seek(0)",), state=("f$.tell()",)
    ),
    Feature(
        "contents of a file",
        _FILE,
        "open(p$_).read()",
        mutate=("open(p$_, 'w').write('xyz')",),
        undo=_NO_FILE,
        state=("open(p$_).read()",),
    ),
    Feature(
        "file exists",
        _FILE,
        "os.path.exists(p$_ + 'x')",
        mutate=("open(p$_ + 'x', 'w').close()",),
        undo=_NO_FILE + "; os.path.exists(p_ + 'x') and os.remove(p_ + 'x')",
    ),
    Feature("size of a file", _FILE, "os.path.getsize(p$_)", mutate=("open(p$_, 'w').write('xyz')",), undo=_NO_FILE),
    Feature(
        "metadata of a file", _FILE, "os.stat(p$_).st_size", mutate=("open(p$_, 'w').write('xyz')",), undo=_NO_FILE
    ),
    Feature(
        "time of a file",
        _FILE + "\nos.utime(p$_, (5, 5))",
        "os.path.getmtime(p$_)",
        mutate=("os.utime(p$_, (9, 9))",),
        undo=_NO_FILE,
    ),
    Feature(
        "path exists",
        _FILE,
        "pathlib.Path(p$_).exists()",
        mutate=("os.path.exists(p$_) and os.remove(p$_)",),
        undo=_NO_FILE,
    ),
    Feature(
        "text of a path", _FILE, "pathlib.Path(p$_).read_text()", mutate=("open(p$_, 'w').write('xyz')",), undo=_NO_FILE
    ),
    Feature(
        "list of a folder",
        """
            p$_ = os.path.join(tempfile.gettempdir(), 'soak-folder-' + str(os.getpid()) + '-$')
            os.makedirs(p$_, exist_ok=True)
            """,
        "len(os.listdir(p$_))",
        mutate=("open(os.path.join(p$_, 'a'), 'w').close()",),
        write=("open(os.path.join(p$_, 'b'), 'w').close()",),
        state=("os.listdir(p$_)",),
        undo="import shutil; shutil.rmtree(p$_)",
        entries=("function",),
    ),
    Feature(
        "working directory",
        "k$ = 1",
        "os.getcwd()",
        mutate=("os.chdir('/')",),
        write=("os.chdir('/')",),
        state=("os.getcwd()",),
    ),
    Feature("working directory by pathlib", "k$ = 1", "str(pathlib.Path.cwd())", mutate=("os.chdir('/')",)),
    Feature("absolute path", "k$ = 1", "os.path.abspath('a')", mutate=("os.chdir('/')",)),
    Feature(
        "shallow copy",
        "class C$:\n    pass\no$ = C$()\no$.v = 2.0",
        "copy.copy(o$).v",
        mutate=("o$.v = 3.0", "o$.v += 1"),
    ),
    Feature(
        "deep copy",
        "class C$:\n    pass\no$ = C$()\no$.v = [2.0]",
        "copy.deepcopy(o$).v[0]",
        mutate=("o$.v[0] = 3.0", "o$.v = [5.0]"),
    ),
    Feature("deep copy of a dict", "d$ = {'a': [2.0]}", "copy.deepcopy(d$)['a'][0]", mutate=("d$['a'][0] = 3.0",)),
    Feature("copy of a list", "l$ = [2.0]", "copy.copy(l$)[0] + l$.copy()[0]", mutate=("l$[0] = 3.0",)),
    Feature(
        "copy with __copy__",
        "class C$:\n    def __copy__(self):\n        return self.v\no$ = C$()\no$.v = 2.0",
        "copy.copy(o$)",
        mutate=("o$.v = 3.0",),
    ),
    Feature(
        "pickled object",
        "o$ = Holder()\no$.v = 2.0",
        "pickle.loads(pickle.dumps(o$)).v",
        mutate=("o$.v = 3.0", "o$.v += 1"),
    ),
    Feature("pickled list", "l$ = [2.0]", "pickle.loads(pickle.dumps(l$))[0]", mutate=("l$[0] = 3.0",)),
    Feature("json", "import json\nd$ = {'a': 2.0}", "json.dumps(d$)", mutate=("d$['a'] = 3.0", "d$['b'] = 1")),
    Feature(
        "regular expression",
        "import re\np$_ = re.compile('a+')\ns$ = 'caab'",
        "p$_.search(s$).end()",
        mutate=("s$ = 'aaab'", "p$_ = re.compile('c')"),
    ),
    Feature(
        "abstract class registered",
        "class A$(abc.ABC):\n    pass\nclass C$:\n    pass\no$ = C$()",
        "isinstance(o$, A$)",
        mutate=("A$.register(C$)",),
    ),
    Feature(
        "subclass of an abstract class",
        "class A$(abc.ABC):\n    pass\nclass C$:\n    pass",
        "issubclass(C$, A$)",
        mutate=("A$.register(C$)",),
    ),
    Feature(
        "sequence registered",
        "class C$:\n    pass\no$ = C$()",
        "isinstance(o$, collections.abc.Sequence)",
        mutate=("collections.abc.Sequence.register(C$)",),
    ),
    Feature(
        "iterable by duck typing",
        "class C$:\n    pass\no$ = C$()",
        "isinstance(o$, collections.abc.Iterable)",
        mutate=("C$.__iter__ = lambda self: iter([])",),
    ),
    Feature(
        "runtime protocol",
        """
            import typing
            @typing.runtime_checkable
            class P$(typing.Protocol):
                v: float
            class C$:
                pass
            o$ = C$()
            """,
        "isinstance(o$, P$)",
        mutate=("o$.v = 1.0", "C$.v = 2.0"),
    ),
    Feature(
        "exit stack",
        """
            l$ = []
            def f$():
                with contextlib.ExitStack() as s:
                    s.callback(l$.append, 1)
                    return len(l$)
            """,
        "f$()",
        mutate=("l$.clear()",),
        entries=("function", "closure"),
    ),
    Feature(
        "suppressed exception",
        "d$ = {}\ndef f$(d):\n    with contextlib.suppress(KeyError):\n        return d['a']\n    return 1.0",
        "f$(d$)",
        mutate=("d$['a'] = 5.0",),
    ),
    Feature(
        "redirected output",
        """
            s$ = 'a'
            def f$(s):
                b = io.StringIO()
                with contextlib.redirect_stdout(b):
                    print(s)
                return b.getvalue()
            """,
        "f$(s$)",
        mutate=("s$ = 'bb'",),
    ),
    Feature(
        "string template",
        "import string\nt$ = string.Template('a$$b')",
        "t$.substitute(b='c')",
        mutate=("t$ = string.Template('$$b')", "t$.template = 'zz$$b'"),
    ),
    Feature(
        "struct",
        "import struct\nb$ = struct.pack('d', 2.0)",
        "struct.unpack('d', b$)[0]",
        mutate=("b$ = struct.pack('d', 3.0)",),
    ),
    Feature(
        "garbage collector", "import gc", "gc.isenabled()", mutate=("gc.disable()",), undo="import gc; gc.enable()"
    ),
    Feature(
        "reference count", "k$ = []", "sys.getrefcount(k$) > 50", mutate=("l$ = [k$] * 100",), entries=("function",)
    ),
    Feature("sys.stdout replaced", "k$ = 'a'", "sys.stdout is sys.__stdout__", mutate=("k$ = 'b'",)),
    Feature("time zone of time", "import time", "time.timezone", entries=("function",)),
    Feature("hash by hashlib", "import hashlib\ns$ = b'a'", "hashlib.md5(s$).hexdigest()", mutate=("s$ = b'b'",)),
    Feature(
        "incremental hash",
        "import hashlib\nh$ = hashlib.md5(b'a')",
        "h$.hexdigest()",
        mutate=("h$.update(b'b')",),
        write=("h$.update(b'c')",),
        state=("h$.hexdigest()",),
    ),
    Feature(
        "config parser",
        "import configparser\nc$_ = configparser.ConfigParser()\nc$_['a'] = {'k': '2'}",
        "c$_.getint('a', 'k')",
        mutate=("c$_['a']['k'] = '3'",),
    ),
    Feature(
        "argparse namespace",
        "import argparse\na$ = argparse.Namespace(v=2.0)",
        "a$.v",
        mutate=("a$.v = 3.0", "a$.v += 1"),
        write=("a$.v += 1",),
    ),
    Feature(
        "calendar of a locale",
        "import string\nk$ = 2",
        "string.digits[k$]",
        mutate=("k$ = 3", "string.digits = '987654321'"),
        undo="import string; string.digits = '0123456789'",
    ),
]
