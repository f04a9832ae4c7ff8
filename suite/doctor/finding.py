"""State of one component, and its line in the report.

mpiexec            works: Open MPI v5.0.11, two ranks start and talk
Slurm              not here because there is no sinfo | do this: nothing on a laptop
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WORKS, ABSENT, BROKEN, UNKNOWN = "works", "not here", "does not work", "not known"
INSTALL = "make install"


@dataclass(frozen=True)
class ComponentState:
    """State of one component.

    Attributes:
        state: WORKS, ABSENT, BROKEN or UNKNOWN.
        remedy: Remedy, unless the component works.
    """

    name: str
    state: str
    detail: str
    remedy: str = ""

    def line(self) -> str:
        detail, remedy = " ".join(self.detail.split()), " ".join(self.remedy.split())
        if self.state == WORKS:
            return f"{self.name:<18} works: {detail}"
        return f"{self.name:<18} {self.state} because {detail} | do this: {remedy}"


class CheckFailed(Exception):
    """A component does not work as it is: why, and what to do."""

    def __init__(self, why: str, do: str, state: str = ABSENT) -> None:
        super().__init__(why)
        self.why, self.do, self.state = why, do, state


@dataclass(frozen=True)
class ComponentCheck:
    """look: says what works, or raises CheckFailed; needed: by `make reproduce` on a laptop."""

    name: str
    look: Callable[[], str]
    needed: bool = False

    def finding(self) -> ComponentState:
        try:
            return ComponentState(self.name, WORKS, self.look())
        except CheckFailed as ill:
            return ComponentState(self.name, ill.state, ill.why, ill.do)
        except Exception as error:  # whatever is missing, the others still have their say
            return ComponentState(self.name, BROKEN, f"{type(error).__name__}: {error}", INSTALL)
