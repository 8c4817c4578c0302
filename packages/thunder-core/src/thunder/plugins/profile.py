# SPDX-License-Identifier: Apache-2.0
"""The facts about an executor that the conformance suite needs. Its plugin declares them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ConformanceProfile"]


@dataclass(frozen=True)
class ConformanceProfile:
    """The settings with which the suite tests one executor.

    - devices: the device types that the executor runs on, e.g. `("cuda",)`.
    - dtypes: the names of the dtypes to test (e.g. `"float32"`); None means every dtype of each operator.
    - tolerances: `(rtol, atol)` by dtype name, or by `"operator:dtype"` for one operator. The suite's tolerances are
      the default.
    - known_failures: the entries of known failures, or a TOML file in the plugin's wheel that contains them. The suite
      raises an error for an entry that matches nothing or that passes.
    - opinfos: a function that returns the OpInfos of the plugin's operators. Because it is a function, the profile can
      be read without the suite.
    """

    devices: Sequence[str] = ("cpu",)
    dtypes: Sequence[str] | None = None
    tolerances: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    known_failures: str | os.PathLike[str] | Sequence[Mapping[str, Any]] = ()
    opinfos: Callable[[], Iterable[Any]] | None = None

    def tolerance(self, operator: str, dtype: str) -> tuple[float, float] | None:
        """Return the `(rtol, atol)` of this profile for an operator and a dtype; None means the suite's default."""
        return self.tolerances.get(f"{operator}:{dtype}", self.tolerances.get(dtype))
