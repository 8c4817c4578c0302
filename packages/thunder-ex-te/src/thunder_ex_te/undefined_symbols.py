# SPDX-License-Identifier: Apache-2.0
"""Check whether the installed torch defines every symbol that a compiled extension needs.

An extension is compiled for one version of torch. Loading the extension would show whether it fits, but may take
seconds. Its file (in ELF, the format of Linux) lists the undefined symbols.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = ["asked_of_others", "missing_of_torch"]

SYMBOLS, UNDEFINED, GLOBAL = 11, 0, 1
_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_OF_TORCH = re.compile(rb"_Z\w*?(3c10|2at|5torch)\d")


def asked_of_others(path: Path) -> Iterator[bytes]:
    """Yield the undefined symbols of a shared library; nothing if the file is not a 64-bit ELF file."""
    if path.stat().st_size < 64:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            return
        (start,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        sections = [_SECTION.unpack_from(data, start + i * size) for i in range(count)]
        for section in sections:
            if section[1] == SYMBOLS:
                names = sections[section[6]][4]
                for at in range(section[4], section[4] + section[5], _SYMBOL.size):
                    name, info, _, where, *_ = _SYMBOL.unpack_from(data, at)
                    if where == UNDEFINED and info >> 4 == GLOBAL:
                        yield data[names + name : data.find(b"\0", names + name)]


def missing_of_torch(path: Path, libraries: Path) -> str | None:
    """Return the first undefined symbol of torch that no library in torch's folder defines."""
    wanted = [name.decode() for name in asked_of_others(path) if _OF_TORCH.match(name)]
    found = [ctypes.CDLL(str(each)) for each in sorted(libraries.glob("lib*.so")) if _holds_code(each.name)]
    return next((name for name in wanted if not any(hasattr(each, name) for each in found)), None)


def _holds_code(name: str) -> bool:
    """Check whether a file is one of torch's libraries. `import torch` has already loaded these."""
    return name in ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so")
