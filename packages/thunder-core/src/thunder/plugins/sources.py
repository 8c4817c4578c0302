# SPDX-License-Identifier: Apache-2.0
"""A hash of the sources of a package, by which a conformance table says which sources it was made from.

It covers every file of the package as installed, e.g. `*.py`, `known_failures.toml` and kernels in `*.cu`. Compiled
files are left out because they differ between platforms, and hidden files because tools make them. Where the package
lies and how its lines end make no difference, so a checkout and an installed wheel have the same hash.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

__all__ = ["hash_of_sources", "package_of"]

_COMPILED = frozenset((".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib"))


def package_of(module: str) -> Path | None:
    """Return the folder of the package that a module belongs to, or the file of a module outside of packages.

    Return None if it lies in no file system (e.g. in a zip file). Packages that belong together only by a namespace
    (`acme.kernels`, `acme.web`) are different packages. Nothing is imported except namespaces, which have no code.
    """
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        spec = find_spec(".".join(names[:depth]))
        if spec is None:
            return None
        if spec.origin is not None:
            found = Path(spec.origin)
            found = found.parent if spec.submodule_search_locations is not None else found
            return found if found.exists() else None
    return None


def hash_of_sources(package: Path) -> str:
    """Return the hash of a package's files, or of one module's file, as `sha256:…`."""
    if package.is_file():
        files = {package.name: package}
    else:
        files = {path.relative_to(package).as_posix(): path for path in package.rglob("*") if path.is_file()}
    total = hashlib.sha256()
    for name in sorted(files):
        if _is_source(name):
            content = files[name].read_bytes()
            if b"\0" not in content:  # text
                content = content.replace(b"\r\n", b"\n")
            total.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _is_source(name: str) -> bool:
    hidden = any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))
    return not hidden and _COMPILED.isdisjoint(Path(name).suffixes)
