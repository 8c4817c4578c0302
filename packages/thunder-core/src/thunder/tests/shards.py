# SPDX-License-Identifier: Apache-2.0
"""The matrix of tests in shards: `--shard 2/8` runs the second of eight parts, and the reports of all make one table.

All tests with the same parameters (of one operator, device and dtype) are in one part, because they run the same
programs, whose kernels a process compiles once. These groups are sorted by a hash and dealt in turn: the parts differ
by at most one group, and the dtypes of a slow operator spread over all of them. Each report contains a digest of all
tests that there were to deal, so that reports of different matrices are never merged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thunder.tests.report import Run, Summary

__all__ = ["BadShards", "Shard", "digest", "merge", "read"]


class BadShards(ValueError):
    """A shard that does not exist, or reports that are not the shards of one run. The message contains the reason."""


@dataclass(frozen=True)
class Shard:
    """One part of the matrix. The first has the index 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that `I/N` names."""
        index, slash, count = text.partition("/")
        if slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count):
            return cls(int(index), int(count))
        raise BadShards(f"a shard is written I/N, with I from 1 to N (such as 1/4), but not {text!r}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def select(self, ids: Sequence[str]) -> list[bool]:
        """Return for each test whether it is in this shard.

        Which shard the first group is dealt to depends on the tests. Otherwise, if many small matrices are dealt
        (`--isolate` has one for each family), the first shard would have the most tests.
        """
        if not ids:
            return []
        groups = [_parameters(i) for i in ids]
        start = int(digest(ids), 16)
        turns = {group: turn for turn, group in enumerate(sorted(set(groups), key=lambda group: (_hash(group), group)))}
        return [(start + turns[group]) % self.count == self.index - 1 for group in groups]


def _parameters(test: str) -> str:
    """Return the parameters in a test's id, or the id if it has none."""
    return test.partition("[")[2] or test


def digest(ids: Iterable[str]) -> str:
    """Return a digest of a set of tests."""
    return _hash("\n".join(sorted(ids)))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """Return the content of a shard's report."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadShards(f"{path} is not a report of a shard (--thunder-report=NAME.json): {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("run"), dict) or not content["run"].get("shard"):
        raise BadShards(f"{path} is not a report of a shard (--thunder-report=NAME.json)")
    return content


def merge(reports: Mapping[str, dict[str, Any]]) -> tuple[Summary, Run]:
    """Return the summary of all shards of a run. `reports` has their contents by file name."""
    runs = {name: Run.from_data(content["run"]) for name, content in reports.items()}
    shards = {name: Shard.parse(run.shard or "") for name, run in runs.items()}
    _check_same("numbers of shards", {name: shard.count for name, shard in shards.items()})
    _check_same("commands", {name: run.command for name, run in runs.items()})
    _check_same("environments", {name: dict(run.environment) for name, run in runs.items()})
    _check_same("tests to deal (a shard lacks tests, or has others)", {name: run.matrix for name, run in runs.items()})
    for executor in sorted({executor for content in reports.values() for executor in content["executors"]}):
        given = {name: content["executors"].get(executor) for name, content in reports.items()}
        _check_same(f"sources of {executor}", {name: told["sources"] for name, told in given.items() if told})
    count = next(iter(shards.values())).count
    found = sorted(shard.index for shard in shards.values())
    if found != list(range(1, count + 1)):
        told = ", ".join(f"{index}/{count}" for index in found)
        raise BadShards(f"one report of each of the {count} shards is needed, but these are of {told}")
    first = next(iter(runs.values()))
    run = replace(
        first,
        shard=None,
        selected=sum(run.selected for run in runs.values()),
        finished=sum(run.finished for run in runs.values()),
        failed=tuple(sorted(test for run in runs.values() for test in run.failed)),
    )
    return Summary.merged(content["executors"] for content in reports.values()), run


def _check_same(what: str, found: Mapping[str, Any]) -> None:
    """Raise if the reports differ in something."""
    if any(value != next(iter(found.values())) for value in found.values()):
        raise BadShards(f"the reports have different {what}:" + "".join(f"\n  {k}: {v}" for k, v in found.items()))
