# SPDX-License-Identifier: Apache-2.0
"""The store among many processes: no file is torn, and pruning takes nothing away from under a reader but a miss."""

from __future__ import annotations

import os
from pathlib import Path

from thunder.saved.store import Store
from thunder.saved.verify import Refused

PROCESSES, WRITES = 64, 12


def _work(directory: str, number: int) -> None:
    """Write entries that other processes write, too, and read all that there are."""
    saved = Store(directory, max_bytes=60_000)
    for i in range(WRITES):
        key = f"{i % 3:040d}"
        saved.write(key, {"kind": "program", "text": f"{(i + number) % 16:04d}" * 500})
        for name in saved.names(key):
            try:
                content = saved.read(key, name)
            except Refused as error:
                assert "No such file" in str(error), error  # it was pruned meanwhile
                continue
            assert content["text"] == content["text"][:4] * 500
            saved.used(key, name)


def test_many_processes(tmp_path: Path) -> None:
    """64 processes write, read and prune one directory at once."""
    children = []
    for number in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _work(str(tmp_path / "cache"), number)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * PROCESSES
    saved = Store(str(tmp_path / "cache"))
    files = saved.files()
    assert files and not [file for file in files if file.name.startswith(".")]
    for file in files:
        saved.read(file.key, file.name)


def test_equal_contents_are_one_file(tmp_path: Path) -> None:
    """Names are hashes of contents and keys."""
    saved = Store(str(tmp_path / "cache"))
    assert saved.write("a" * 40, {"x": 1}) == saved.write("a" * 40, {"x": 1}) != saved.write("b" * 40, {"x": 1})
    assert len(saved.files()) == 2
    assert oct(os.stat(saved.directory).st_mode)[-3:] == "700"
