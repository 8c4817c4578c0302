# SPDX-License-Identifier: Apache-2.0
"""Where Triton's kernels can run: on an NVIDIA GPU, or on CPU tensors with Triton's interpreter (for tests).

Nothing here imports Triton or torch, so that the probe can ask.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from thunder.plugins import major_and_minor

if TYPE_CHECKING:
    from thunder.plugins import Env

__all__ = ["interpreting", "unusable_device", "why_not"]

OLDEST_TRITON = (3, 6)
OLDEST_GPU = (8, 0)


def interpreting() -> bool:
    """Whether kernels are interpreted. Triton reads the same variable when a kernel is declared."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "y", "yes")


def unusable_device(device: object) -> str | None:
    """Why kernels cannot run on a device of this type; None when they can."""
    kind = getattr(device, "type", str(device))
    if kind == "cuda" or (kind == "cpu" and interpreting()):
        return None
    return f"Triton's kernels run on NVIDIA GPUs, not on {kind}"


def why_not(env: Env) -> str | None:
    """Why Triton's kernels cannot run on this machine; None when they can."""
    version = env.version_of("triton")
    if version is None or not env.has_module("triton"):
        return "needs Triton, which is not installed: pip install 'triton>=3.6'"
    if major_and_minor(version) < OLDEST_TRITON:
        return f"needs Triton 3.6 or newer, and {version} is installed: pip install -U triton"
    if interpreting():
        numpy = env.version_of("numpy")
        if numpy is None:
            return "TRITON_INTERPRET is set, and Triton's interpreter needs NumPy: pip install numpy"
        if major_and_minor(version) < (3, 7) and major_and_minor(numpy) >= (2, 4):
            return f"TRITON_INTERPRET is set, and the interpreter of Triton {version} does not work with NumPy {numpy}"
        return None
    reason = env.lacks_gpu(OLDEST_GPU)
    return reason and f"{reason} (TRITON_INTERPRET=1 runs the kernels, slowly, on CPU tensors)"
