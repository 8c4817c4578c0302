# SPDX-License-Identifier: Apache-2.0
"""Random programs with sets: a process in which sets have other orders never runs a program for another order."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from saved_processes import run

# What programs read: a set in a class whose instances are read whole, lists of texts, and texts of names.
HEADER = """
import builtins, operator
NAMES = ["a", "bc", "def", "ghij", "klmno"]
NUMBERS = [40, 3, 17, 101]
TEXT = "KINDS"
read = builtins.getattr

class Settings:
    kinds = set(["pq"])
    scale = 2.0
    def __init__(self):
        self.own = set()
    def __getattribute__(self, name):
        return super().__getattribute__(name)

SETTINGS = Settings()

def made(n):
    return set(NAMES[:n])

def ordered(xs):
    y = 1.0
    for i, n in enumerate(xs):
        y += (i + 1) * (len(n) if isinstance(n, str) else n)
    return y
"""
NEW_SETS = [
    *["set(NAMES)", "set(NAMES[:4])"] * 3, "set(NAMES[:3])", "set(NAMES[1:])", "set(NAMES[:1])", "set()", "{*NAMES}",
    "frozenset(('a', 'bc', 'def'))", "{'a', 'def', x.dim()}", "{n for n in NAMES}", "set(n for n in NAMES)",
    "set(NUMBERS)", "made(3)", "made(1)", "SETTINGS.kinds", "SETTINGS.own", "Settings.kinds",
    "getattr(Settings, TEXT.lower())", "read(Settings, TEXT.lower())", "operator.attrgetter(TEXT.lower())(Settings)",
    "type(SETTINGS).kinds | set(NAMES)", "{'kinds': SETTINGS}.pop('kinds').kinds",
    "dict.fromkeys(NAMES).keys() & set(NAMES)",
]  # fmt: skip
CHANGES = [
    *[""] * 12, "s = s | {'rst'}", "s = s | set(NAMES[3:])", "s = set(s)", "s = s - {'a'}", "s = s.union(NAMES)",
    "s = set(sorted(s, key=str))", "s = [*s]", "s = {**dict.fromkeys(s)}", "s = s ^ {'bc'}", "t = s\n    s = t",
    "s = set(s)\n    s.add('uv')", "s = set(s)\n    s |= set(NAMES[2:4])", "s = s if x.dim() else None",
]  # fmt: skip
LOOPS = [
    *[""] * 8, "for n in s:\n        x = x * 2 + len(str(n))",
    "for i, n in enumerate(s):\n        x = x + i * len(str(n))",
]  # fmt: skip
WITHOUT_ORDER = [
    "x * len(s)", "x + 1 if 'a' in s else x", "x * len(s) * SETTINGS.scale", "x + 2 if 'def' in s else x * len(s)",
    "x * ordered([n for n in NAMES if n in s])", "x if s else x * 2", "x * SETTINGS.scale", "x * (s == set(NAMES))",
    "x * {'kinds': 3}.pop('kinds', 1)",
]  # fmt: skip
USES = [
    *WITHOUT_ORDER * 2, "x * ordered(s)", "x * ordered(sorted(s, key=str))", "x * len(str(s))",
    "x * ordered([n for n in s])", "x * ordered([next(iter(s))] if s else [])", "x * ordered(tuple(s))",
    "x * ordered(map(str, s))", "x * max(map(len, map(str, s))) if s else x", *["{n: x * len(str(n)) for n in s}"] * 3,
    "{n: x * i for i, n in enumerate(s)}", "x * len(repr(sorted(map(str, s))))",
]  # fmt: skip
RUN = """
def same(a, b):
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[n], b[n]) for n in a)
    return torch.equal(a, b)

torch.manual_seed(0)
found = {}
for name, f in PROGRAMS.items():
    jitted, x = thunder.jit(f, save=True), torch.ones(2)
    try:
        expected = f(x)
    except Exception:
        continue
    got = jitted(x)
    stats = thunder.compile_stats(jitted)
    notes = [e.reason for e in stats.events.of("saved")]
    found[name] = same(got, expected), stats.saved_hits, notes
report(jitted, found)
"""


def random_programs(count: int, seed: int) -> list[tuple[str, ...]]:
    """Return programs that make a set or get one, change it, loop over it, and compute a result with it."""
    draw = random.Random(seed)
    return [tuple(map(draw.choice, (NEW_SETS, CHANGES, LOOPS, USES))) for _ in range(count)]


def source_of(programs: list[tuple[str, ...]]) -> str:
    """Return the source of a process that runs programs and compares each with eager mode."""
    lines = [HEADER]
    for i, (new, change, loop, use) in enumerate(programs):
        body = "\n    ".join(line for line in (f"s = {new}", change, loop, f"return {use}") if line)
        lines.append(f"def f{i}(x):\n    {body}\n")
    names = ", ".join(f"'f{i}': f{i}" for i in range(len(programs)))
    return "\n".join([*lines, f"PROGRAMS = {{{names}}}", RUN])


def test_programs_with_sets(tmp_path: Path) -> None:
    """A process with other hashes computes what eager mode does, and finds programs that do not depend on an order."""
    programs = [("set(NAMES)", "", "", "{n: x * len(n) for n in s}"), *random_programs(16, seed=1)]
    source = source_of(programs)
    first, second = (run(tmp_path, source, PYTHONHASHSEED=seed)["values"][0] for seed in ("1", "2"))
    for reports in (first, second):
        assert [programs[int(name[1:])] for name, (is_same, *_) in reports.items() if not is_same] == []
    saved = {name for name, (_, _, notes) in first.items() if any(note.startswith("saved") for note in notes)}
    other = {name for name, (_, _, notes) in second.items() if any("another order" in note for note in notes)}
    assert 2 < len(saved) < len(first) - 2
    assert {name for name, (_, hits, _) in second.items() if hits} == saved - other
    assert bool(other) == (sys.version_info >= (3, 12))
