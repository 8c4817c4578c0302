# SPDX-License-Identifier: Apache-2.0
"""The directory of saved programs: files with content-addressed names, safe among processes without locks.

A file is written under a temporary name and renamed, so a reader sees a whole file or none. Only files of the current
user that nobody else may write are read, through no symbolic link, up to a limit of bytes, and if the hash in the
file's name is that of its content. Files carry a signature (HMAC-SHA256). With a key in `THUNDER_CACHE_KEY`, a file
without a good signature is refused; then the directory may be shared between users. Otherwise files are signed with a
key of the user (`signing.py`), and what no list of allowed operations can check is taken from signed files only.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from thunder.core.environment import CACHE_VARIABLE
from thunder.saved.signing import KEY_VARIABLE, key_of_user, shared_key
from thunder.saved.verify import Refused

__all__ = ["KEY_VARIABLE", "SWITCH_VARIABLE", "Found", "Store", "default_directory"]

SWITCH_VARIABLE = "THUNDER_CACHE"
MAGIC = b"thunder program 1"
MAX_FILE_BYTES = 1 << 26
MAX_BYTES = 1 << 30  # of all files of a directory
MAX_ENTRIES = 64  # of one key
# Fewer files than this are left after pruning: so much of the limit.
_KEPT = 0.8


class Found(NamedTuple):
    """A file of the store: its name, its bytes, and when it was last used."""

    key: str
    name: str
    size: int
    used: float


def default_directory() -> str:
    """Return the folder of programs in the directory of `THUNDER_CACHE_DIR`, or in the user's cache directory."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return os.path.join(os.path.abspath(os.path.expanduser(named)), "programs")
    import platformdirs  # imported here, because a program that saves nothing does not need it

    return os.path.join(platformdirs.user_cache_dir("thunder", appauthor=False), "programs")


class Store:
    """Reads and writes the files of one directory, in a folder for each key."""

    def __init__(self, directory: str, *, max_bytes: int = MAX_BYTES, secret: bytes | None = None):
        self.directory = directory
        self.max_bytes = max_bytes
        self._secret = secret or shared_key()
        self._written: int | None = None  # bytes of all files, as far as this process knows

    # -- directories --------------------------------------------------------------------------------------------------
    def _make(self) -> None:
        if not os.path.lexists(self.directory):
            os.makedirs(self.directory, mode=0o700, exist_ok=True)

    @contextmanager
    def _opened(self, key: str | None = None, *, make: bool = False) -> Iterator[int]:
        """Open the directory, or the folder of a key in it, and check whose it is."""
        flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
        try:
            if make:
                self._make()
            top = os.open(self.directory, flags)
        except OSError as error:
            raise Refused(f"{self.directory}: {error.strerror}") from None
        try:
            self._check(os.fstat(top), self.directory)
            if key is None:
                yield top
                return
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(key, 0o700, dir_fd=top)
            try:
                inner = os.open(key, flags, dir_fd=top)
            except OSError as error:
                raise Refused(f"{key}: {error.strerror}") from None
            try:
                self._check(os.fstat(inner), key)
                yield inner
            finally:
                os.close(inner)
        finally:
            os.close(top)

    def _check(self, found: os.stat_result, name: str) -> None:
        """Refuse what another user owns or may write, unless signatures protect it."""
        if self._secret is not None:
            return
        if found.st_uid != os.geteuid():
            raise Refused(f"{name} belongs to another user")
        if found.st_mode & 0o077 and stat.S_ISDIR(found.st_mode):
            raise Refused(f"{name} is open to other users (its mode is {stat.S_IMODE(found.st_mode):o}, not 700)")
        if found.st_mode & 0o022:
            raise Refused(f"{name} may be written by other users")

    # -- reading ------------------------------------------------------------------------------------------------------
    def names(self, key: str) -> list[str]:
        """Return the names of the files of a key, last used first."""
        if not os.path.isdir(os.path.join(self.directory, key)):
            return []
        with self._opened(key) as folder:
            found = []
            for name in os.listdir(folder):
                if not name.startswith("."):
                    try:
                        used = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
                    except OSError:
                        continue
                    found.append((-used, name))
        return [name for _, name in sorted(found)]

    def read(self, key: str, name: str) -> Any:
        """Return the content of a file, or raise `Refused`."""
        return self.read_signed(key, name)[0]

    def read_signed(self, key: str, name: str) -> tuple[Any, Callable[[], bool]]:
        """Return the content of a file, and a function that checks its signature; or raise `Refused`.

        It is a signature with the shared key, or else with the user's key.
        """
        signature, body = self._body(key, name)
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(f"{name} is damaged: it is no JSON") from None

        def is_signed() -> bool:
            secret = self._secret or key_of_user()
            return secret is not None and hmac.compare_digest(signature, _signature(secret, key, body))

        return content, is_signed

    @property
    def is_of_user(self) -> bool:
        """Whether signatures are made with the user's own key, not with one that users share."""
        return self._secret is None

    def check_key(self, what: str) -> None:
        """Raise `Refused` if there is no key with which files are signed."""
        if (self._secret or key_of_user(make=True)) is None:
            raise Refused(f"{what} are read from signed files only, and no key can be stored here: set {KEY_VARIABLE}")

    def _body(self, key: str, name: str) -> tuple[bytes, bytes]:
        """Return the signature of a file and its content as bytes, or raise `Refused`."""
        with self._opened(key) as folder:
            flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            try:
                file = os.open(name, flags, dir_fd=folder)
            except OSError as error:
                raise Refused(f"{name}: {error.strerror}") from None
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode):
                    raise Refused(f"{name} is no file")
                self._check(found, name)
                if found.st_size > MAX_FILE_BYTES:
                    raise Refused(f"{name} has {found.st_size} bytes, which is more than {MAX_FILE_BYTES}")
                data = b""
                while len(data) < found.st_size:
                    part = os.read(file, found.st_size - len(data))
                    if not part:
                        break
                    data += part
            finally:
                os.close(file)
        return self._parted(key, name, data)

    def _parted(self, key: str, name: str, data: bytes) -> tuple[bytes, bytes]:
        head, _, body = data.partition(b"\n")
        parts = head.split(b" ")
        if b" ".join(parts[:3]) != MAGIC or len(parts) != 5:
            raise Refused(f"{name} is no saved program of this version")
        if not hmac.compare_digest(_name_of(key, body), name):
            raise Refused(f"{name} is damaged: its content has another hash")
        if self._secret is not None and not hmac.compare_digest(parts[4], _signature(self._secret, key, body)):
            raise Refused(f"{name} is not signed with the key in {KEY_VARIABLE}")
        return parts[4], body

    def used(self, key: str, name: str) -> None:
        """Record that a file was used, for pruning."""
        with contextlib.suppress(OSError, NotImplementedError):
            os.utime(os.path.join(self.directory, key, name), follow_symlinks=False)

    # -- writing ------------------------------------------------------------------------------------------------------
    def write(self, key: str, content: Any) -> str:
        """Write a file and return its name. An equal file is left as it is."""
        body = json.dumps(content, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
        name = _name_of(key, body)
        secret = self._secret or key_of_user(make=True)
        signature = b"-" if secret is None else _signature(secret, key, body)
        data = MAGIC + b" " + str(int(time.time())).encode() + b" " + signature + b"\n" + body
        if len(data) > MAX_FILE_BYTES:
            raise Refused(f"a program of {len(data)} bytes is larger than {MAX_FILE_BYTES}")
        with self._opened(key, make=True) as folder:
            file, temporary = tempfile.mkstemp(dir=os.path.join(self.directory, key), prefix=".new-")
            try:
                with os.fdopen(file, "wb") as out:
                    out.write(data)
                os.replace(temporary, name, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        self._grown(len(data))
        return name

    def remove(self, key: str, name: str) -> None:
        """Remove a file, and the folder of its key if it is empty."""
        folder = os.path.join(self.directory, key)
        for remove, path in ((os.unlink, os.path.join(folder, name)), (os.rmdir, folder)):
            with contextlib.suppress(OSError):
                remove(path)

    # -- size ---------------------------------------------------------------------------------------------------------
    def files(self) -> list[Found]:
        """Return all files, last used first."""
        found: list[Found] = []
        if not os.path.isdir(self.directory):
            return found
        with self._opened():
            for folder in os.scandir(self.directory):
                if not folder.is_dir(follow_symlinks=False) or folder.name.startswith("."):
                    continue
                try:
                    entries = list(os.scandir(folder.path))
                except OSError:
                    continue
                for entry in entries:
                    try:
                        state = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    found.append(Found(folder.name, entry.name, state.st_size, state.st_mtime))
        return sorted(found, key=lambda file: -file.used)

    def _grown(self, size: int) -> None:
        if self._written is None:
            self._written = sum(file.size for file in self.files())
        else:
            self._written += size
        if self._written > self.max_bytes:
            self.prune()

    def prune(self, max_bytes: int | None = None) -> int:
        """Remove the files that were not used for the longest time, and what writers left. Return the bytes removed."""
        limit = int(self.max_bytes * _KEPT) if max_bytes is None else max_bytes
        total, removed = 0, 0
        for file in self.files():
            left_over = file.name.startswith(".") and time.time() - file.used > 3600
            total += file.size
            if left_over or (total > limit and not file.name.startswith(".")):
                self.remove(file.key, file.name)
                removed += file.size
                total -= file.size
        self._written = total
        return removed


def _signature(secret: bytes, key: str, body: bytes) -> bytes:
    return hmac.new(secret, key.encode() + b"\n" + body, hashlib.sha256).hexdigest().encode()


def _name_of(key: str, body: bytes) -> str:
    return hashlib.sha256(key.encode() + b"\n" + body).hexdigest()
