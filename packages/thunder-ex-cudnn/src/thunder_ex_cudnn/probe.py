# SPDX-License-Identifier: Apache-2.0
"""Check whether this machine has the frontend, the library and the GPU that cuDNN's graphs need.

This module does not import torch or the frontend before the cheap checks have passed.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from thunder.plugins import describe_error, reject_device, reject_version

if TYPE_CHECKING:
    from thunder.plugins import Env

__all__ = ["FRONTEND", "capability_of", "unusable_device", "why_not"]

FRONTEND = "nvidia-cudnn-frontend"
OLDEST_FRONTEND = (1, 32)
OLDEST_CUDNN = (9, 19)  # the oldest version that the executor is tested with
OLDEST_GPU = (8, 0)
_INSTALL = f"pip install --no-deps '{FRONTEND}>={'.'.join(map(str, OLDEST_FRONTEND))}'"


def unusable_device(device: object) -> str | None:
    """Return why cuDNN cannot run on a device of this type; None if it can."""
    return reject_device(device, "cuDNN")


@functools.cache
def capability_of(index: int) -> tuple[int, int]:
    """Return the compute capability of a GPU."""
    found: tuple[int, int] = importlib.import_module("torch").cuda.get_device_capability(index)
    return found


def why_not(env: Env) -> str | None:
    """Return why cuDNN's graphs cannot run on this machine; None if they can."""
    return (
        env.lacks_version(FRONTEND, OLDEST_FRONTEND, module="cudnn", install=_INSTALL)
        or env.lacks_gpu(OLDEST_GPU)
        or _why_not_loaded(env.version_of(FRONTEND))
    )


def _why_not_loaded(version: str | None) -> str | None:
    """Return why the frontend does not load, e.g. if it finds another cuDNN than torch."""
    own = importlib.import_module("torch").backends.cudnn.version()  # the frontend uses the cuDNN that torch loads
    try:
        cudnn: Any = importlib.import_module("cudnn")
    except Exception as error:
        return f"{FRONTEND} {version} cannot be imported ({describe_error(error)}): {_INSTALL}"
    try:
        found = int(cudnn.backend_version())
    except Exception as error:
        return f"{FRONTEND} {version} finds no cuDNN ({error}): pip install nvidia-cudnn-cu13"
    reason = reject_version("cuDNN", _written(found), OLDEST_CUDNN)
    if reason is None and own is not None and own // 10000 != found // 10000:
        return f"torch uses cuDNN {_written(own)}, but {FRONTEND} found the incompatible cuDNN {_written(found)}"
    return reason


def _written(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
