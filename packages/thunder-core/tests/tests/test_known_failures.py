# SPDX-License-Identifier: Apache-2.0
"""Files of known failures: what they may say, when an entry holds, and what it speaks of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from thunder.tests.known_failures import BadKnownFailures, known_failures_of

TEXT = """
[[failure]]
operator = "prims.acos"
test = "test_grad_vs_torch"
dtypes = ["float16"]
reason = "loses precision near one"

[[failure]]
operator = "fft.*"
reason = "crashes"
run = false
when = { device = "cuda" }
"""


def test_a_file(tmp_path: Path) -> None:
    """Entries in order, without those whose condition does not hold."""
    path = tmp_path / "known.toml"
    path.write_text(TEXT)
    (first,) = known_failures_of(path, ["cpu"])
    assert (first.operator, first.test, first.dtypes, first.run) == (
        "prims.acos",
        "test_grad_vs_torch",
        ("float16",),
        True,
    )
    assert str(first) == (
        "operator = 'prims.acos', test = 'test_grad_vs_torch', dtypes = ['float16'] (entry 1 of known.toml)"
    )
    _, second = known_failures_of(str(path), ["cpu", "cuda:0"])
    assert (second.operator, second.test, second.run) == ("fft.*", None, False)
    assert known_failures_of((), ["cpu"]) == ()


def test_what_an_entry_speaks_of() -> None:
    """Operators and tests by name or pattern, dtypes by name; what is left out restricts nothing."""
    (exact,) = known_failures_of([{"operator": "acos", "dtypes": ["float16"], "reason": "r"}], ["cpu"])
    assert exact.matches("acos", "test_errors", "float16")
    assert not exact.matches("acosh", "test_errors", "float16")
    assert not exact.matches("acos", "test_errors", "float32")
    assert not exact.matches("acos", "test_errors", None)
    (wide,) = known_failures_of([{"operator": "fft*", "test": "test_*grad*", "reason": "r"}], ["cpu"])
    assert wide.matches("fft_irfft", "test_grad_vs_torch", "float64")
    assert not wide.matches("fft_irfft", "test_claimed", None)


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({"device": "cpu"}, True),
        ({"device": "cuda"}, False),
        ({"device": ["cpu"]}, True),
        ({"torch": ">=2.0"}, True),
        ({"torch": "<2.0"}, False),
        ({"torch": f"=={torch.__version__}"}, True),
        ({"library": "pytest>=8"}, True),
        ({"library": "pytest<8"}, False),
        ({"library": "no-such-library<3"}, False),
        ({"torch": ">=2.0", "device": "cuda"}, False),
        ({"torch": ">=2.0", "library": ["pytest>=8", "pluggy>=1"]}, True),
    ],
    ids=str,
)
def test_when(when: dict[str, Any], holds: bool) -> None:
    """Every condition has to hold; a library that is not there satisfies none."""
    found = known_failures_of([{"operator": "add", "reason": "r", "when": when}], ["cpu"])
    assert bool(found) is holds


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"reason": "r"}, "entry 1 of the profile lacks `operator`"),
        ({"operator": "add"}, "lacks `reason`"),
        ({"operator": "add", "reason": " "}, "lacks `reason`"),
        ({"operator": "add", "reason": "r", "dtype": "float16"}, "unknown key 'dtype'; the keys are dtypes, operator"),
        ({"operator": "add", "reason": "r", "dtypes": "float16"}, "dtypes must be a list of names"),
        (
            {"operator": "add", "reason": "r", "when": {"cuda": "12"}},
            "unknown condition 'cuda'; `when` supports ",
        ),
        ({"operator": "add", "reason": "r", "when": {"torch": "2.12"}}, "'2.12' must be a version range"),
        ({"operator": "add", "reason": "r", "when": {"library": "<3"}}, "must be a name and a version range"),
    ],
    ids=str,
)
def test_entries_that_say_nonsense(entry: dict[str, Any], message: str) -> None:
    """Are refused, with their number."""
    with pytest.raises(BadKnownFailures, match=message):
        known_failures_of([entry], ["cpu"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, no TOML, another table."""
    with pytest.raises(BadKnownFailures, match="cannot be read"):
        known_failures_of(tmp_path / "none.toml", ["cpu"])
    path = tmp_path / "known.toml"
    path.write_text("[[failure]\n")
    with pytest.raises(BadKnownFailures, match="is not valid TOML"):
        known_failures_of(path, ["cpu"])
    path.write_text("[[failures]]\noperator = 'add'\n")
    with pytest.raises(BadKnownFailures, match=r"unknown key 'failures'; each entry must begin with \[\[failure\]\]"):
        known_failures_of(path, ["cpu"])
