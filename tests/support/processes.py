"""Processes of a command, found by a folder that their command lines contain."""

from __future__ import annotations

from pathlib import Path

import psutil


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names the folder, without zombies."""
    listed = psutil.process_iter(["cmdline", "status"])
    return [
        process
        for process in listed
        if process.info["status"] != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.info["cmdline"] or [])
    ]
