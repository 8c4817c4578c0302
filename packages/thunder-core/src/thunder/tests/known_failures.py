# SPDX-License-Identifier: Apache-2.0
"""Known failures of an executor: a TOML file in its plugin's wheel.

    [[failure]]
    operator = "prims.acos"        # a name or a pattern (`fft.*`)
    test = "test_grad_vs_torch"    # left out: every test
    dtypes = ["float16"]           # left out: every dtype
    reason = "…"
    run = false                    # left out: true; false for a test that crashes the process
    when = { torch = "<2.12", device = "cuda", library = "triton<3.2" }

Each entry is a strict expected failure: a test that passes is a failure, and an entry that matches no test is an error.
`when` restricts an entry to versions of torch or of a library, or to a type of device. If the condition is false, the
entry is ignored.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet

__all__ = ["BadKnownFailures", "KnownFailure", "known_failures_of"]

_KEYS = {"operator", "test", "dtypes", "reason", "run", "when"}
_CONDITIONS = {"torch", "device", "library"}
_LIBRARY = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(.*)")


class BadKnownFailures(ValueError):
    """A file of known failures that cannot be parsed. The message names the entry."""


@dataclass(frozen=True)
class KnownFailure:
    """One entry: the tests and operators that fail, and the reason."""

    operator: str
    reason: str
    test: str | None = None
    dtypes: tuple[str, ...] | None = None
    run: bool = True
    origin: str = ""

    def matches(self, operator: str, test: str, dtype: str | None) -> bool:
        """Check whether the entry covers a test."""
        return (
            fnmatch.fnmatchcase(operator, self.operator)
            and (self.test is None or fnmatch.fnmatchcase(test, self.test))
            and (self.dtypes is None or dtype in self.dtypes)
        )

    def __str__(self) -> str:
        parts = [f"operator = {self.operator!r}"]
        parts += [f"test = {self.test!r}"] if self.test is not None else []
        parts += [f"dtypes = {list(self.dtypes)}"] if self.dtypes is not None else []
        return f"{', '.join(parts)} ({self.origin})"


def known_failures_of(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]], devices: Sequence[str]
) -> tuple[KnownFailure, ...]:
    """Return the entries whose conditions hold for tests on `devices`.

    Entries come from a file or are passed directly.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        entries, origin = _entries_of_file(path), path.name
    else:
        entries, origin = list(source), "the profile"
    found = []
    for i, entry in enumerate(entries, start=1):
        where = f"entry {i} of {origin}"
        _check(entry, where)
        if holds(entry.get("when", {}), devices, where):
            dtypes = entry.get("dtypes")
            found.append(
                KnownFailure(
                    operator=entry["operator"],
                    reason=entry["reason"],
                    test=entry.get("test"),
                    dtypes=None if dtypes is None else tuple(dtypes),
                    run=entry.get("run", True),
                    origin=where,
                )
            )
    return tuple(found)


def _entries_of_file(path: Path) -> list[Mapping[str, Any]]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10, in which pytest itself needs tomli
        import tomli as tomllib
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise BadKnownFailures(f"the file of known failures {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadKnownFailures(f"{path.name} is not valid TOML: {error}") from None
    unknown = set(content) - {"failure"}
    if unknown:
        raise BadKnownFailures(
            f"{path.name}: unknown key {sorted(unknown)[0]!r}; each entry must begin with [[failure]]"
        )
    return list(content.get("failure", []))


def _check(entry: Mapping[str, Any], where: str) -> None:
    unknown = set(entry) - _KEYS
    if unknown:
        raise BadKnownFailures(f"{where}: unknown key {sorted(unknown)[0]!r}; the keys are {', '.join(sorted(_KEYS))}")
    for key in ("operator", "reason"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise BadKnownFailures(f"{where} lacks `{key}`, a string")
    dtypes = entry.get("dtypes")
    if dtypes is not None and (isinstance(dtypes, str) or not dtypes):
        raise BadKnownFailures(f"{where}: dtypes must be a list of names, such as ['float16'], not {dtypes!r}")
    unknown = set(entry.get("when", {})) - _CONDITIONS
    if unknown:
        raise BadKnownFailures(
            f"{where}: unknown condition {sorted(unknown)[0]!r}; `when` supports {', '.join(sorted(_CONDITIONS))}"
        )


def holds(when: Mapping[str, Any], devices: Sequence[str], where: str) -> bool:
    """Check whether all conditions of a `when` hold for tests on `devices`."""
    for key, wanted in when.items():
        for each in (wanted,) if isinstance(wanted, str) else tuple(wanted):
            if key == "device":
                true = any(d.partition(":")[0] == each for d in devices)
            elif key == "torch":
                true = _version_is(torch.__version__, each, where)
            else:
                true = _library_is(each, where)
            if not true:
                return False
    return True


def _library_is(wanted: str, where: str) -> bool:
    found = _LIBRARY.fullmatch(wanted)
    if found is None:
        raise BadKnownFailures(
            f"{where}: library = {wanted!r} must be a name and a version range, such as 'triton<3.2'"
        )
    name, versions = found.groups()
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return _version_is(version, versions, where)


def _version_is(version: str, wanted: str, where: str) -> bool:
    try:
        return SpecifierSet(wanted).contains(version, prereleases=True)
    except InvalidSpecifier:
        raise BadKnownFailures(f"{where}: {wanted!r} must be a version range such as '<2.12' or '>=3,<4'") from None
