# SPDX-License-Identifier: Apache-2.0
"""The versions of operations: the file is true, and a change after a release needs a line in the changelog."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import operator_versions as versions

CHANGELOG = "# Changelog\n\n## 0.2.0\n\n- `torch.relu` is rounded once.\n\n## 0.1.0\n\n- `torch.silu`\n"


def test_the_file_is_true() -> None:
    """In a process of its own, because tests declare operations, too. The message says how to write the file."""
    path = {"PYTHONPATH": ":".join(map(str, filter(None, [str(Path(versions.__file__).parent), *sys.path])))}
    done = subprocess.run(
        [sys.executable, "-m", "operator_versions"], capture_output=True, text=True, check=False, env=path
    )
    assert done.returncode == 0, done.stdout + done.stderr


def entry(digest: str, since: str = "0.1.0", **more: str) -> dict[str, str]:
    return {"since": since, **more, "signature": "(a)", "digest": digest}


def now(**digests: str) -> dict[str, dict[str, str]]:
    return {name.replace("_", "."): {"signature": "(a)", "digest": digest} for name, digest in digests.items()}


def test_what_is_written() -> None:
    """New, changed, restored, unchanged and removed operations."""
    before = {
        "torch.gone": entry("1"), "torch.new": entry("1", "0.2.0"), "torch.relu": entry("1"), "torch.same": entry("1"),
        "torch.twice": entry("2", changed="0.2.0"), "torch.unreleased": entry("1", "0.2.0"),
    }  # fmt: skip
    after = versions.updated(
        before, now(torch_new="2", torch_relu="2", torch_same="1", torch_twice="3", torch_more="1"), "0.2.0"
    )
    assert after == {
        "torch.gone": entry("1", removed="0.2.0"),
        "torch.more": entry("1", "0.2.0"),
        "torch.new": entry("2", "0.2.0"),  # no version had it before
        "torch.relu": entry("2", changed="0.2.0"),
        "torch.same": entry("1"),
        "torch.twice": entry("3", changed="0.2.0"),
    }
    assert list(after["torch.relu"]) == ["since", "changed", "signature", "digest"]
    again = now(torch_new="2", torch_relu="2", torch_same="1", torch_twice="3", torch_more="1")
    assert versions.updated(after, again, "0.3.0") == after


def test_what_needs_a_line_in_the_changelog() -> None:
    """The section of the version that changed the operation must name it."""
    entries = {"torch.relu": entry("2", changed="0.2.0"), "torch.silu": entry("2", changed="0.2.0")}
    (problem,) = versions.check(entries, now(torch_relu="2", torch_silu="2"), "0.2.0", CHANGELOG)
    assert problem == "torch.silu was changed in 0.2.0, but the changelog of this version has no `torch.silu`"
    (problem,) = versions.check(
        entries, now(torch_relu="2"), "0.3.0", CHANGELOG.replace("relu`", "relu` `torch.silu`")
    )[:1]
    assert problem.startswith("torch.silu: added, removed or changed. Write it down with\n    python -m nox")
    problems = versions.check({"torch.relu": entry("1")}, now(torch_relu="2"), "0.3.0", CHANGELOG)
    assert [line.partition(":")[0] for line in problems[:1]] == ["torch.relu"]
    assert problems[1] == "torch.relu was changed in 0.3.0, but the changelog of this version has no `torch.relu`"


SOURCES = {
    "base": "def g(a):\n    return a\n\ndef f(a, b=1):\n    return g(a) + b\n",
    "same": 'def g(a):  # why\n    "Do."\n    return a\n\n\ndef f(a: int, b=1):\n    return g(a)  +  b  # so\n',
    "default": "def g(a):\n    return a\n\ndef f(a, b=2):\n    return g(a) + b\n",
    "body": "def g(a):\n    return a\n\ndef f(a, b=1):\n    return g(a) - b\n",
    "helper": "def g(a):\n    return -a\n\ndef f(a, b=1):\n    return g(a) + b\n",
}


def digest(name: str, folder: Path) -> str:
    path = folder / f"{name}.py"
    path.write_text(SOURCES[name], encoding="utf-8")
    namespace = {"__name__": "a_module"}
    exec(compile(SOURCES[name], str(path), "exec"), namespace)
    f: Any = namespace["f"]
    f.meta = f
    return versions.digest_of(f)


@pytest.mark.parametrize("name", [each for each in SOURCES if each != "base"])
def test_what_a_digest_depends_on(name: str, tmp_path: Path) -> None:
    """On the signature, the body, and functions that it calls; not on comments, docstrings, types and layout."""
    assert (digest(name, tmp_path) == digest("base", tmp_path)) is (name == "same")


def test_entries_are_sorted_lines() -> None:
    """A change of an operation is one line of the diff."""
    text = versions.FILE.read_text(encoding="utf-8")
    entries = json.loads(text)
    assert list(entries) == sorted(entries)
    assert len(text.splitlines()) == len(entries) + 2
    assert {"torch.softmax", "PrimIDs.EXP"} <= set(entries)
