"""Decides what is known of one component, and how it is said in one line.

mpiexec            works: Open MPI v5.0.11, two ranks start and talk
Slurm              not here because there is no sinfo | do this: nothing on a laptop
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WORKS, ABSENT, BROKEN, UNKNOWN = "works", "not here", "does not work", "not known"
INSTALL = "make install"


@dataclass(frozen=True)
class Finding:
    """What is known of one component. state: WORKS, ABSENT, BROKEN or UNKNOWN; remedy: what to do unless it works."""

    name: str
    state: str
    detail: str
    remedy: str = ""

    def line(self) -> str:
        detail, remedy = " ".join(self.detail.split()), " ".join(self.remedy.split())
        if self.state == WORKS:
            return f"{self.name:<18} works: {detail}"
        return f"{self.name:<18} {self.state} because {detail} | do this: {remedy}"


class Ill(Exception):
    """A component does not work as it is: why, and what to do."""

    def __init__(self, why: str, do: str, state: str = ABSENT) -> None:
        super().__init__(why)
        self.why, self.do, self.state = why, do, state


@dataclass(frozen=True)
class Check:
    """look: says what works, or raises Ill; needed: by `make reproduce` on a laptop."""

    name: str
    look: Callable[[], str]
    needed: bool = False

    def finding(self) -> Finding:
        try:
            return Finding(self.name, WORKS, self.look())
        except Ill as ill:
            return Finding(self.name, ill.state, ill.why, ill.do)
        except Exception as error:  # whatever is missing, the others still have their say
            return Finding(self.name, BROKEN, f"{type(error).__name__}: {error}", INSTALL)
