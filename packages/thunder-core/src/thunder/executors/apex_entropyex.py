# SPDX-License-Identifier: Apache-2.0
"""An import path of `apex_ex`, the executor for NVIDIA's apex, which is in the plugin thunder-ex-apex."""

from __future__ import annotations

from typing import Any

from thunder.executors.of_plugin import executor_of_plugin


def __getattr__(name: str) -> Any:
    if name == "apex_ex":
        return executor_of_plugin("apex", "thunder-ex-apex", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["apex_ex"]
