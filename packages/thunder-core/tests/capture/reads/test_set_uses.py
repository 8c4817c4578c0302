# SPDX-License-Identifier: Apache-2.0
"""Which code is found to depend on the order of a set that it makes."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from types import CodeType

import pytest

from thunder.capture.reads.set_uses import set_uses

HARMLESS = [
    "x in {a, b}",
    "x in {a for a in b}",
    "len({a,b})",
    "len(set(a)) > 1",
    "not set(a)",
    "set(a) == set(b)",
    "set(a) - set(b) == set()",
    "sorted(set(a))",
    "x if {a} else 3",
    "len(set(a) | {b} & {c})",
    "isinstance(x,(set,list))",
    "isinstance(x,set)",
    "a.items() == b.keys()",
    "type(x) is set",
    "x in {1,2,3}",
    "[i for i in b if i in {1,2}]",
    "len(set().union(*b))",
    "[k for k in a.keys()]",
    "a-b",
    "list(a.keys())",
    "zip(a.keys(), b.items())",
    "len(a.items())",
    "x in a.keys()",
    "{k: v for k, v in a.items()}",
    "[k for k in a.keys() if k in {i for i in b}]",
    "a.items() == b.items()",
    "not a.keys()",
    "str(a.keys())",
    "len(a.keys() - b)",
    "x in a.keys() | b.keys()",
    "set(a).isdisjoint(b)",
    "x in frozenset(b)",
    "{a}.issubset(b)",
    "type(x) in (set, list)",
]
ORDERED = [
    "a.items() == b",
    "{a for a in b}",
    "list({a for a in b})",
    "g({a for a in b})",
    "{a for a in b}==c",
    "{a}",
    "g(a.keys())",
    "a.keys()",
    "[a.items()]",
    "x.f(a.items())",
    "{a.keys() for a in b}",
    "list({a,b})",
    "[i for i in {a,b}]",
    "{a,b}.pop()",
    "f'{set(a)}'",
    "str({a,b})",
    "g({a,b})",
    "(set(a),)",
    "[*{a,b}]",
    "sum({a,b})",
    "min(set(a))",
    "next(iter({a,b}))",
    "{a,b} == c",
    "c in {a} | d",
    "map(set,a)",
    "g(set)",
    "set",
    "len(a.keys() & b)+list(a.keys() & b)[0]",
    "[i for i in a.keys() - b]",
    "g(a.items() ^ b)",
    "(yield {a})",
    "lambda: {a}",
    "{a: {b}}",
    "g(*{a,b})",
    "g(**{'a': {a}})",
    "x[{a}]",
    "','.join({a,b})",
    "'%s' % {a,b}",
    "repr(set(a))",
    "{a}.__iter__()",
    "set.union(a,b)",
    "dict.fromkeys({a,b})",
    "{a} if x else b",
    "({a} if x else b).add({c})",
    "({a} or b)",
    "enumerate({a,b})",
    "(lambda s: s)({a})",
    "s.attr.add({a})",
    "[{a}]",
    "any({a,b})",
    "{1,2,3}",
    "list({1,2,3})",
    "print({a})",
    "a.update({b})",
]
HARMLESS_BODIES = [
    "s = set()\nfor i in a:\n  if i in s: continue\n  s.add(i)\n  x = x + i\nreturn x",
    "s = {i.n for i in a}\nif x in s and c is not None: g(x)\nreturn x",
    "s = set(a)\nreturn [i for i in b if i in s]",
    "s={a}\ndef h(q): return q in s\nreturn h",
    "add={a}.add\nadd(b)\nreturn 1",
    "s={a}\ns |= {b}\ns.update(c)\ntry:\n  return x in s\nexcept KeyError:\n  return len(s)",
    "with g:\n  s=set(a)\n  return x in s",
    "if x: raise ValueError(f'no {set(a)}')\nreturn 1",
    "assert x, f'no {set(a)}'\nreturn 1",
    "if x: raise ValueError('no ' f'{\", \".join(set(a))}')\nreturn 1",
    "s=set(a)\ns=4\nreturn s",
    "s = a if x else set(b)\nreturn c in s",
    "for i in a:\n  s=set(i)\n  while s: s.discard(i)\nreturn 1",
    "del x\ns={a}\nx=s\ndel s\nreturn b in x",
    "seen=set()\nadd=seen.add\nfor i in a: add(i)\nreturn len(seen)",
    "seen=set()\nreturn [i for i in a if not (i in seen or seen.add(i))]",
]
ORDERED_BODIES = [
    "s=0\ntry:\n  s=set(a)\n  g()\nexcept KeyError:\n  x.append(s)\n  raise",
    "s=set(a)\nreturn s",
    "s=set(a)\nfor i in s: x=x*i\nreturn x",
    "s=set(a)\nx.y=s",
    "global G\nG=set(a)",
    "s=set(a)\nreturn lambda: list(s)",
    "s=set(a)\nreturn [i for i in s]",
    "s=set(a)\ndef h():\n  nonlocal s\n  for i in s: pass\nreturn h",
    "try:\n  s=set(a)\n  g()\nexcept ValueError:\n  return list(s)",
    "try:\n  raise ValueError(f'{set(a)}')\nexcept ValueError as e:\n  return str(e)",
    "s=set(a)\nlocals()",
    "s=set(a)\nwith s: pass",
    "s={a}\nmatch s:\n  case _: pass\n  \nreturn s",
    "def h():\n  s={a}\n  def k(): return [*s]\n  return k\nreturn h",
    "s=set(a)\nt=s if x else b\nt.foo(1)",
    "t=set(a) if x else b\nt.add(t)",
    "raise KeyError(set(a))",
    "raise ValueError({a})",
    "raise g(f'{set(a)}')",
    "s=set(a)\nyield s",
    "s=set(a)\nyield from s",
    "a,b={c,d}\nreturn a",
    "class K: s={a}\nreturn K",
    "k=a.keys()\nm=k & b\nreturn [i for i in m]",
    "s=set(a)\nfor i in b:\n  for j in s: pass\n  s=b",
    "s=b\nfor i in a:\n  g(s)\n  s=set(a)\nreturn 1",
    "p=set(a)\np2=p\nreturn p2",
    "add={a}\nif x: add=add.pop\nreturn add",
    "s={a}\nreturn s.union(b)",
    "s={a}\ndel s\ns={b}\nx[0]=s",
    "return {a}",
    "return builtins.set(a)",
]


def code_of(body: str) -> CodeType:
    """Return the code of a function with this body."""
    module = compile(f"def f(a, b, c, x, g, d):\n{textwrap.indent(body, '  ')}\n", "<test>", "exec")
    return next(x for x in module.co_consts if isinstance(x, CodeType))


def all_codes(code: CodeType) -> Iterator[CodeType]:
    """Iterate over code and the code of functions that it defines, which run, too."""
    yield code
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from all_codes(x)


def is_ordered(body: str) -> bool:
    """Check whether a function may depend on the order of a set."""
    found = [set_uses(x) for x in all_codes(code_of(body))]
    return any(uses.ordered or uses.loops or uses.called for uses in found)


@pytest.mark.parametrize("body", [*(f"return {x}" for x in HARMLESS), *HARMLESS_BODIES])
def test_uses_without_order(body: str) -> None:
    if sys.version_info < (3, 11) and ("try:" in body or "with " in body):
        pytest.skip("Python 3.10 has no table of handlers: code that catches errors counts as ordered")
    assert not is_ordered(body)


@pytest.mark.parametrize("body", [*(f"return {x}" for x in ORDERED), *ORDERED_BODIES])
def test_uses_of_the_order(body: str) -> None:
    assert is_ordered(body)


def test_uses_that_are_decided_when_the_program_runs() -> None:
    assert set_uses(code_of("return sorted(set(a))")).sorts
    assert set_uses(code_of("if x: raise ValueError(f'{set(a)}')")).raises
    assert set_uses(code_of("return len(set(a))")).builtins == {"len", "set"}
    assert set_uses(code_of("return a - b")) == (False, False, False, False, frozenset(), frozenset())


LOOPS = [
    "for i in set(a): x = x * i\nreturn x",
    "s=set(a)\nif b in s: g(1)\nfor i in s: x=x*i\nreturn x",
    "for i in frozenset(a.b):\n  for j in set(c): x[i]=j",
    "return [i for i in set(a)]",
    "s=set(a)\nt=set(b)\nt.add(c)\nreturn len(t)",
]
# Of these sets, the order is not that of a new one.
CHANGED = [
    "s=set(a)\ns.add(b)\nfor i in s: x=x*i",
    "s=set(a)\nt=s\nt.discard(b)\nfor i in s: x=x*i",
    "s=set(a)\nadd=s.add\nadd(b)\nfor i in s: x=x*i",
    "for i in set(a)|set(b): x=x*i",
    "for i in set(a).union(b): x=x*i",
    "for i in set(a).copy(): x=x*i",
    "s=set(a) if b else c\nfor i in s: x=x*i",
    "s=set(a)\nfor i in s: x=x*i\nreturn s",
    "s=set(a)\ng(s)\nfor i in s: x=x*i",
    "if x: g.s = set(a)\nreturn b in {1, 2}",
    "if x: return set()\nreturn len({i for i in a})",
]
# These make sets also without a call of `set` with one argument, of which no hook sees that it happens.
UNSEEN = [
    "s=set(a)\nif b: s={c}\nfor i in s: x=x*i",
    "for i in set(*a): x=x*i",
    "s=set(a)\ns|={b}\nfor i in s: x=x*i",
    "for i in {a,b}: x=x*i",
    "for i in {a for a in b}: x=x*i",
    "if x: g.s = set(a)\nreturn {a, b}",
    "if x: g.s = set(a)\nreturn g(set)",
    "s = set\nif x: return s(*a)\nfor i in set(a): x=x*i",
]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the interpreter reports no calls of classes")
def test_loops_over_new_sets() -> None:
    for body in LOOPS[:-1]:
        assert set_uses(code_of(body)).loops and not set_uses(code_of(body)).ordered, body
    assert not set_uses(code_of(LOOPS[-1])).loops and not set_uses(code_of(LOOPS[-1])).ordered
    for body in CHANGED:
        assert set_uses(code_of(body)).called and not set_uses(code_of(body)).ordered, body
    for body in UNSEEN:
        assert set_uses(code_of(body)).ordered, body
