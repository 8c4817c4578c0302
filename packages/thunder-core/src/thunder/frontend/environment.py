# SPDX-License-Identifier: Apache-2.0
"""The environment variables of thunder: which exist, and those that `thunder.jit` itself reads.

| variable | effect |
|---|---|
| `THUNDER_DISABLE=1` | `thunder.jit` compiles nothing; calls run eagerly |
| `THUNDER_LOGS=recompiles,…` | print these logs (`frontend/logs.py`) |
| `THUNDER_TRACEBACK=full` | tracebacks keep thunder's frames (`core/tracebacks.py`) |
| `THUNDER_STRICT=1` | raise errors of thunder that eager mode does not raise (`frontend/eager_calls.py`) |
| `THUNDER_CHECK_RANKS=1` | ranks compare their collectives at first calls (`frontend/check_ranks.py`) |
| `THUNDER_VERIFY=1` or `2` | verify traces, and results of executors (`execution/verify_results.py`) |
| `THUNDER_CACHE_DIR=…` | the folder of measured choices (`extend/choice_store.py`) and programs (`saved/store.py`) |
| `THUNDER_EXECUTORS=…` | the default executors, in order (`plugins/discovery.py`) |
| `THUNDER_DISABLE_PLUGINS=…` | plugins that are not loaded (`plugins/discovery.py`) |
| `THUNDER_CACHE=0` | no program is saved or read (`frontend/saved_programs.py`) |
| `THUNDER_CACHE_KEY=…` | the key that signs saved programs, for directories of several users (`saved/store.py`) |
"""

from __future__ import annotations

import difflib
import os
import warnings

from thunder.core.environment import CACHE_VARIABLE, DISABLE_VARIABLE, EXECUTORS_VARIABLE, asks_for, names_in
from thunder.frontend.logs import enable_logs
from thunder.saved.store import KEY_VARIABLE, SWITCH_VARIABLE

__all__ = ["is_disabled", "read_environment"]

VARIABLES = (
    "THUNDER_DISABLE", "THUNDER_LOGS", "THUNDER_TRACEBACK", "THUNDER_STRICT", "THUNDER_VERIFY", "THUNDER_CHECK_RANKS",
    CACHE_VARIABLE, SWITCH_VARIABLE, KEY_VARIABLE, EXECUTORS_VARIABLE, DISABLE_VARIABLE,
)  # fmt: skip
# Variables of thunder's own tests and tools.
_OF_TESTS = ("THUNDER_INTERRUPTS", "THUNDER_PROPERTY_EXECUTORS", "THUNDER_TEST", "THUNDER_TORCH", "THUNDER_UPDATE_")

_read: list[str | None] = []  # the value of THUNDER_LOGS that is in effect


def read_environment() -> None:
    """Enable the logs of THUNDER_LOGS, and warn once about unknown variables. `thunder.jit` calls this."""
    value = os.environ.get("THUNDER_LOGS")
    if _read == [value]:
        return
    enable_logs(names_in("THUNDER_LOGS"))  # raises an error for unknown names, also at the next call
    first = not _read
    _read[:] = [value]
    if first:
        _warn_about_unknown()


def is_disabled() -> bool:
    """Check whether THUNDER_DISABLE asks for eager execution."""
    return asks_for("THUNDER_DISABLE")


def _warn_about_unknown() -> None:
    unknown = [name for name in sorted(os.environ) if name.startswith("THUNDER_") and name not in VARIABLES]
    found = [_describe(name) for name in unknown if not name.startswith(_OF_TESTS)]
    if found:
        message = f"thunder does not know the environment variable{'s' if len(found) > 1 else ''} {', '.join(found)}"
        warnings.warn(message, stacklevel=5)


def _describe(name: str) -> str:
    close = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0)
    return f"{name} (the nearest name is {close[0]})"
