"""One-line summaries of the reasons of failed runs.

A reason is a sentence, a sentence with supporting lines (the grid of an illegal schedule, the log of ranks), or a
traceback. The record holds the whole reason, and `headline` shortens it to one line.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

from suite.core.resources import ROOT

_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?')
_RANK = re.compile(r"(?:\[rank\d+\]: ?)")  # torch's mark at every line of a rank


def headline(reason: str, *, width: int | None = None, nothing: str = "no reason was recorded") -> str:
    """First sentence of a reason. A traceback gives its error and the line of the user's file that raised it.

    Args:
        reason: Reason of a record.
        width: Most characters; a longer sentence is cut and ends with "...".
        nothing: Text for an empty reason.
    """
    lines = [_RANK.sub("", line) for line in reason.splitlines()]
    at = next((number for number, line in enumerate(lines) if any(map(str.isalnum, line))), None)
    if at is None:
        return nothing
    sentence = lines[at].strip()
    if sentence.endswith(_BEGIN):  # perhaps after "rank 3: "
        sentence = sentence.removesuffix(_BEGIN) + (_error(lines[at:]) or "a traceback without its end")
    return sentence if width is None or len(sentence) <= width else f"{sentence[: width - 3].rstrip()}..."


def format_traceback(error: BaseException) -> str:
    """The traceback of an error, as a record keeps it."""
    return "".join(traceback.format_exception(error)).strip()


def raised_in_user_code(error: BaseException) -> bool:
    """Whether the traceback of an error, or of one of its causes, contains a file of the user's own code."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, SyntaxError) and chain.filename and _is_own(chain.filename):
            return True
        if any(_is_own(frame.filename) for frame in traceback.extract_tb(chain.__traceback__)):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def _error(lines: list[str]) -> str:
    """Last line of the last traceback in these lines, with the user's frame that is nearest to it."""
    last = max(number for number, line in enumerate(lines) if line.strip().endswith(_BEGIN))
    said = next((line.strip() for line in lines[last + 1 :] if line.strip() and not line.startswith(" ")), "")
    places = [(match["file"], match["line"], match["name"] or "") for match in map(_FRAME.match, lines) if match]
    own_frames = [place for place in places if _is_own(place[0])]
    near = own_frames or [place for place in places if not _is_library(place[0])] or places
    if not said or not near:
        return said
    file, line, name = near[-1]
    within = f" in {name}" if name and name != "<module>" else ""
    return f"{said} ({file}, line {line}{within})"


def _is_own(file: str) -> bool:
    """Whether a file belongs to the user: not to a library, nor to the suite, in this or another installation."""
    if _is_library(file):
        return False
    parts = Path(file).parts
    tails = (Path(*parts[number:]) for number, part in enumerate(parts) if part in ("suite", "baselines"))
    return not any((ROOT / tail).is_file() for tail in tails)


def _is_library(file: str) -> bool:
    """Whether a file belongs to a package or to Python, or is not a module (a console script, code without a file)."""
    installed = "site-packages" in file or "dist-packages" in file or re.search(r"/lib/python3\.\d+/", file)
    return bool(not file.endswith(".py") or installed or file.startswith(sysconfig.get_paths()["stdlib"]))
