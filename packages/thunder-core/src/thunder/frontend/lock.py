# SPDX-License-Identifier: Apache-2.0
"""The lock that lets one thread trace at a time."""

from __future__ import annotations

import threading

__all__ = ["tracing_lock"]

tracing_lock = threading.RLock()
