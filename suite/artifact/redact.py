"""Remove paths, users and hosts of this machine from records.

A reason holds a traceback, and a command the folders that were typed. The kept part of a path exists on other
machines too: below the repository, below Python's own libraries, or else the last name alone."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.core.resources import ROOT

# an absolute path: not the second half of a relative one, of an address, or of a fraction
_PATH = re.compile(r"(?<![\w.:/\-<~])(?:~[\w.-]*)?/(?:[\w.@+~-]+/)+[\w.@+~-]*|(?<![\w.:/\-<])~[\w.-]*/[\w.@+~/-]*")
_WINDOWS = re.compile(r"\b[A-Za-z]:\\(?:[^\\\s\"']+\\)*[^\\\s\"']*")
_LIBRARIES = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
_COMMON = ("root", "user", "users", "admin", "ubuntu", "runner", "localhost", "local", "host", "main", "test")


def names_here() -> tuple[str, ...]:
    """Names of this machine and its user, unless they are ordinary words."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    names = {user, socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    return tuple(sorted(name for name in names if len(name) > 2 and name.lower() not in _COMMON))


def text(value: str, names: Sequence[str] = ()) -> str:
    """Without absolute paths, and without `names`."""
    for folder in (str(ROOT), os.path.abspath(os.curdir)):
        if len(folder) > 1:
            value = re.sub(rf"{re.escape(folder)}(?=/)/?", "", value)
            value = re.sub(rf"{re.escape(folder)}(?![\w.-])", ".", value)
    value = _WINDOWS.sub(lambda found: "PATH/" + found[0].rpartition("\\")[2], value)
    value = _PATH.sub(_kept, value)
    for name in names:
        value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "NAME", value)
    return value


def _kept(found: re.Match[str]) -> str:
    path = found[0]
    inside = _LIBRARIES.match(path)
    return f"LIBRARIES/{path[inside.end() :]}" if inside else f"PATH/{path.rstrip('/').rpartition('/')[2]}"


def value(found: Any, names: Sequence[str] = ()) -> Any:
    """The same of everything in plain data, names of keys included."""
    if isinstance(found, str):
        return text(found, names)
    if isinstance(found, dict):
        return {text(str(key), names): value(element, names) for key, element in found.items()}
    if isinstance(found, list | tuple):
        return [value(element, names) for element in found]
    return found
