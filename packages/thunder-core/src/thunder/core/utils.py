# SPDX-License-Identifier: Apache-2.0
"""The documented helpers for writing operations, re-exported from the modules that define them."""

from thunder.core.errors import check
from thunder.core.prims.metas import (
    canonicalize_dim,
    canonicalize_dims,
    check_same_device,
    check_same_dtype,
    check_same_shape,
)
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_type_promotion

__all__ = [
    "ELEMENTWISE_TYPE_PROMOTION_KIND",
    "canonicalize_dim",
    "canonicalize_dims",
    "check",
    "check_same_device",
    "check_same_dtype",
    "check_same_shape",
    "elementwise_type_promotion",
]
