# SPDX-License-Identifier: Apache-2.0
"""What each call has to do anew, and a trace must not do for it: draw, read a clock, make a tensor, keep an id."""

from __future__ import annotations

from soak.feature import Feature

FEATURES = [
    # A trace that draws and then falls back would draw twice.
    Feature(
        "random number before a fallback",
        "g$ = random.Random(3)",
        "g$.random() + 0.0 * x.data_ptr()",
        mutate=("g$.seed(5)",),
        state=("g$.getstate()[1][-1]",),
    ),
    Feature(
        "counter before a fallback",
        "o$ = Holder()\no$.n = 0\ndef f$(x):\n    o$.n += 1\n    return o$.n + 0.0 * x.data_ptr()",
        "f$(x)",
        mutate=("o$.n = 5",),
    ),
    Feature(
        "random number before a caught fallback",
        "g$ = random.Random(3)\ndef f$(x):\n    try:\n        return g$.random() + 0.0 * x.data_ptr()\n"
        "    except Exception:\n        return 7.0",
        "f$(x)",
        mutate=("g$.seed(5)",),
        state=("g$.getstate()[1][-1]",),
        entries=("function", "closure"),
    ),
    # Tuples of classes are not compared, so that ids and times may differ between two runs.
    Feature(
        "id in a tuple",
        "class C$:\n    pass\na$ = C$()\nb$ = C$()\nclass Known$:\n    ids = (id(a$),)",
        "id(a$) in Known$.ids",
        mutate=("a$ = b$",),
        entries=("function", "closure"),
    ),
    Feature(
        "clock that is stored",
        "import time\nclass Clock$:\n    last = before = (0.0,)\nlater$ = False",
        "1.0",
        mutate=("later$ = Clock$.last > Clock$.before; Clock$.before = Clock$.last",),
        write=("Clock$.last = (time.perf_counter(),)",),
        entries=("function", "closure"),
    ),
    Feature(
        "argument that is an attribute, too",
        "w$ = torch.ones(3)\no$ = Holder()\no$.last = w$",
        "w$ is o$.last",
        mutate=("o$.last = torch.ones(3)", "w$ = torch.zeros(3)"),
        write=("o$.last = w$",),
        entries=("argument",),
    ),
    # With symbolic values, numbers among the arguments are symbolic from the first call on.
    Feature(
        "negative zero in an argument", "z$ = 0.0", "str(z$)", mutate=("z$ = -0.0", "z$ = -z$"), entries=("argument",)
    ),
    Feature("contiguous input", "k$ = 1", "x.contiguous() is x", mutate=("k$ = 2",)),
    Feature(
        "view that is kept",
        "v$ = torch.ones(3)\nkept$ = torch.zeros(3)",
        "v$.sum()",
        mutate=("v$ = torch.zeros(3)", "kept$.requires_grad_()"),
        write=("kept$ = v$.view(-1)", "kept$ = v$.contiguous().view(-1)", "kept$ = v$.reshape(3)"),
        state=("kept$ is v$",),
    ),
    # Their values are not read, so an assignment of the same value is the only use.
    Feature(
        "attribute that is only assigned",
        "o$ = Holder()\no$.v = None\no$.w = 2\nk$ = 1.0",
        "k$",
        mutate=("o$.v = 3", "o$.w += 1", "o$.v = []"),
        write=("o$.v = None", "o$.w = 2"),
    ),
    Feature(
        "variable that is only assigned",
        "v$ = None\nk$ = 1.0",
        "k$",
        mutate=("v$ = 3", "v$ = 'a'"),
        write=("v$ = None", "v$ = 3"),
    ),
    Feature(
        "draw into a tensor",
        "w$ = torch.zeros(40, 40)[::2, ::3]\nk$ = 1.0",
        "(nn.init.trunc_normal_(w$) * k$)[:, 0]",
        mutate=("k$ = 2.0", "w$ = torch.zeros(9, 8).t()"),
    ),
    Feature(
        "number that is printed",
        "k$ = 1",
        "float(k$)",
        mutate=("k$ += 1",),
        write=("print(f'step {k$}')", "print('step', k$, end=';')"),
    ),
]
