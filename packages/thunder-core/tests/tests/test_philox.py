# SPDX-License-Identifier: Apache-2.0
"""Philox against the vectors that its authors publish."""

from __future__ import annotations

from thunder.tests.philox import philox


def test_known_answers() -> None:
    """All zeros, and all ones."""
    assert philox(0, (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox(-1, (-1, -1, -1, -1)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
