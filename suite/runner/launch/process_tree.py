"""Ends of programs together with their children."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

_GRACE = 5.0  # seconds that an interrupted program may take to end
_POLL = 0.02  # seconds between looks at processes that end


def process_tree(*roots: psutil.Process) -> list[psutil.Process]:
    """The processes and their children, which are not found later, once their parent has ended."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        with suppress(psutil.Error):
            children = root.children(recursive=True) if root.is_running() else []
            found |= {process.pid: process for process in (root, *children)}
    return list(found.values())


def _runs(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie does not: its parent alone, or init, can remove it."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _still_running(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """The processes that have not ended within some seconds."""
    end = time.monotonic() + seconds
    while (running := [process for process in processes if _runs(process)]) and time.monotonic() < end:
        time.sleep(_POLL)
    return running


def end_processes(processes: Sequence[psutil.Process], grace: float) -> list[psutil.Process]:
    """Wait `grace` seconds for the end of processes, then kill those that remain, which are returned."""
    late = _still_running(processes, grace)
    for process in late:
        with suppress(psutil.Error):
            process.kill()
    _still_running(late, _GRACE)  # a killed process ends when the kernel next runs it, which a busy machine delays
    return late


def run_program(
    line: Sequence[str], *, seconds: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run with captured text, but a signal or a timeout of `seconds` ends the program and its children.

    The program receives SIGTERM first, and is killed with its children if it does not end.
    """
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=cwd, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException:
        end_program(process)
        raise
    return subprocess.CompletedProcess(list(line), process.returncode, out, err)


def end_program(process: subprocess.Popen[Any], grace: float = _GRACE) -> None:
    """Terminate a program; after `grace` seconds kill it and its children, and wait until they have ended."""
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        family = process_tree(psutil.Process(process.pid))
    process.terminate()
    end_processes(family, grace)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait()
