"""File locks: one process per record, and one timed experiment per host.

Commands that share a reports folder lock each record by its key. If another command holds the lock, a command waits,
and then reads the record that the other command wrote. The kernel releases a lock when its process ends or crashes.
"""

from __future__ import annotations

import errno
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

_POLL_INTERVAL = 0.2  # seconds between two attempts on a lock that another process holds
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # errors of a file system without locks


@contextmanager
def hold_locks(folder: Path, names: Iterable[str], report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of every name in `folder` inside the context; wait for locks that other processes hold.

    Args:
        folder: Folder of the lock files.
        names: Names of the locks. They are taken in sorted order, so that no two processes wait for each other.
        report: Receives a line that names the holder at each attempt, and a warning where the file system has no
            locks. In the latter case the context runs without a lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name in sorted(set(names)):
            stack.enter_context(_hold_lock(folder / f"{name}.lock", report))
        yield


def host_lock() -> str:
    """Name of the lock of the process that times an experiment on this host."""
    return f"host-{platform.node() or 'unnamed'}"


@contextmanager
def _hold_lock(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    lock = FileLock(path, blocking=False, fallback_to_soft=False)
    while not lock.is_locked:
        try:
            lock.acquire()
        except Timeout:
            with suppress(OSError):  # the file of a lock that is released meanwhile
                report(f"waiting for {path.read_text(encoding='utf-8') or 'another process'}")
            time.sleep(_POLL_INTERVAL)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            report(f"{path.parent} has no locks ({error.strerror}): run no other command on this folder")
            yield
            return
    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        path.write_text(f"process {os.getpid()} on {platform.node()}, which has held the lock since {now}")
        yield
    finally:
        path.unlink(missing_ok=True)  # before the release: a waiting process then locks a new file
        lock.release()
