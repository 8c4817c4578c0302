# SPDX-License-Identifier: Apache-2.0
"""Paths: the programs of a function that branches on values of tensors, one for each combination of answers.

A path runs until one of its decisions has another answer than in its trace. Nothing has been written by then, so the
generators' states are put back, and the call starts again: on a path with the answers found so far, or on a new path
that is traced with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.generators import set_generator, state_of_generator
from thunder.runtime.decisions import Decision, OtherPath, running_path, same_answer

__all__ = ["MAX_RANDOM_PATHS", "Path", "is_worth_it", "reason_to_give_up"]

# A function whose decisions depend on random draws has at most this many paths.
MAX_RANDOM_PATHS = 4
# Beyond this many paths, a new one must be paid for by so many hits for each path.
FREE_PATHS = 4
HITS_PER_PATH = 8
# After this many calls that no path accepted, there must be more hits than such calls.
MAX_LOST_CALLS = 16


class Path:
    """The decisions of one specialization.

    `sources` are the devices and generators from which it draws random numbers before its last decision.
    """

    def __init__(self, decisions: Sequence[Decision], sources: Sequence[Any]):
        self.decisions = tuple(decisions)
        self.hits = 0
        self.sources = sources

    def observed(self, left: OtherPath) -> list[Any]:
        """Return the answers of a call that has left this path: those up to the decision with another answer."""
        return [*[d.answer for d in self.decisions[: left.index]], left.answer]

    def agrees(self, observed: Sequence[Any]) -> bool:
        """Check whether the first decisions of this path have the answers `observed`."""
        answers = [d.answer for d in self.decisions[: len(observed)]]
        return len(answers) == len(observed) and all(map(same_answer, observed, answers))

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run`, which puts the generators' states back if the call leaves this path."""
        sources = self.sources

        def run_path(*inputs: Any) -> Any:
            states = [state_of_generator(*source) for source in sources]
            try:
                with running_path(self.decisions):
                    result = run(*inputs)
            except OtherPath:
                for state, source in zip(states, sources):
                    set_generator(state, *source)
                raise
            self.hits += 1
            return result

        return run_path

    def __str__(self) -> str:
        lines = [f"path with {self.hits} {'call' if self.hits == 1 else 'calls'}"]
        return "\n".join([*lines, *(f"  {decision}" for decision in self.decisions)])


def is_worth_it(paths: Sequence[Path]) -> bool:
    """Check whether a function with these paths is compiled for another path."""
    return len(paths) < FREE_PATHS or sum(path.hits for path in paths) >= HITS_PER_PATH * len(paths)


def reason_to_give_up(paths: Sequence[Path], lost_calls: int) -> str | None:
    """Return why a function with these paths is not compiled as a whole any more, or None.

    `lost_calls` is the number of calls that no path accepted.
    """
    random = next((d for path in paths for d in path.decisions if d.random), None)
    if random is not None and len(paths) >= MAX_RANDOM_PATHS:
        return f"it branches on random draws, and {len(paths)} paths are compiled{_at(random)}"
    if lost_calls >= MAX_LOST_CALLS and lost_calls > sum(path.hits for path in paths):
        last = paths[0].decisions[-1]
        compiled = f"{len(paths)} compiled paths are" if len(paths) > 1 else "compiled path is"
        return f"it branches on values of tensors, and its {compiled} rarely repeated{_at(last)}"
    return None


def _at(decision: Decision) -> str:
    return "" if decision.source is None else f" (at {decision.source})"
