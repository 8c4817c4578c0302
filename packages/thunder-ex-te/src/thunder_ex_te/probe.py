# SPDX-License-Identifier: Apache-2.0
"""Check which versions of TransformerEngine are installed, whether they match, and on which devices they can run.

Importing TransformerEngine takes seconds, and most programs do not use fp8. The probe therefore performs only the
checks that need no import. The library is imported when a program first needs it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thunder.plugins import ThunderError, describe_error, reject_device, reject_version
from thunder_ex_te.undefined_symbols import missing_of_torch

if TYPE_CHECKING:
    from thunder.plugins import Env

__all__ = ["kernels", "unusable_device", "why_not"]

META, EXTENSION = "transformer_engine", "transformer_engine_torch"
BINARIES = ("transformer_engine_cu13", "transformer_engine_cu12")
# `kernels.py` calls private interfaces of TransformerEngine. The executor was tested with these versions.
FIRST, BEFORE = (2, 20), (2, 21)
# On these GPUs, fp8 matmuls need both operands with contiguous rows, so the executor makes transposed copies.
HOPPER, BLACKWELL = (9, 0), (10, 0)
_INSTALL = "pip install --no-build-isolation 'transformer_engine[pytorch]=={}.{}.*'".format(*FIRST)


def unusable_device(device: object) -> str | None:
    """Return why TransformerEngine cannot run on a device of this type; None if it can."""
    return reject_device(device, "TransformerEngine")


def why_not(env: Env) -> str | None:
    """Return why fp8 matmuls cannot run on this machine; None if they can."""
    if not env.has_module(META):
        return f"needs NVIDIA's TransformerEngine, which is not installed: {_INSTALL}"
    if not env.has_module(EXTENSION):
        return f"TransformerEngine is installed without its extension for torch: {_INSTALL}"
    return _wrong_version(env) or env.lacks_gpu(HOPPER, before=BLACKWELL) or _for_another_torch(env)


def _wrong_version(env: Env) -> str | None:
    found = {name: version for name in (META, *BINARIES, EXTENSION) if (version := env.version_of(name)) is not None}
    version = found.get(EXTENSION)
    if version is None:
        return f"TransformerEngine is installed without the metadata of {EXTENSION}; its version is unknown: {_INSTALL}"
    if len(set(found.values())) > 1:
        parts = ", ".join(f"{name} {each}" for name, each in found.items())
        return f"the packages of TransformerEngine must have the same version, but {parts} are installed: {_INSTALL}"
    return reject_version("TransformerEngine", version, FIRST, BEFORE, install=_INSTALL)


def _for_another_torch(env: Env) -> str | None:
    """Return a symbol that the extension needs and that torch lacks; None if there is none.

    Loading the extension would take seconds, so its file is read instead.
    """
    spec = importlib.util.find_spec(EXTENSION)
    torch: Any = importlib.import_module("torch")
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    missing = missing_of_torch(Path(spec.origin), Path(torch.__file__).with_name("lib"))
    if missing is None:
        return None
    return (
        f"{EXTENSION} {env.version_of(EXTENSION)} was compiled for another torch than {env.torch}, which lacks "
        f"{missing}: {_INSTALL}"
    )


@functools.cache
def kernels() -> Any:
    """Import and return `kernels.py`, which imports the library.

    The import takes seconds, so it waits for the first kernel in fp8.
    """
    try:
        importlib.import_module("torch")
        return importlib.import_module("thunder_ex_te.kernels")
    except Exception as error:  # an incompatible library may raise any exception
        versions = [f"{name} {_installed(name)}" for name in (EXTENSION, "torch")]
        raise ThunderError(
            f"{versions[0]} does not load beside {versions[1]} ({describe_error(error)}): its extension is "
            f"compiled for one version of torch. {_INSTALL}"
        ) from error


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"
