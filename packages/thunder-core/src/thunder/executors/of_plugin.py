# SPDX-License-Identifier: Apache-2.0
"""Support for modules that exist only as an old import path of an executor that is now in a plugin."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from thunder import plugins
from thunder.core.errors import PluginLoadError
from thunder.extend import Executor, get_executor

__all__ = ["attribute_of_plugin", "executor_of_plugin"]


def executor_of_plugin(executor: str, distribution: str, path: str) -> Executor:
    """Return the executor of an installed plugin.

    If it is unusable, raise an ImportError for `path` with the reason.
    """
    try:
        return get_executor(executor)
    except (PluginLoadError, ValueError) as error:
        raise ImportError(
            f"{path} re-exports the executor {executor!r}: {_reason(distribution, error)}", name=path
        ) from None


def attribute_of_plugin(
    name: str, executor: str, distribution: str, path: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of the module `path`. Its only attribute `name` is a plugin's executor."""

    def get(asked: str) -> Any:
        if asked == name:
            return executor_of_plugin(executor, distribution, path)
        raise AttributeError(f"module {path!r} has no attribute {asked!r}")

    return get, lambda: [name]


def _reason(distribution: str, error: Exception) -> str:
    installed = [record for record in plugins.records() if _normal(record.distribution) == distribution]
    if not installed:
        return f"its plugin is not installed: pip install {distribution}"
    unused = [record for record in installed if not record.ready]
    return str(unused[0].load_error() if unused else error)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
