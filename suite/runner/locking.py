"""Locks: one process per record, and one timed experiment at a time on a host.

A name is held by a lock on a file, which the kernel lets go of however its holder ends. Two commands on one reports
folder share it so: what one is making the other waits for, and then finds.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

_WAIT = 0.2  # seconds between two looks at what another process holds
_WITHOUT = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # what a file system says that has no locks


@contextmanager
def alone(folder: Path, names: Iterable[str], waiting: Callable[[str], None]) -> Iterator[None]:
    """Inside, this process alone holds every one of `names` in `folder`. Wait for the holder of a lock, and pass the
    holder to `waiting`. Where a file system has no locks nothing is held, and `waiting` is told so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name in sorted(set(names)):  # one order for all, so that no cycle of waiting arises
            stack.enter_context(_one(folder / f"{name}.lock", waiting))
        yield


def on_this_host() -> str:
    """The lock of the process that times on this host."""
    return f"host-{platform.node() or 'unnamed'}"


@contextmanager
def _one(path: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    file = _taken(path, waiting)
    try:
        yield
    finally:
        if file is not None:
            with suppress(FileNotFoundError):
                path.unlink()  # while it is held, waiting processes poll it
            os.close(file)


def _taken(path: Path, waiting: Callable[[str], None]) -> int | None:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(file, path):
                os.ftruncate(file, 0)
                os.write(file, json.dumps(_holder()).encode())
                return file
        except BlockingIOError:
            waiting(f"waiting for {_told(file)}")
            time.sleep(_WAIT)
        except OSError as error:
            if error.errno in _WITHOUT:
                os.close(file)
                waiting(f"{path.parent} has no locks ({error.strerror}): nothing else may run on this folder")
                return None
            os.close(file)
            raise
        os.close(file)


def _is(file: int, path: Path) -> bool:
    """Whether the open file still has this name: its last holder may have removed it."""
    try:
        there, open_status = os.stat(path), os.fstat(file)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (open_status.st_dev, open_status.st_ino)


def _holder() -> dict[str, str | int]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": platform.node(), "since": now}


def _told(file: int) -> str:
    try:
        holder = json.loads(os.pread(file, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}, which has been at it since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
