# SPDX-License-Identifier: Apache-2.0
"""Where cuDNN's graphs can run: which frontend, library and GPU they need, and what is missing where they cannot.

Nothing here imports torch or the frontend unless all that can be asked without them is there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thunder.plugins import describe_error, reject_device, reject_version

if TYPE_CHECKING:
    from thunder.plugins import Env

__all__ = ["FRONTEND", "unusable_device", "why_not"]

FRONTEND = "nvidia-cudnn-frontend"
OLDEST_FRONTEND = (1, 32)
OLDEST_CUDNN = (9, 19)  # the oldest with which the executor's tests have passed
OLDEST_GPU = (8, 0)
_INSTALL = f"pip install --no-deps '{FRONTEND}>={'.'.join(map(str, OLDEST_FRONTEND))}'"


def unusable_device(device: object) -> str | None:
    """Return why cuDNN cannot run on a device of this type; None when it can."""
    return reject_device(device, "cuDNN")


def why_not(env: Env) -> str | None:
    """Return why cuDNN's graphs cannot run on this machine; None when they can."""
    return (
        env.lacks_version(FRONTEND, OLDEST_FRONTEND, module="cudnn", install=_INSTALL)
        or env.lacks_gpu(OLDEST_GPU)
        or _why_not_loaded(env.version_of(FRONTEND))
    )


def _why_not_loaded(version: str | None) -> str | None:
    """Return what importing the frontend says: it was built for another Python, or finds no cuDNN, an old one, or
    another.
    """
    own = importlib.import_module("torch").backends.cudnn.version()  # torch loads its cuDNN: the frontend finds it
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
        return f"torch uses cuDNN {_written(own)} and {FRONTEND} found {_written(found)}, which do not go together"
    return reason


def _written(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
