# SPDX-License-Identifier: Apache-2.0
"""`thunder.explain` and `thunder.compile_stats`: what ran how often, what was recompiled or ran eagerly, and why."""

from __future__ import annotations

import re

import torch

import thunder


def explained(jitted) -> str:
    """Return the report without durations."""
    return re.sub(r"\d+\.\d\d s", "? s", thunder.explain(jitted))


def test_programs_and_recompilations() -> None:
    """How often each program ran, why it was compiled, and what to do."""

    def f(x, n):
        return (x * n).sin()

    jitted = thunder.jit(f)
    for n in (2.0, 2.0, 3.0):
        jitted(torch.ones(3), n)
    assert explained(jitted).splitlines() == [
        "3 calls: 1 cache hit, 2 compilations",
        "program 1: ran 2 times, 2 operations (2 by torch), compiled in ? s because no program was cached",
        "program 2: ran once, 2 operations (2 by torch), compiled in ? s because n was 2.0 and is 3.0",
        "recompiled because",
        "  n was 2.0 and is 3.0",
        "what to do",
        '  sizes and numbers that change twice become inputs; cache="symbolic values" makes them inputs at once',
    ]
    stats = thunder.compile_stats(jitted)
    name = "thunder.jit(test_programs_and_recompilations.<locals>.f)"
    assert repr(stats) == f"<{name}, 3 calls: 1 cache hit, 2 compilations>"
    assert str(stats) == f"{name}, {thunder.explain(jitted)}"


def test_earlier_recompilations() -> None:
    """Reasons that are not those of the last compilation."""
    jitted = thunder.jit(lambda x, flag: x + 1 if flag == "a" else x - 1)
    for flag in "abc":
        jitted(torch.ones(2), flag)
    text = explained(jitted)
    assert "earlier recompilations because\n  flag was 'a' and is 'b'" in text
    assert "recompiled because\n  flag was 'b' and is 'c'\n  flag was 'a' and is 'c'\n" in text


def test_calls_that_ran_eagerly() -> None:
    """With reason, line and number."""

    def f(x):
        x.untyped_storage().data_ptr()
        return x + 1

    jitted = thunder.jit(f)
    jitted(torch.ones(3))
    text = explained(jitted)
    assert text.splitlines()[0] in (
        "1 call: 0 cache hits, 1 compilation (1 eager)",
        "1 call: 0 cache hits, 1 compilation (1 partly eager)",
    )
    assert f"(at {__file__}:" in text or "partly eager: " in text


def test_partly_eager_functions() -> None:
    """The modules with their calls, and what to do."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())

    @thunder.disable
    def apart(x):
        return x

    jitted = thunder.jit(lambda x: apart(net(x)))
    for _ in range(2):
        jitted(torch.ones(2, 2))
    lines = explained(jitted).splitlines()
    assert lines[0] == "2 calls: 0 cache hits, 1 compilation (2 partly eager)"
    assert lines[1].startswith("partly eager: the program calls test_partly_eager_functions.<locals>.apart")
    assert lines[2].startswith(f"  at {__file__}:")
    assert lines[2].endswith(": jitted = thunder.jit(lambda x: apart(net(x)))")
    assert lines[3] == "  thunder.jit(Sequential): 2 calls, 1 compilation"
    assert lines[4] == "what to do"


def test_hits_survive_a_reset() -> None:
    """The numbers of calls stay, the programs go."""
    jitted = thunder.jit(lambda x: x + 1)
    for _ in range(4):
        jitted(torch.ones(2))
    jitted.reset()
    assert (thunder.cache_hits(jitted), thunder.cache_misses(jitted)) == (3, 1)
    jitted(torch.ones(2))
    assert explained(jitted).splitlines()[:2] == [
        "5 calls: 3 cache hits, 2 compilations",
        "program 1: ran once, 1 operation (1 by torch), compiled in ? s because no program was cached",
    ]


def test_paths_are_listed() -> None:
    """Branches on values of tensors, with answers, lines and numbers of calls; and the record has their decisions."""

    def f(x):
        return x * 2 if x.sum() > 0 else x

    jitted = thunder.jit(f)
    for sign in (1, 1, -1):
        jitted(sign * torch.ones(2))
    text = explained(jitted)
    assert text.splitlines()[0] == "3 calls: 1 cache hit, 2 compilations"
    assert "path with 2 calls\n" in text
    assert "return x * 2 if x.sum() > 0 else x" in text
    assert "program 1: ran 2 times" in text and "because no program was cached" in text
    assert re.search(r"program 2: ran once, .* because u0 is False, at .*: return x \* 2 if", text)
    decisions = thunder.compile_stats(jitted).events.of("decision")
    assert sorted(event.details["answer"] for event in decisions) == [False, True]
    assert all(event.where is not None and event.where.filename == __file__ for event in decisions)
