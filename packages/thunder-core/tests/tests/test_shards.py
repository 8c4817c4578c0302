# SPDX-License-Identifier: Apache-2.0
"""Shards: together they are the whole matrix, each test once; their reports make the table of a whole run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from thunder.tests.report import Outcome, Run, Summary
from thunder.tests.shards import BadShards, Shard, digest, merge, read

IDS = [f"test_ops.py::{test}[op{i}-acme-cpu]" for test in ("test_x", "test_y", "test_z") for i in range(67)]
SOURCES = "thunder-ex-acme 1.0, sha256:" + 64 * "0"


@pytest.mark.parametrize("count", [1, 2, 3, 8, len(IDS), len(IDS) + 5])
def test_the_union_is_the_whole(count: int) -> None:
    """Each test is in exactly one shard, and the shards differ by at most one operator, of three tests."""
    selected = [Shard(index, count).select(IDS) for index in range(1, count + 1)]
    assert [sum(each) for each in zip(*selected)] == [1] * len(IDS)
    sizes = [sum(each) for each in selected]
    assert max(sizes) - min(sizes) <= 3


def test_tests_with_the_same_parameters() -> None:
    """Kernels are compiled once for all tests of an operator and dtype. Tests without parameters spread."""
    mine = [test for test, selected in zip(IDS, Shard(2, 5).select(IDS)) if selected]
    assert len({test.partition("[")[2] for test in mine}) * 3 == len(mine)
    plain = [f"test_ops.py::test_{i}" for i in range(10)]
    assert sum(Shard(1, 5).select(plain)) == 2


def test_the_order_of_collection() -> None:
    """A shard has the same tests in whatever order they were collected."""
    chosen = {test for test, mine in zip(IDS, Shard(2, 5).select(IDS)) if mine}
    backwards = IDS[::-1]
    assert {test for test, mine in zip(backwards, Shard(2, 5).select(backwards)) if mine} == chosen
    assert digest(backwards) == digest(IDS) != digest(IDS[1:])


def test_small_matrices_are_balanced() -> None:
    """Families of a few tests, dealt one by one, do not all begin with the first shard."""
    sizes = [
        sum(sum(Shard(index, 4).select([f"f{n}-{i}" for i in range(5)])) for n in range(80)) for index in (1, 2, 3, 4)
    ]
    assert sum(sizes) == 400
    assert max(sizes) - min(sizes) < 40
    assert Shard(1, 4).select([]) == []


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "-1/4", "1/0", "a/b", "1/4/2", "1 /4"])
def test_what_is_no_shard(text: str) -> None:
    """The message says how a shard is written."""
    with pytest.raises(BadShards, match="a shard is written I/N"):
        Shard.parse(text)
    assert Shard.parse("3/12") == Shard(3, 12)
    assert str(Shard(3, 12)) == "3/12"


def outcome(test: str, i: int) -> Outcome:
    kind = "failed" if (test, i) == ("test_y", 3) else "passed"
    counted = {"executor": "acme", "operator": f"op{i}", "family": f"f{i % 3}", "sources": SOURCES}
    return Outcome(kind, {**counted, "claimed": test == "test_x" and i != 5}, f"{test}[op{i}]")


OUTCOMES = [outcome(test, i) for test in ("test_x", "test_y") for i in range(7)]
WHOLE = Run("python -m thunder conformance acme", {"torch": "2.13"}, selected=14, finished=14, matrix=digest("ab"))


def reports(count: int = 3) -> dict[str, dict[str, Any]]:
    """The content of each shard's report, by file."""
    out = {}
    for index in range(1, count + 1):
        mine = OUTCOMES[index - 1 :: count]
        run = replace(WHOLE, shard=f"{index}/{count}", selected=len(mine), finished=len(mine))
        out[f"{index}.json"] = {"run": asdict(run), "executors": Summary(mine).data()}
    return json.loads(json.dumps(out))


def test_merged() -> None:
    """The tables, counts and failures of one run of all tests."""
    summary, run = merge(reports())
    whole = Summary(OUTCOMES)
    assert summary.data() == whole.data()
    assert summary.markdown() == whole.markdown()
    assert summary.failed
    assert run == WHOLE
    assert run.complete


def test_failures_beside_the_table() -> None:
    """Tests of no operator that failed, and tests that did not end, are those of all shards."""
    given = reports()
    given["2.json"]["run"]["failed"] = ["test_known_failures_match[acme]"]
    given["3.json"]["run"]["finished"] -= 2
    _, run = merge(given)
    assert not run.complete
    assert run.lines()[1:] == [
        "Incomplete: only 12 of 14 tests ended.",
        "Failed, and not in the table: test_known_failures_match[acme].",
    ]


def test_a_shard_without_an_executor() -> None:
    """A small shard of a run of several executors need not have tests of each."""
    given = reports()
    given["4.json"] = {"run": {**given["3.json"]["run"], "shard": "4/4", "selected": 0, "finished": 0}, "executors": {}}
    for i in (1, 2, 3):
        given[f"{i}.json"]["run"]["shard"] = f"{i}/4"
    assert merge(given)[0].data() == Summary(OUTCOMES).data()


def change(given: dict[str, Any], key: str, value: Any) -> None:
    given["2.json"]["run"][key] = value


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda given: given.pop("2.json"), "one report of each of the 3 shards is needed, but these are of 1/3, 3/3"),
        (lambda given: change(given, "shard", "1/3"), "these are of 1/3, 1/3, 3/3"),
        (lambda given: change(given, "shard", "2/4"), "different numbers of shards"),
        (lambda given: change(given, "matrix", digest("c")), "different tests to deal"),
        (lambda given: change(given, "command", "python -m thunder conformance other"), "different commands"),
        (lambda given: change(given, "environment", {"torch": "2.11"}), "different environments"),
        (lambda given: given["2.json"]["executors"]["acme"].update(sources=["x"]), "different sources of acme"),
    ],
)
def test_what_is_not_merged(spoil: Any, words: str) -> None:
    """Reports that are not all shards of one run of the same sources; the files are named."""
    given = reports()
    spoil(given)
    with pytest.raises(BadShards, match=words):
        merge(given)


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({"run": asdict(WHOLE), "executors": {}})])
def test_files_of_other_kinds(tmp_path: Path, text: str) -> None:
    """What is no JSON, and the report of a whole run."""
    path = tmp_path / "report.json"
    with pytest.raises(BadShards, match=r"report\.json is not a report of a shard"):
        read(path)
    path.write_text(text)
    with pytest.raises(BadShards, match=r"report\.json is not a report of a shard"):
        read(path)
