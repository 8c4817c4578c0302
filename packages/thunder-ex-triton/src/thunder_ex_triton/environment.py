# SPDX-License-Identifier: Apache-2.0
"""Environment variables of Triton that this package reads, without importing Triton."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "interpreting"]


def interpreting() -> bool:
    """Check whether kernels are interpreted. Triton reads the same environment variable when a kernel is declared."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "y", "yes")


def cache_folder() -> Path:
    """Return the folder in which Triton keeps what it has compiled."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")
    return Path(os.environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache"))
