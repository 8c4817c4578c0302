# SPDX-License-Identifier: Apache-2.0
"""Tools to build, test and time executors: the API above `thunder.extend`, for authors of plugins.

- `thunder.toolkit.claiming`: which executor claims an operation;
- `thunder.toolkit.fusion`: regions of a trace for fusion executors, roundings and random numbers inside of regions;
- `thunder.toolkit.layouts`: strides of values, for passes that change the layout of values inside of a program;
- `thunder.toolkit.launch`: torch's allocator, streams and devices with minimal overhead on the host;
- `thunder.toolkit.measuring`: choices between kernels by measurement;
- `thunder.toolkit.conformance`: samples of a plugin's operators for the conformance suite;
- `thunder.toolkit.testing`: tests of a plugin and its probe without the library or the GPU that the plugin needs;
- `thunder.toolkit.benchmarking`: timers, interleaved measurements of contenders, and tables.

Importing this package imports none of these modules. Each module is imported on first access.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["benchmarking", "claiming", "conformance", "fusion", "launch", "layouts", "measuring", "testing"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    # The import is local: using one module does not load the others.
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
