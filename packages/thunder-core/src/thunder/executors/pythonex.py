# SPDX-License-Identifier: Apache-2.0
"""The python executor: runs guards and operations on numbers with Python itself."""

from __future__ import annotations

from thunder.extend import OperatorExecutor

__all__ = ["ex"]

ex = OperatorExecutor("python", version="1")
