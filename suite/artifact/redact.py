"""Remove paths, users and hosts of this machine from records.

Reasons hold tracebacks, and commands hold folders. A redacted path keeps the part that exists on other machines: the
part below the repository, the part below Python's libraries, or otherwise the last name.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.core.resources import ROOT

# an absolute path, but not the end of a relative path, an address or a fraction
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
    """The text without absolute paths and without `names`."""
    for folder in (str(ROOT), os.path.abspath(os.curdir)):
        if len(folder) > 1:
            value = re.sub(rf"{re.escape(folder)}(?=/)/?", "", value)
            value = re.sub(rf"{re.escape(folder)}(?![\w.-])", ".", value)
    value = _WINDOWS.sub(lambda match: "PATH/" + match[0].rpartition("\\")[2], value)
    value = _PATH.sub(_shortened, value)
    for name in names:
        value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "NAME", value)
    return value


def _shortened(match: re.Match[str]) -> str:
    path = match[0]
    library = _LIBRARIES.match(path)
    return f"LIBRARIES/{path[library.end() :]}" if library else f"PATH/{path.rstrip('/').rpartition('/')[2]}"


def value(data: Any, names: Sequence[str] = ()) -> Any:
    """Plain data with every text redacted, keys included."""
    if isinstance(data, str):
        return text(data, names)
    if isinstance(data, dict):
        return {text(str(key), names): value(element, names) for key, element in data.items()}
    if isinstance(data, list | tuple):
        return [value(element, names) for element in data]
    return data
