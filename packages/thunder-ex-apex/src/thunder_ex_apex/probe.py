# SPDX-License-Identifier: Apache-2.0
"""Check which CUDA extensions of NVIDIA's apex are installed, whether they load, and whether they run on a device.

The extensions are top-level modules that are built from source with apex. Importing this module imports neither torch
nor apex, so that probing stays cheap.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thunder.plugins import describe_error, reject_device

if TYPE_CHECKING:
    from thunder.plugins import Env

__all__ = ["CROSS_ENTROPY", "NORMS", "extension", "loads", "unusable_device", "why_not"]

CROSS_ENTROPY = "xentropy_cuda"
NORMS = "fused_layer_norm_cuda"
BUILD = (
    "build apex from https://github.com/NVIDIA/apex with its extensions xentropy (APEX_XENTROPY=1) and "
    "fused_layer_norm (APEX_CUDA_EXT=1)"
)


def extension(name: str) -> Any:
    """Return one of apex's extensions. It needs torch's libraries, so torch is imported first."""
    importlib.import_module("torch")
    return importlib.import_module(name)


def _load_error(name: str) -> str | None:
    try:
        extension(name)
    except Exception as error:  # an incompatible library may raise any exception
        return describe_error(error)
    return None


def loads(name: str) -> bool:
    """Check whether an extension is installed and can be imported."""
    return importlib.util.find_spec(name) is not None and _load_error(name) is None


def why_not(env: Env) -> str | None:
    """Return why none of apex's extensions can run on this machine; None if one of them can."""
    found = [name for name in (CROSS_ENTROPY, NORMS) if env.has_module(name)]
    if not found:
        return _missing(env)
    if env.cuda_error is not None:
        return f"needs an NVIDIA GPU: {env.cuda_error}"
    errors = {name: error for name in found if (error := _load_error(name)) is not None}
    if len(errors) < len(found):
        return None
    texts = "; ".join(f"{name} ({error})" for name, error in errors.items())
    return f"apex's extensions do not load with torch {env.torch}; rebuild them for it: {texts}"


def _missing(env: Env) -> str:
    if not env.has_module("apex"):
        return f"needs NVIDIA's apex, which is not installed: {BUILD}"
    if not is_nvidias_apex():
        version = env.version_of("apex")
        return (
            f"the installed package apex{f' {version}' if version else ''} is not NVIDIA's apex "
            f"but another package of that name, such as the one on PyPI: {BUILD}"
        )
    return f"NVIDIA's apex is installed without its CUDA extensions: {BUILD}"


def is_nvidias_apex() -> bool:
    """Check whether the package apex has the subpackages of NVIDIA's apex, without importing it."""
    spec = importlib.util.find_spec("apex")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return any((Path(folder) / "normalization").is_dir() for folder in folders)


def unusable_device(name: str, device: Any) -> str | None:
    """Return why an extension cannot run on a device; None if it can.

    The first check launches a kernel on the device.
    """
    return reject_device(device, "apex") or _trial(name, device.index or 0)


@functools.cache
def _trial(name: str, index: int) -> str | None:
    """Return the error of a minimal call.

    An extension contains code only for the architectures that it was built for.
    """
    torch = importlib.import_module("torch")
    try:
        with torch.cuda.device(index), torch.no_grad():
            x = torch.zeros((1, 32), device="cuda")
            if name == CROSS_ENTROPY:
                extension(name).forward(x, torch.zeros(1, dtype=torch.int64, device="cuda"), 0.0, False)
            else:
                extension(name).rms_forward(x, [32], 1e-5)
    except RuntimeError as error:
        return f"{name} does not run on cuda:{index} ({describe_error(error)})"
    return None
