# SPDX-License-Identifier: Apache-2.0
"""An import path of `triton_ex`, Triton's cross-entropy executor, which is in the plugin thunder-ex-triton."""

from __future__ import annotations

from typing import Any

from thunder.executors.of_plugin import executor_of_plugin


def __getattr__(name: str) -> Any:
    if name == "triton_ex":
        return executor_of_plugin("triton_crossentropy", "thunder-ex-triton", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["triton_ex"]
