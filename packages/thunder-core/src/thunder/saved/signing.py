# SPDX-License-Identifier: Apache-2.0
"""The key with which saved programs are signed: that of `THUNDER_CACHE_KEY`, or one that this user alone can read.

The user's key lies apart from the saved programs, in the directory of the user's data. Whoever copies programs into the
directory of saved programs, or has them copied there, does not know it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile

__all__ = ["KEY_VARIABLE", "key_of_user", "shared_key"]

KEY_VARIABLE = "THUNDER_CACHE_KEY"
_LENGTH = 64


def shared_key() -> bytes | None:
    """Return the key in `THUNDER_CACHE_KEY`, or None."""
    return os.environ.get(KEY_VARIABLE, "").encode() or None


def key_of_user(*, make: bool = False) -> bytes | None:
    """Return the user's key, or None if there is none, or if others could have read or written it.

    With `make`, a missing key is made.
    """
    import platformdirs  # imported here, because most programs are read without a key

    path = os.path.join(platformdirs.user_data_dir("thunder", appauthor=False), "key")
    if make and not os.path.lexists(path):
        with contextlib.suppress(OSError):
            _make(path)
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        found = os.fstat(file)
        private = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        key = os.read(file, _LENGTH) if private else b""
    finally:
        os.close(file)
    return key if len(key) == _LENGTH else None


def _make(path: str) -> None:
    """Write a new key under a temporary name, and give it its name. If two processes do, the last one's key stays."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    file, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    with os.fdopen(file, "w", encoding="ascii") as out:
        out.write(secrets.token_hex(_LENGTH // 2))
    os.replace(temporary, path)
