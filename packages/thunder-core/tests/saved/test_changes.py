# SPDX-License-Identifier: Apache-2.0
"""Small programs of which one thing changes between processes: no process computes anything else than eager mode."""

from __future__ import annotations

from saved_changes.__main__ import check
from saved_changes.change import changes

# The rest runs in `nox -s changes`: each program takes half a second.
EVERY = 25


def test_changes() -> None:
    """A part of all changes, in three processes."""
    assert check(changes()[::EVERY]) == []


def test_changes_are_found() -> None:
    """The text files are read: names are unique, and the versions of most changes differ."""
    found = changes()
    assert len({change.name for change in found}) == len(found) > 500
    assert all("$1" not in source for change in found for source in change.sources)
    assert sum(c.sources[0] == c.sources[1] and c.files[0] == c.files[1] for c in found) < len(found) / 20
