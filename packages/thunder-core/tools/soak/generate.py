# SPDX-License-Identifier: Apache-2.0
"""Programs to judge: drawn at random, or each feature with each of its changes, wrappers and entries."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from soak.feature import Feature
from soak.program import Program, Use
from soak.wrappers import OTHER_THREADS, WRAPPERS

CACHES = ("constant values", "symbolic values")
# Calls with other inputs are rarer than repeated calls.
INPUTS = (0, 0, 0, 0, 0, 0, 1, 2, 3)


def wrappers_of(feature: Feature, entry: str) -> list[str]:
    """Return the wrappers that suit.

    What reads the program's own input stands in the program's body, and what reads the current thread stands in none
    that starts another: the name of such a thread is another one in each call.
    """
    of_input = re.search(r"\bx\b", feature.read) is not None
    if of_input and entry in ("function", "closure"):
        return [name for name, (definitions, _) in WRAPPERS.items() if not definitions]
    if "current_thread" in feature.read:
        return [name for name in WRAPPERS if name not in OTHER_THREADS]
    return list(WRAPPERS)


def random_program(features: Sequence[Feature], seed: int, index: int) -> Program:
    """Return the program with this number; the same for the same arguments."""
    draw = random.Random(f"{seed}:{index}")
    entry = draw.choice(("function", "function", "closure", "module", "method", "argument"))
    suitable = [f for f in features if entry in f.entries]
    chosen = draw.sample(suitable, min(len(suitable), draw.choice((1, 1, 2, 2, 3, 4))))
    uses = []
    for feature in chosen:
        wrapper = "plain" if draw.random() < 0.3 else draw.choice(wrappers_of(feature, entry))
        write = draw.randrange(len(feature.write)) if feature.write and draw.random() < 0.35 else -1
        uses.append(Use(feature, wrapper, write))
    cache = draw.choice((CACHES[0], CACHES[0], CACHES[1]))
    changes = draw.random() >= 1 / 3
    return Program(tuple(uses), _random_steps(draw, chosen, changes), entry, cache, draw.random() < 0.5)


def _random_steps(draw: random.Random, features: Sequence[Feature], changes: bool) -> tuple[tuple[Any, ...], ...]:
    steps: list[tuple[Any, ...]] = []
    which = draw.choice(INPUTS)
    for _ in range(draw.randint(3, 8)):
        steps += [("call", which)] * draw.choice((1, 2, 2))
        for _ in range(draw.choice((0, 1, 1, 2)) if changes else 0):
            number = draw.randrange(len(features))
            kind = "keep" if features[number].keep and draw.random() < 0.2 else "mutate"
            if statements := getattr(features[number], kind):
                steps.append((kind, number, draw.randrange(len(statements))))
        if draw.random() < 0.15:
            which = draw.choice(INPUTS)
    return (*steps, ("call", which))


def enumerated_programs(features: Sequence[Feature]) -> Iterator[Program]:
    """Yield each feature with each change in each entry and wrapper, each of its writes, and each with symbols."""
    for feature in features:
        changes = [("mutate", 0, i) for i in range(len(feature.mutate))]
        changes += [("keep", 0, i) for i in range(len(feature.keep))]
        for i, change in enumerate(changes or [None]):
            for entry in feature.entries:
                yield Program((Use(feature),), steps_with(change), entry)
            main = feature.entries[0]
            yield Program((Use(feature),), steps_with(change), main, CACHES[1])
            for wrapper in wrappers_of(feature, main):
                if wrapper != "plain" and (i == 0 or wrapper in ("helper", "generator", "class body", "thread")):
                    yield Program((Use(feature, wrapper),), steps_with(change), main)
        for write in range(len(feature.write)):
            for entry in feature.entries:
                for cache in CACHES:
                    yield Program((Use(feature, write=write),), steps_with(None), entry, cache)
                    for change in changes[:2]:
                        yield Program((Use(feature, write=write),), steps_with(change), entry, cache)


def steps_with(change: tuple[Any, ...] | None) -> tuple[tuple[Any, ...], ...]:
    """Return calls, twice each, with the change in between."""
    call = ("call", 0)
    if change is None:
        return (call,) * 4
    return (call, call, change, call, call, change, call, change, call, call)
