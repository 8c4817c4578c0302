# SPDX-License-Identifier: Apache-2.0
"""Worker processes: programs go out, verdicts come back; a worker that hangs or dies is a verdict, too."""

from __future__ import annotations

import json
import os
import queue
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from soak.program import Program
from soak.run import Verdict

TIMEOUT = 60.0
START = 300.0
PROGRAMS_PER_PROCESS = 1000
_TOOLS = str(Path(__file__).resolve().parents[1])


class Worker:
    """One process, started when it is needed and again when it hung, died, or judged so many programs.

    `sources` is a folder with another copy of thunder's sources, which the process judges instead.
    """

    def __init__(self, timeout: float = TIMEOUT, sources: Path | None = None) -> None:
        self.timeout = timeout
        self.first = [_TOOLS] if sources is None else [_TOOLS, str(sources)]
        self.process: subprocess.Popen[str] | None = None
        self.judged = 0
        self.errors: Any = None
        self.folder = tempfile.TemporaryDirectory()  # the working directory: nothing in it shadows a module

    def judge(self, program: Program) -> Verdict:
        """Return the verdict on the program."""
        if self.process is None:
            self._start()
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(program.to_json()) + "\n")
            process.stdin.flush()
            if not self._answers(self.timeout):
                self.close()
                return Verdict("hang", thunder=f"no answer after {self.timeout:.0f} s", detail=self._said())
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = process.wait()
            self.close()
            return Verdict("crash", thunder=f"the process ended with {code}", detail=self._said())
        self.judged += 1
        if self.judged >= PROGRAMS_PER_PROCESS:
            self.close()
        return Verdict(**json.loads(line))

    def _start(self) -> None:
        self.judged = 0
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- of the process, which lives on
        path = os.pathsep.join([*self.first, *(p for p in sys.path if p)])
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "soak.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=self.folder.name,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )

        assert self.process.stdout is not None
        if not self._answers(START) or self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"a worker did not start:\n{self._said()}")

    def _answers(self, timeout: float) -> bool:
        """Wait for a line, and return whether it came."""
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return bool(selector.select(timeout))

    def _said(self) -> str:
        """Return the last of what the process wrote to stderr, or the innermost frames where it crashed."""
        self.errors.seek(0)
        text = str(self.errors.read())
        crash = text.find("Fatal Python error")
        return text[-2000:] if crash < 0 else text[crash : crash + 2000]

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def judge_all(programs: Iterable[Program], workers: int) -> Iterator[tuple[Program, Verdict]]:
    """Judge the programs on so many processes, and yield verdicts as they come."""
    pending: queue.Queue[Program | None] = queue.Queue(workers * 2)
    done: queue.Queue[tuple[Program, Verdict] | BaseException | None] = queue.Queue()
    stop = threading.Event()

    def feed() -> None:
        try:
            for program in programs:
                if stop.is_set():
                    break
                pending.put(program)
        except BaseException as error:
            done.put(error)
        for _ in range(workers):
            pending.put(None)

    def work() -> None:
        worker = Worker()
        try:
            while (program := pending.get()) is not None:
                if not stop.is_set():
                    done.put((program, worker.judge(program)))
        except BaseException as error:
            done.put(error)
        finally:
            worker.close()
            done.put(None)

    threads = [threading.Thread(target=target, daemon=True) for target in [feed, *[work] * workers]]
    for thread in threads:
        thread.start()
    running = workers
    try:
        while running:
            item = done.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        stop.set()
