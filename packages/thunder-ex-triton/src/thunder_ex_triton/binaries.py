# SPDX-License-Identifier: Apache-2.0
"""Binaries of compiled kernels: described as data, and loaded and launched without Triton.

A binary is the file that Triton's compiler has left in its cache. torch has a launcher for such files. What it does not
support (more than one block per cluster, memory that Triton allocates for a launch, other kinds of launches) is left to
Triton.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from thunder.toolkit.launch import load_cubin
from thunder_ex_triton.environment import cache_folder

__all__ = ["Binary", "describe", "find", "load"]

# The types of torch's launcher, by those of Triton's signatures.
_TYPES = {
    "i1": "i", "i8": "b", "i16": "h", "i32": "i", "i64": "l", "u1": "I", "u8": "B", "u16": "H", "u32": "I", "u64": "K",
    "fp32": "f", "fp64": "d",
}  # fmt: skip
_MOST_ARGUMENTS = 100  # that torch's launcher certainly accepts


class Binary(NamedTuple):
    """A kernel that is loaded on a device."""

    function: Any
    warps: int
    shared: int  # bytes of shared memory
    types: str  # a letter for each argument
    passed: tuple[int, ...]  # the positions of the arguments among tensors and numbers; others are constants in it
    unused: int  # further arguments, for memory that the kernel does not need


def describe(compiled: Any) -> dict[str, Any] | None:
    """Return a kernel that Triton has compiled as data: where its binary is, and how it is launched.

    Return None if torch's launcher does not support it, or if Triton keeps no file of it.
    """
    metadata, source = compiled.metadata, compiled.src
    files = [Path(path) for name, path in compiled.metadata_group.items() if name.endswith(".cubin")]
    special = ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size", "tmem_size")
    if len(files) != 1 or getattr(metadata, "num_ctas", 1) != 1 or any(getattr(metadata, x, 0) for x in special):
        return None
    names = list(source.fn.arg_names)
    constants = {names.index(key) if isinstance(key, str) else key[0] for key in getattr(source, "constants", {})}
    passed, types = [], ""
    for name, kind in source.signature.items():
        i = names.index(name) if isinstance(name, str) else name
        if kind == "constexpr" or i in constants:
            continue
        letter = "O" if kind.startswith("*") else _TYPES.get(kind)
        if letter is None:
            return None
        passed.append(i)
        types += letter
    # Kernels have parameters for such memory since versions of Triton that say how much they need.
    unused = sum(hasattr(metadata, x) for x in ("global_scratch_size", "profile_scratch_size"))
    if len(passed) + unused > _MOST_ARGUMENTS:
        return None
    return {
        "file": f"{files[0].parent.name}/{files[0].name}",
        "sha256": _digest(files[0]),
        "name": metadata.name,
        "warps": metadata.num_warps,
        "shared": metadata.shared,
        "types": types + "O" * unused,
        "passed": passed,
        "unused": unused,
    }


def find(data: dict[str, Any], folder: Path | None = None) -> Path | None:
    """Return the file of a binary: `<sha256>.cubin` in `folder`, or in Triton's cache. Its contents are checked."""
    for path in ([] if folder is None else [folder / f"{data['sha256']}.cubin"]) + [cache_folder() / data["file"]]:
        if path.is_file() and _digest(path) == data["sha256"]:
            return path
    return None


def load(binaries: Sequence[dict[str, Any] | None], device: int, folder: Path | None = None) -> list[Binary] | None:
    """Load the binaries of kernels on a device. Return None if Triton has to do it, e.g. if a file is gone."""
    files = [None if data is None else find(data, folder) for data in binaries]
    if load_cubin is None or any(path is None for path in files):
        return None
    found = []
    for data, path in zip(binaries, files):
        assert data is not None and path is not None
        loaded = _loaded(load_cubin, str(path), data["name"], data["shared"], device)
        passed = tuple(data["passed"])
        found.append(Binary(loaded, data["warps"], data["shared"], data["types"], passed, data["unused"]))
    return found


@functools.cache
def _loaded(load: Callable[..., Any], path: str, name: str, shared: int, device: int) -> Any:
    """Load a file once per device. Nothing unloads it, because CUDA graphs may refer to it."""
    return load(path, name, shared, device)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
