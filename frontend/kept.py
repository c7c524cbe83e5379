"""What a start makes and the next one reads: the grammar's tables and the library's trees.

Both are pickles, which can run code when loaded. So they are read only from a folder in the user's
cache that belongs to this user and that nobody else can write to; where there is none, all is made
each time. A file appears whole or not at all, since several processes may start at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_file(name: str, *made_of: bytes) -> Path | None:
    """The place of what is made of these bytes; None if no place is safe."""
    key = hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anabranch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # the latter of a user without a home
        return None
    is_ours = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder / f"{name}-{key}" if is_ours else None


def aside(path: Path) -> Path:
    """Where to write first: no other process or thread writes there."""
    return path.with_name(f"{path.name}.{threading.get_native_id()}")


def put(written: Path, path: Path) -> None:
    """Give a file its place; what cannot be kept is made again by the next start."""
    with contextlib.suppress(OSError):
        written.replace(path)


def keep(path: Path, data: bytes) -> None:
    written = aside(path)
    try:
        written.write_bytes(hashlib.sha256(data).digest() + data)
    except OSError:  # the disk is full, perhaps in the middle of the file
        written.unlink(missing_ok=True)
    put(written, path)


def kept(path: Path) -> bytes | None:
    """What was kept there, if it is there and whole."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    digest, data = found[:_DIGEST_BYTES], found[_DIGEST_BYTES:]
    return data if hashlib.sha256(data).digest() == digest else None
