# SPDX-License-Identifier: Apache-2.0
"""Check whether a version of thunder-core satisfies the requirement in a plugin's metadata.

The check runs before a plugin is imported, and reads only its `Requires-Dist` lines. It follows the version and
specifier rules of Python packaging (PEP 440 and the name part of PEP 508). `packaging` is not a dependency, because
core has few dependencies and this would be its only use. The tests compare every result with `packaging`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["InvalidRequirement", "Version", "normalize_name", "requirement_specifiers", "satisfies"]


class InvalidRequirement(ValueError):
    """A version or version specifier that cannot be parsed."""


_VERSION = re.compile(
    r"""
    v?
    (?: (?P<epoch> \d+ ) ! )?
    (?P<release> \d+ (?: \. \d+ )* )
    (?: [-_.]? (?P<pre> alpha | beta | preview | pre | rc | a | b | c ) [-_.]? (?P<pre_n> \d* ) )?
    (?: - (?P<post_short> \d+ ) | [-_.]? (?P<post> post | rev | r ) [-_.]? (?P<post_n> \d* ) )?
    (?: [-_.]? (?P<dev> dev ) [-_.]? (?P<dev_n> \d* ) )?
    (?: \+ (?P<local> [a-z0-9]+ (?: [-_.] [a-z0-9]+ )* ) )?
    """,
    re.VERBOSE | re.IGNORECASE,
)

_PRE_ORDER = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}

_CLAUSE = re.compile(r"\s*(===|==|!=|~=|<=|>=|<|>)\s*([^\s<>=~]+)\s*")

_REQUIREMENT = re.compile(
    r"""
    \s* (?P<name> [a-z0-9] (?: [a-z0-9._-]* [a-z0-9] )? )
    \s* (?: \[ [^\]]* \] )?
    \s* (?: @ \s* (?P<url> [^\s;]+ ) | \( (?P<in_parentheses> [^)]* ) \) | (?P<range> [^;]* ) )
    \s* (?: ; (?P<marker> .* ) )?
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Version:
    """A parsed version. `key` sorts versions in the same order as installers do."""

    text: str
    epoch: int
    release: tuple[int, ...]
    pre: tuple[int, int] | None
    post: int | None
    dev: int | None
    local: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> Version:
        """Parse `text`. Raise InvalidRequirement if it is not a version."""
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise InvalidRequirement(f"{text!r} is not a version")
        part = match.groupdict()
        post = None
        if part["post_short"] is not None:
            post = int(part["post_short"])
        elif part["post"] is not None:
            post = int(part["post_n"] or 0)
        local = re.split(r"[-_.]", part["local"].lower()) if part["local"] else []
        return cls(
            text=text.strip(),
            epoch=int(part["epoch"] or 0),
            release=tuple(int(number) for number in part["release"].split(".")),
            pre=(_PRE_ORDER[part["pre"].lower()], int(part["pre_n"] or 0)) if part["pre"] else None,
            post=post,
            dev=int(part["dev_n"] or 0) if part["dev"] else None,
            # Numbers sort after words, and a longer local version sorts after its prefix.
            local=tuple((1, int(word)) if word.isdigit() else (0, word) for word in local),
        )

    @property
    def is_prerelease(self) -> bool:
        return self.pre is not None or self.dev is not None

    @property
    def base(self) -> tuple[int, tuple[int, ...]]:
        """The epoch and the release without trailing zeros: 1.0 and 1.0.0 are the same version."""
        release = self.release
        while len(release) > 1 and release[-1] == 0:
            release = release[:-1]
        return self.epoch, release

    @property
    def public_key(self) -> tuple[Any, ...]:
        """The sort key without the local part, e.g. `2.1.0` for `2.1.0+cu128`."""
        if self.pre is not None:
            pre: tuple[float, int] = self.pre
        elif self.dev is not None and self.post is None:
            pre = (-1, 0)  # 1.0.dev1 comes before 1.0a1
        else:
            pre = (math.inf, 0)
        post = -1 if self.post is None else self.post
        dev = math.inf if self.dev is None else self.dev
        return (*self.base, pre, post, dev)

    @property
    def key(self) -> tuple[Any, ...]:
        return (*self.public_key, self.local)


def normalize_name(name: str) -> str:
    """Return the normalized name of a distribution, e.g. `thunder-ex-acme` for `Thunder_Ex.Acme`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def satisfies(version: str, specifiers: str) -> bool:
    """Check whether `version` is in a range such as `>=0.1,<0.3`. Pre-releases count like other versions."""
    candidate = Version.parse(version)
    return all(_clause_holds(candidate, clause) for clause in specifiers.split(",") if clause.strip())


def _clause_holds(candidate: Version, clause: str) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise InvalidRequirement(f"{clause.strip()!r} is not a version range")
    operator, text = match.groups()
    if operator == "===":
        return candidate.text.lower() == text.lower()
    if operator in ("==", "!="):
        return _equal(candidate, text) is (operator == "==")
    wanted = Version.parse(text)
    if operator == ">=":
        return candidate.public_key >= wanted.public_key
    if operator == "<=":
        return candidate.public_key <= wanted.public_key
    if operator == "<":
        return _less(candidate, wanted)
    if operator == ">":
        return _greater(candidate, wanted)
    if len(wanted.release) < 2:
        raise InvalidRequirement(f"'~={text}' needs a version of at least two numbers")
    return candidate.public_key >= wanted.public_key and _has_prefix(candidate, wanted.epoch, wanted.release[:-1])


def _equal(candidate: Version, text: str) -> bool:
    if text.endswith(".*"):
        wanted = Version.parse(text[:-2])
        return _has_prefix(candidate, wanted.epoch, wanted.release)
    wanted = Version.parse(text)
    # `==1.0` also matches 1.0+local. `==1.0+local` matches nothing else.
    return candidate.key == wanted.key if wanted.local else candidate.public_key == wanted.public_key


def _less(candidate: Version, wanted: Version) -> bool:
    if candidate.key >= wanted.key:
        return False
    if wanted.is_prerelease or not candidate.is_prerelease:
        return True
    # `<0.3` must not match 0.3.dev1, a preview of the excluded version.
    post = None if wanted.post is None else candidate.post
    return replace(candidate, pre=None, post=post, dev=None, local=()).key != wanted.key


def _greater(candidate: Version, wanted: Version) -> bool:
    if candidate.key <= wanted.key:
        return False
    # `>1.0` matches later versions. It does not match a post-release (1.0.post1) or local build (1.0+cpu) of 1.0.
    repackaged = candidate.post is not None and wanted.post is None
    original = replace(candidate, post=None, dev=None, local=()) if repackaged else replace(candidate, local=())
    return original.key != wanted.key


def _has_prefix(candidate: Version, epoch: int, prefix: tuple[int, ...]) -> bool:
    release = candidate.release + (0,) * (len(prefix) - len(candidate.release))
    return candidate.epoch == epoch and release[: len(prefix)] == prefix


def requirement_specifiers(requires: Iterable[str] | None, distribution: str) -> list[str]:
    """Return the specifiers that a distribution's requirements contain for `distribution`.

    Requirements with an environment marker are skipped. Requirements of an extra are optional. The installer, which
    implements the marker language, has evaluated the others. A requirement by URL has no specifier.
    """
    found = []
    for requirement in requires or ():
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None or normalize_name(match["name"]) != normalize_name(distribution):
            continue
        if match["marker"] is None and match["url"] is None:
            found.append((match["in_parentheses"] or match["range"] or "").strip())
    return found
