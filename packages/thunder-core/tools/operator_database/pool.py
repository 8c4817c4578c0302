# SPDX-License-Identifier: Apache-2.0
"""Running operators in other processes, so that a time limit or a crash ends only one operator."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from operator_database.results import Result, examine

__all__ = ["run"]

Task = tuple[str, str]

# How many operators a process examines: what their programs hold is freed with the process.
_TASKS = 100


def run(tasks: Iterable[Task], options: dict[str, Any], *, workers: int, timeout: float) -> Iterator[Result]:
    """Yield the result of each task, a name and a dtype, as it comes; each may take `timeout` seconds."""
    pending = list(tasks)[::-1]
    running: list[_Worker] = []
    try:
        while pending or running:
            while pending and len(running) < workers:
                running.append(_Worker(options, timeout))
                running[-1].start(pending.pop())
            for worker in list(running):
                result = worker.poll(1.0 / len(running))
                if result is None:
                    continue
                yield result
                if worker.alive and pending and worker.tasks < _TASKS:
                    worker.start(pending.pop())
                else:
                    running.remove(worker)
                    worker.stop()
    finally:
        for worker in running:
            worker.stop()


class _Worker:
    """A process that examines one operator after another."""

    def __init__(self, options: dict[str, Any], timeout: float):
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, options), daemon=True)
        self.process.start()
        other.close()
        self.alive, self.timeout, self.waited = True, timeout, 0.0
        self.task: Task = ("", "")
        self.tasks = 0

    def start(self, task: Task) -> None:
        self.task, self.waited = task, 0.0
        self.tasks += 1
        self.connection.send(task)

    def poll(self, seconds: float) -> Result | None:
        """Return the result of the task, or None if there is none yet."""
        if wait([self.connection], seconds):
            try:
                return self.connection.recv()  # type: ignore[no-any-return]
            except EOFError:
                self.process.join()
                return self._end(f"the process ended with exit code {self.process.exitcode}")
        self.waited += seconds
        return self._end(f"no result after {self.timeout:g} seconds") if self.waited > self.timeout else None

    def _end(self, why: str) -> Result:
        self.stop()
        result = Result(*self.task)
        result.fail(why)
        return result

    def stop(self) -> None:
        self.alive = False
        self.connection.close()
        self.process.kill()
        self.process.join()


def _work(connection: Connection, options: dict[str, Any]) -> None:
    """Examine the operators that arrive, until the other side closes."""
    import torch

    from operator_database.calls import operators

    torch.set_num_threads(1)
    database = operators()
    while True:
        try:
            name, dtype = connection.recv()
        except EOFError:
            return
        connection.send(examine(name, database[name], dtype, **options))
