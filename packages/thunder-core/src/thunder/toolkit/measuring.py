# SPDX-License-Identifier: Apache-2.0
"""Choices by measurement: time several ways to compute a result once per shape class and machine, and use the fastest.

- `measured_choice(operation, shape_class, candidates, device)` returns the name of the `Candidate` to use;
- `shape_class_of` and `size_class` group calls for which the same candidate is the fastest;
- `example_tensor(like)` creates an input for candidates;
- `Measurements("first call")` measures at once, for an option of a plugin. Usually, the user's option `measured`
  decides.

Executors that compete for an operation need none of this: `register_implementation(..., measured=True)`.
"""

from thunder.extend.measuring import (
    Candidate,
    MeasuredChoice,
    Measurements,
    example_tensor,
    measured_choice,
    shape_class_of,
    size_class,
)

__all__ = [
    "Candidate",
    "MeasuredChoice",
    "Measurements",
    "example_tensor",
    "measured_choice",
    "shape_class_of",
    "size_class",
]
