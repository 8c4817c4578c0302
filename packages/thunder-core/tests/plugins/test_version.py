# SPDX-License-Identifier: Apache-2.0
"""Version ranges: every answer is that of `packaging`, which comes with pytest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version as Reference

from thunder.plugins.version import InvalidRequirement, Version, normalize_name, requirement_specifiers, satisfies

VERSIONS = [
    "0.1", "0.1.0", "0.1.0.0", "0.1.1", "0.1.dev1", "0.1a1", "0.1a1.dev2", "0.1b2", "0.1rc1", "0.1rc1.post3",
    "0.1.post1", "0.1.post1.dev2", "0.1-2", "0.1+cpu", "0.1+cu.12", "0.1+cu.9", "0.1.post1+cpu", "0.2", "0.2.dev0",
    "0.2a0", "0.10", "1.0", "1!0.1", "v1.0", "1.0-ALPHA_3", "1.0c2", "1.0preview3", "1.0rev4", "2.13.0+cpu",
]  # fmt: skip

SPECIFIERS = [
    "", ">=0.1", ">=0.1,<0.3", "<0.2", "<0.2.dev1", "<=0.1", ">0.1", "==0.1", "==0.1.*", "!=0.1.*",
    "!=0.1", "==0.1+cpu", "!=0.1+cpu", "~=0.1", "~=0.1.0", "~=0.1.post1", "~=0.1a1", "===0.1", ">= 0.1 , < 1",
    "==1!0.*", "<1!0", ">=0.1rc1", "<0.1rc1", "<=0.1.post1", ">=2.11",
]  # fmt: skip


@pytest.mark.parametrize("specifier", SPECIFIERS)
def test_ranges(specifier: str) -> None:
    """Each version against each range."""
    reference = SpecifierSet(specifier)
    for version in VERSIONS:
        assert satisfies(version, specifier) is reference.contains(version, prereleases=True), (version, specifier)


def test_order() -> None:
    """Sorted as packaging sorts, and equal where it says equal."""
    keys = [Version.parse(text).key for text in VERSIONS]
    references = [Reference(text) for text in VERSIONS]
    for key, reference in zip(keys, references):
        assert [key < other for other in keys] == [reference < other for other in references]
        assert [key == other for other in keys] == [reference == other for other in references]


number = st.integers(0, 3).map(str)
release = st.lists(number, min_size=1, max_size=3).map(".".join)
suffix = st.sampled_from(["", "a1", "b0", "rc2", ".post1", ".dev0", "a1.dev1", ".post0.dev1"])
local = st.sampled_from(["", "", "+cpu", "+cu.1", "+1"])


@settings(max_examples=400, deadline=None)
@given(release, suffix, local, st.sampled_from([">=", "<=", "<", ">", "==", "!=", "~="]), release, suffix)
def test_any_range(first: str, first_suffix: str, build: str, operator: str, second: str, second_suffix: str) -> None:
    """Random versions and ranges."""
    if operator in "<>":
        second_suffix = ""  # releases of packaging differ on the others; see below
    version, specifier = first + first_suffix + build, operator + second + second_suffix
    try:
        expected = SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidSpecifier:
        with pytest.raises(InvalidRequirement):
            satisfies(version, specifier)
    else:
        assert satisfies(version, specifier) is expected


@pytest.mark.parametrize(
    ("version", "specifier", "holds"),
    [
        ("0.1", ">0.1rc1", True),
        ("0.1.post1", ">0.1rc1", True),
        ("0.1+cpu", ">0.1rc1", True),
        ("0.1rc1.post3", ">0.1rc1", False),
        ("0.1rc1+cpu", ">0.1rc1", False),
        ("0.1.post2", ">0.1.post1", True),
        ("0.1.post1+cpu", ">0.1.post1", False),
        ("0.1.post1.dev1", ">0.1", False),
        ("0.1a1", ">0.1.dev1", True),
        ("0.1a1", "<0.1.post1", True),
        ("0.1.post1.dev1", "<0.1.post1", False),
        ("0.1a1.post1", "<0.1", False),
        ("0.1.dev1", "<0.1rc1", True),
    ],
)
def test_strictly_later_and_earlier(version: str, specifier: str, holds: bool) -> None:
    """`>` leaves out repackagings and local builds, `<` previews, of the very version they name."""
    assert satisfies(version, specifier) is holds


@pytest.mark.parametrize(
    ("version", "specifiers", "message"),
    [
        ("0.1.x", "", "'0.1.x' is not a version"),
        ("0.1", ">>0.1", "'>>0.1' is not a version range"),
        ("0.1", "0.1", "'0.1' is not a version range"),
        ("0.1", ">=0.1 <0.3", "'>=0.1 <0.3' is not a version range"),
        ("0.1", "~=1", "'~=1' needs a version of at least two numbers"),
        ("0.1", ">=one", "'one' is not a version"),
    ],
)
def test_what_cannot_be_read(version: str, specifiers: str, message: str) -> None:
    """Nonsense is an error that quotes it, never a range that holds."""
    with pytest.raises(InvalidRequirement) as caught:
        satisfies(version, specifiers)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("requirement", "ranges"),
    [
        ("thunder-core", [""]),
        ("thunder-core>=0.1,<0.3", [">=0.1,<0.3"]),
        ("Thunder_Core >= 0.1", [">= 0.1"]),
        ("thunder.core (>=0.1,<0.3)", [">=0.1,<0.3"]),
        ("thunder-core[tests]>=0.1", [">=0.1"]),
        ("thunder-core[tests,docs] (==0.1.*)", ["==0.1.*"]),
        ('thunder-core[tests]>=9; extra == "tests"', []),
        ('thunder-core<9; python_version < "3.11"', []),
        ("thunder-core @ file:///wheels/thunder_core.whl", []),
        ("thunder-core-extras>=9", []),
        ("torch>=2.11", []),
        ("???", []),
    ],
)
def test_requirements(requirement: str, ranges: list[str]) -> None:
    """The forms in which a wheel's metadata can say what it needs of core."""
    assert requirement_specifiers(["numpy", requirement], "thunder-core") == ranges


def test_no_requirements() -> None:
    """Metadata without a single requirement reads as None."""
    assert requirement_specifiers(None, "thunder-core") == []


def test_names() -> None:
    """Distributions are compared as installers compare them."""
    assert normalize_name("Thunder_Ex..Acme-2") == "thunder-ex-acme-2"
