# SPDX-License-Identifier: Apache-2.0
"""Tables: aligned, without trailing blanks."""

from __future__ import annotations

from thunder.core.tables import format_table


def test_columns() -> None:
    """Each column as wide as its widest cell; None is empty."""
    table = format_table(("name", "n", "why"), [("a", 10, None), ("longer", 2, "because")], indent="  ")
    assert table.splitlines() == ["  name    n   why", "  a       10", "  longer  2   because"]


def test_no_rows() -> None:
    """A header alone."""
    assert format_table(("a", "b"), []) == "a  b"
