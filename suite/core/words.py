"""Read and write KEY=VALUE words of command lines.

Hydra reads these words as overrides; commands without a config read them with `value_of`. `override` writes words that
both understand in the same way.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence, Sized
from pathlib import Path

_KEY_VALUE = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@:-]*=")
_DELETED = re.compile(r"~[A-Za-z_][\w./@:-]*\Z")
_BARE = re.compile(r"[A-Za-z_./][\w./-]*(?: [\w./-]+)*")  # Hydra reads it as text without quotes
_NOT_TEXT = ("null", "true", "false", "nan", "inf")


def is_word(argument: str) -> bool:
    """Whether `argument` is KEY=VALUE, +KEY=VALUE, ~KEY or @FILE."""
    return argument.startswith("@") or bool(_KEY_VALUE.match(argument) or _DELETED.match(argument))


def value_of(word: str) -> str:
    """The value of KEY=VALUE, without the quotes that Hydra would remove too."""
    value = word.partition("=")[2]
    if len(value) < 2 or value[0] not in "'\"" or value[-1] != value[0]:
        return value
    return value[1:-1].replace(f"\\{value[0]}", value[0]).replace("\\\\", "\\")


def override(key: str, value: object) -> str:
    """KEY=VALUE, with quotes around `value` if Hydra would not read it as this text."""
    text = str(value)
    if _BARE.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return f"{key}={text}"
    quoted = re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"{key}='{quoted}'"


def format_count(things: Sized | int, noun: str) -> str:
    """A count with its noun: '1 run', '3 runs'."""
    number = things if isinstance(things, int) else len(things)
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def for_reports(command: str, folder: Path) -> str:
    """The command line that runs the subcommand `command` on this reports folder."""
    return shell_line(command, [] if folder == Path("reports") else [override("reports", folder)])


def shell_line(command: str, words: Sequence[str]) -> str:
    """The command line that runs the subcommand `command` with these words, for a person to paste into a shell."""
    return shlex.join(["suite", command, *words])
