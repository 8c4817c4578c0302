# SPDX-License-Identifier: Apache-2.0
"""The state of a thread: its trace, its frontend, the user's line."""

from __future__ import annotations

import threading

from thunder.core.state import SourceLine, current_trace, state, tracectx
from thunder.core.trace import Trace


def test_no_frontend_stands_between_while_operations_are_evaluated() -> None:
    """`tracectx` puts it aside and gives it back."""
    marker = object()
    state.frontend = marker
    try:
        with tracectx(Trace()) as trace:
            assert (state.trace, state.frontend) == (trace, None)
        assert state.frontend is marker
    finally:
        state.frontend = None


def test_each_thread_has_its_own() -> None:
    """A trace being written here is not written to from there."""
    seen = []
    with tracectx(Trace()):
        thread = threading.Thread(target=lambda: seen.append((current_trace(), state.frontend, state.source)))
        thread.start()
        thread.join()
    assert seen == [(None, None, None)]


def test_source_lines_are_read_when_they_are_shown() -> None:
    """One that cannot be read is shown without its text."""
    assert SourceLine(__file__, 2).text() == '"""The state of a thread: its trace, its frontend, the user\'s line."""'
    assert SourceLine("<string>", 1).text() == ""
    assert str(SourceLine("<string>", 1)) == "<string>:1"
