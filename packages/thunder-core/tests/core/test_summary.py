# SPDX-License-Identifier: Apache-2.0
"""The short form of traces, for notebooks and debuggers."""

from __future__ import annotations

import torch

import thunder


def long_trace():
    """Return the trace of a program of more than a hundred lines."""

    def f(x):
        for _ in range(60):
            x = (x + 1).sin()
        return x

    jitted = thunder.jit(f)
    jitted(torch.ones(2))
    return thunder.last_traces(jitted)[-1]


def test_long_programs_are_shortened() -> None:
    """Numbers, the first and the last lines; `repr` is the program."""
    trace = long_trace()
    text = trace.summary()
    assert len(text.splitlines()) < 30
    assert text.splitlines()[0] == "computation (Delete Last Used): 120 operations, 1 input"
    assert "executors: torch 120" in text
    assert "operations: add 60, sin 60" in text
    assert "lines: print the trace to see them" in text
    assert text.rstrip().endswith(str(trace).splitlines()[-1].strip())
    assert repr(trace) == str(trace) == trace.python()


def test_short_programs_are_whole() -> None:
    """Nothing is left out."""
    jitted = thunder.jit(lambda x: x + 1)
    jitted(torch.ones(2))
    text = thunder.last_traces(jitted)[-1].summary()
    assert "print the trace" not in text
    assert "t0 = torch.add(x, 1" in text


def test_html() -> None:
    """The summary, and the program to unfold; text is escaped."""
    trace = long_trace()
    text = trace._repr_html_()
    assert text.count("<pre>") == text.count("</pre>") == 2
    assert "<details>" in text
    assert "&quot;cpu f32[2]&quot;" in text
