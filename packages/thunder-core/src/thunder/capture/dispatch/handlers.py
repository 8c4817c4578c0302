# SPDX-License-Identifier: Apache-2.0
"""All handlers of this folder: each module registers its own where it is imported (`registry.py`)."""

from __future__ import annotations

from thunder.capture.dispatch import (
    attention,
    conversions,
    data_dependent,
    factories,
    functional,
    gradient_state,
    indexing,
    metadata,
    opaque_operations,
    packed_sequences,
    reshaping,
    rnn,
    scalars,
    writing,
)

__all__ = [
    "attention",
    "conversions",
    "data_dependent",
    "factories",
    "functional",
    "gradient_state",
    "indexing",
    "metadata",
    "opaque_operations",
    "packed_sequences",
    "reshaping",
    "rnn",
    "scalars",
    "writing",
]
