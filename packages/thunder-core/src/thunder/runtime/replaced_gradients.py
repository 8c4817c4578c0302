# SPDX-License-Identifier: Apache-2.0
"""The gradients that the program on this thread replaces: `.grad` of leaves, which a CUDA graph may overwrite before.

`transforms/lent_results.py` reads them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

__all__ = ["replaced"]


class _Replaced(threading.local):
    """The gradients that the program that runs on this thread replaces: their leaves, and the program's inputs."""

    leaves: Sequence[Any] = ()
    inputs: Sequence[Any] = ()


replaced = _Replaced()
