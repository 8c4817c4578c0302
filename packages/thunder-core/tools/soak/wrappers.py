# SPDX-License-Identifier: Apache-2.0
"""Where in a program a feature is read: in its own body, a method, a generator, a class body, a thread …"""

from __future__ import annotations

import textwrap

# For each wrapper: definitions that the program uses, and statements of the program. `READ` is the expression.
WRAPPERS: dict[str, tuple[str, str]] = {
    "plain": ("", "r$ = READ"),
    "helper": ("def helper$():\n    return READ", "r$ = helper$()"),
    "method": (
        "class W$:\n    def get(this):\n        return READ\nw$ = W$()",
        "r$ = w$.get()",
    ),
    "closure": (
        (
            "def outer$():\n    some = [1]\n    def inner():\n        return READ if some else None\n    return inner\n"
            "inner$ = outer$()"
        ),
        "r$ = inner$()",
    ),
    "generator": ("def gen$():\n    yield READ", "for r$ in gen$():\n    pass"),
    "property": ("class P$:\n    @property\n    def value(this):\n        return READ\np$ = P$()", "r$ = p$.value"),
    "decorator": (
        (
            "def deco$(fn):\n    @functools.wraps(fn)\n    def inner(*args):\n        return fn(READ, *args)\n"
            "    return inner\n"
            "@deco$\ndef decorated$(value, other):\n    return value"
        ),
        "r$ = decorated$(1)",
    ),
    "context manager": ("@contextlib.contextmanager\ndef cm$():\n    yield READ", "with cm$() as r$:\n    pass"),
    "call": ("class Called$:\n    def __call__(this):\n        return READ\ncalled$ = Called$()", "r$ = called$()"),
    "nested function": ("", "def nested$():\n    return READ\nr$ = nested$()"),
    "lambda": ("", "r$ = (lambda: READ)()"),
    "class body": ("", "class B$:\n    value = READ\nr$ = B$.value"),
    "comprehension": ("", "r$ = [READ for _ in range(1)][0]"),
    "generator expression": ("", "r$ = next(READ for _ in range(1))"),
    "map": ("", "r$ = list(map(lambda _: READ, [0]))[0]"),
    "thread": (
        "",
        "o$_ = []\nt$_ = threading.Thread(target=lambda: o$_.append(READ))\nt$_.start()\nt$_.join()\nr$ = o$_[0]",
    ),
    "executor": (
        "",
        "with concurrent.futures.ThreadPoolExecutor(1) as e$_:\n    r$ = e$_.submit(lambda: READ).result()",
    ),
}
# Those that read on a thread that they start.
OTHER_THREADS = ("thread", "executor")


def wrapped(wrapper: str, number: int, read: str) -> tuple[str, str]:
    """Return definitions and statements that bind `r<number>` to what was read."""
    definitions, body = (text.replace("$", str(number)).replace("READ", f"({read})") for text in WRAPPERS[wrapper])
    return definitions, body


def indented(text: str, by: int) -> str:
    """Return the lines indented by so many levels, or nothing for no lines."""
    return textwrap.indent(text.rstrip("\n"), "    " * by) + "\n" if text.strip() else ""
