# SPDX-License-Identifier: Apache-2.0
"""Autotuning: a few tilings of a region's kernels are candidates of a measured choice (`thunder.toolkit.measuring`).

The default is the tiling of the rules in `tiles.py`. The user's option `measured` decides whether and when candidates
are timed. The option `triton_timed` stands for `measured="first call"`, but only for tilings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import triton

from thunder.extend import compilation
from thunder.toolkit.measuring import Candidate, Measurements

__all__ = ["OPTION", "LaunchLike", "candidates_of", "measurements", "register"]

OPTION = "triton_timed"


class LaunchLike(Protocol):
    """A kernel and its launch parameters, as far as a candidate depends on them."""

    @property
    def source(self) -> Any: ...
    @property
    def grid(self) -> tuple[int, int]: ...
    @property
    def numbers(self) -> tuple[Any, ...]: ...
    @property
    def warps(self) -> int: ...


def register(registry: Any) -> None:
    """Register the option."""
    registry.register_option(
        OPTION,
        type=bool,
        default=False,
        help="whether the first call of a fusion times a few tilings of its kernels and selects the fastest",
    )


def measurements() -> Measurements | None:
    """Return what decides the tilings of the program that is compiled; None if the rules decide."""
    if compilation().options.get(OPTION, False):
        return Measurements("first call")
    found: Measurements | None = compilation().measurements
    return found


def candidates_of(
    tilings: Sequence[Sequence[LaunchLike]], prepare: Callable[[int], Callable[[], Any]]
) -> list[Candidate]:
    """Return the candidates for the launches of each tiling. `prepare(i)` returns the function that runs the i-th."""
    found = []
    for i, launches in enumerate(tilings):
        text = repr([(k.source.text, k.grid, k.numbers, k.warps) for k in launches])
        version = f"triton {triton.__version__} {text}"
        found.append(Candidate(_name(launches[0]), _preparing(prepare, i), version))
    return found


def _name(launch: LaunchLike) -> str:
    numbers = "x".join(map(str, launch.numbers))
    return f"tile {numbers}, {launch.grid[0]}x{launch.grid[1]} programs, {launch.warps} warps"


def _preparing(prepare: Callable[[int], Callable[[], Any]], i: int) -> Callable[[], Callable[[], Any]]:
    return lambda: prepare(i)
