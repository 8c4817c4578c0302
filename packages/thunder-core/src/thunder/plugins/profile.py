# SPDX-License-Identifier: Apache-2.0
"""What the conformance suite needs to know about an executor, declared by its plugin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ConformanceProfile"]


@dataclass(frozen=True)
class ConformanceProfile:
    """How to test one executor.

    - devices: the device types that it runs on, such as `("cuda",)`.
    - dtypes: the names of the dtypes to test (`"float32"`), or None for every dtype of each operator.
    - tolerances: `(rtol, atol)` by dtype name, or by `"operator:dtype"` for one operator; the suite's elsewhere.
    - known_failures: a TOML file that ships in the plugin's wheel, or its entries; an entry that matches nothing, or
      that passes, is an error of the suite.
    - opinfos: a function that returns the OpInfos of the plugin's own operators. It is a function so that the profile
      can be read without the suite.
    """

    devices: Sequence[str] = ("cpu",)
    dtypes: Sequence[str] | None = None
    tolerances: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    known_failures: str | os.PathLike[str] | Sequence[Mapping[str, Any]] = ()
    opinfos: Callable[[], Iterable[Any]] | None = None

    def tolerance(self, operator: str, dtype: str) -> tuple[float, float] | None:
        """Return the `(rtol, atol)` of this profile for an operator and a dtype, or None for the suite's default."""
        return self.tolerances.get(f"{operator}:{dtype}", self.tolerances.get(dtype))
