# SPDX-License-Identifier: Apache-2.0
"""The models that need nothing but torch."""

from __future__ import annotations

from zoo import attention, cnns, generative, recurrent, tables
from zoo.entry import Entry

__all__ = ["MODELS"]

MODELS: list[Entry] = [
    *cnns.MODELS, *recurrent.MODELS, *attention.MODELS, *generative.MODELS, *tables.MODELS
]  # fmt: skip
