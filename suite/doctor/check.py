"""One check of the doctor, and the line that reports it.

MPI                works: Open MPI v5.0.11, two ranks start and talk
Slurm              not here because there is no sinfo | do this: nothing on a laptop
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.comm.rendezvous.mpiexec_flags import find_mpiexec
from suite.runner.launch.launch_command import binding_options, rank_environment
from suite.runner.launch.process_tree import run_program

WORKS, ABSENT, BROKEN, UNKNOWN = "works", "not here", "does not work", "not known"
INSTALL = "make install"
AGAIN = "make doctor again, when the machine is idle"
PATIENCE = 30.0  # seconds for one program


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

    def report(self) -> tuple[bool, str]:
        """Whether the component works, and the line of the report."""
        try:
            return True, _line(self.name, f"{WORKS}: {self.run()}")
        except CheckFailed as failure:
            return False, _line(self.name, f"{failure.state} because {failure.reason} | do this: {failure.remedy}")
        except Exception as error:  # other checks continue
            reason = f"{type(error).__name__}: {error}"
            return False, _line(self.name, f"{BROKEN} because {reason} | do this: {INSTALL}")


def _line(name: str, text: str) -> str:
    return f"{name:<18} {' '.join(text.split())}"


def output(
    line: Sequence[str], remedy: str, seconds: float | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Output of a program that may hang or crash.

    Args:
        line: Command line.
        remedy: What to do if the program fails.
        seconds: Time limit; None for PATIENCE.
        environment: Variables in addition to those of this process.

    Raises:
        CheckFailed: The program is missing, fails, or is not done in time. Then it is ended with its children.
    """
    limit, name = PATIENCE if seconds is None else seconds, Path(line[0]).name
    try:
        process = run_program(line, seconds=limit, env={**os.environ, **(environment or {})})
    except OSError as error:
        raise CheckFailed(str(error), remedy, BROKEN) from error
    except subprocess.TimeoutExpired as error:
        load = f"{os.getloadavg()[0]:.1f}"
        raise CheckFailed(f"{name} was not done after {limit:g} s, load {load}", AGAIN, UNKNOWN) from error
    if process.returncode:
        last = (process.stderr.strip() or process.stdout.strip() or "it printed nothing").splitlines()[-1]
        raise CheckFailed(f"{name} ended with {process.returncode}: {last}", remedy, BROKEN)
    return process.stdout


def two_ranks(program: str) -> str:
    """Last line that a Python program prints on two MPI ranks of one thread each. Raises CheckFailed."""
    mpiexec = find_mpiexec(None)
    if mpiexec is None:
        raise CheckFailed("there is no mpiexec", f"{INSTALL}, or load your cluster's MPI")
    line = [mpiexec, "-n", "2", *binding_options(None), sys.executable, "-m", "mpi4py", "-c", program]
    return output(line, f"{INSTALL}, or load one MPI for mpi4py and mpiexec", environment=rank_environment(threads=1))
