# SPDX-License-Identifier: Apache-2.0
"""The collector of garbage while a program is compiled."""

from __future__ import annotations

import gc
import weakref

from thunder.runtime.lock import collection_paused


class Node:
    """Something that can be part of a cycle."""


def test_collection_pauses_and_goes_on() -> None:
    """What was made meanwhile is old afterwards, and is collected like anything else."""
    assert gc.isenabled()
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled()
        node = Node()
        node.itself = node  # type: ignore[attr-defined]
        gone = weakref.ref(node)
        del node
    assert gc.isenabled() and gc.get_freeze_count() == 0
    gc.collect(0)
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_what_somebody_froze_stays_so() -> None:
    """Servers do so before they fork."""
    node = Node()
    gc.freeze()
    try:
        with collection_paused():
            pass
        assert not any(x is node for x in gc.get_objects())
    finally:
        gc.unfreeze()
    assert any(x is node for x in gc.get_objects())


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
