# SPDX-License-Identifier: Apache-2.0
"""Check whether kernels can run: on an NVIDIA GPU, or on CPU tensors with Triton's interpreter (for tests).

This module does not import Triton or torch, so that probing stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder.plugins import major_and_minor, reject_device
from thunder_ex_triton.environment import interpreting

if TYPE_CHECKING:
    from thunder.plugins import Env

__all__ = ["interpreting", "unusable_device", "why_not"]

OLDEST_TRITON = (3, 6)
OLDEST_GPU = (8, 0)
_INSTALL = "pip install 'triton>=3.6'"


def unusable_device(device: object) -> str | None:
    """Return why kernels cannot run on a device of this type; None if they can."""
    return reject_device(device, "Triton", ("cuda", "cpu") if interpreting() else ("cuda",))


def why_not(env: Env) -> str | None:
    """Return why Triton's kernels cannot run on this machine; None if they can."""
    reason = env.lacks_version("triton", OLDEST_TRITON, name="Triton", module="triton", install=_INSTALL)
    if reason is not None:
        return reason
    if interpreting():
        version = env.version_of("triton")
        numpy = env.version_of("numpy")
        if numpy is None:
            return "TRITON_INTERPRET is set, and Triton's interpreter needs NumPy: pip install numpy"
        if major_and_minor(version) < (3, 7) and major_and_minor(numpy) >= (2, 4):
            return f"TRITON_INTERPRET is set, and the interpreter of Triton {version} does not work with NumPy {numpy}"
        return None
    reason = env.lacks_gpu(OLDEST_GPU)
    return reason and f"{reason} (TRITON_INTERPRET=1 runs the kernels, slowly, on CPU tensors)"
