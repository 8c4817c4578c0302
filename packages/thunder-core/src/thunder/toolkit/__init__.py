# SPDX-License-Identifier: Apache-2.0
"""What executors are built, tested and timed with: the parts of thunder above `thunder.extend`, for authors of plugins.

- `thunder.toolkit.claiming`: who takes an operation;
- `thunder.toolkit.fusion`: regions of a trace for fusion executors, and random numbers inside of them;
- `thunder.toolkit.launch`: torch's allocator, streams and devices at the least cost to the host;
- `thunder.toolkit.conformance`: samples of a plugin's own operators for the conformance suite;
- `thunder.toolkit.testing`: a plugin in use, and its probe asked, without the library or the GPU that it is for;
- `thunder.toolkit.benchmarking`: clocks, contenders in turns, tables.

Importing this package imports nothing; a part is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["benchmarking", "claiming", "conformance", "fusion", "launch", "testing"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    # At run time on purpose: who uses one of them does not load the others.
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
