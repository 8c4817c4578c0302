# SPDX-License-Identifier: Apache-2.0
"""The distinction between thunder's own files and other files, by folder."""

from __future__ import annotations

import os

__all__ = ["OWN_FOLDER", "is_ours"]

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def is_ours(filename: str) -> bool:
    """Check whether a file is part of thunder."""
    return filename.startswith(OWN_FOLDER)
