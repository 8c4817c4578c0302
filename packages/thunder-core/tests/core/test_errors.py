# SPDX-License-Identifier: Apache-2.0
"""Errors: one family, RuntimeErrors as torch's are, messages made only when needed."""

from __future__ import annotations

import pytest

from thunder.core import errors


def test_thunders_own_errors_are_one_family() -> None:
    """They can be caught together, and as torch's RuntimeError."""
    for name in errors.__all__:
        cls = getattr(errors, name)
        if isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, Warning):
            assert issubclass(cls, errors.ThunderError)
            assert issubclass(cls, RuntimeError)


def test_check_makes_its_message_late() -> None:
    """A check that holds costs no formatting."""

    def never() -> str:
        raise AssertionError("the message was made")

    errors.check(True, never)
    with pytest.raises(RuntimeError, match=r"^because$"):
        errors.check(0, lambda: "because")
    with pytest.raises(IndexError, match=r"^far$"):
        errors.check(None, lambda: "far", IndexError)
