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
        name: Name of the component.
        state: WORKS, ABSENT, BROKEN or UNKNOWN.
        detail: Description of a working component, or the reason why it does not work.
        remedy: Remedy for a component that does not work.
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
    """A component does not work: the reason, the remedy, and the state."""

    def __init__(self, reason: str, remedy: str, state: str = ABSENT) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.state = reason, remedy, state


@dataclass(frozen=True)
class ComponentCheck:
    """Check of a component.

    Attributes:
        name: Name of the component.
        run: Function that returns a description of the component, or raises CheckFailed.
        needed: Whether `make reproduce` needs the component on a laptop.
    """

    name: str
    run: Callable[[], str]
    needed: bool = False

    def finding(self) -> ComponentState:
        try:
            return ComponentState(self.name, WORKS, self.run())
        except CheckFailed as failure:
            return ComponentState(self.name, failure.state, failure.reason, failure.remedy)
        except Exception as error:  # other checks continue
            return ComponentState(self.name, BROKEN, f"{type(error).__name__}: {error}", INSTALL)
