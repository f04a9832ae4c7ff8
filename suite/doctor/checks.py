"""Checks of the components: one function each, with the remedy for a failure.

A function returns a description of the working component or raises CheckFailed. A check that exceeds its time limit has
the state UNKNOWN.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from suite.core.resources import ROOT
from suite.doctor.finding import ABSENT, BROKEN, INSTALL, UNKNOWN, CheckFailed, ComponentCheck
from suite.doctor.probe import attempt, load, mpi_ranks, torch_ranks

REPORTS = Path("reports")  # the default of RunConfig.reports
DISTRIBUTION = "parallel-training-suite"
ROOM = 1e9  # bytes: a laptop's records, traces and page, several times over
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
AGAIN = "make doctor again, when the machine is idle"


def python() -> str:
    if sys.version_info < (3, 11):  # noqa: UP036 - the doctor is asked before anything is installed
        raise CheckFailed(f"this is Python {platform.python_version()}", "make install PYTHON=python3.11", BROKEN)
    return f"{platform.python_version()} on {platform.system()} {platform.release()}"


def cores() -> str:
    from suite.core.units import si
    from suite.runner.provenance import machine

    hardware = machine()
    return f"{hardware['cores']} cores of {hardware['processor']}, {si(hardware['memory_bytes'], 'B')}{load()}"


def packages() -> str:
    """Every package that the suite requires without an extra."""
    import re
    import tomllib
    from importlib.metadata import requires

    project = ROOT / "pyproject.toml"  # of a checkout, which need not be installed; a wheel has metadata
    if project.is_file():
        required = tomllib.loads(project.read_text())["project"]["dependencies"]
    else:
        required = [line for line in requires(DISTRIBUTION) or () if "extra ==" not in line]
    names = [re.split(r"[<>=!~\[; ]", line)[0] for line in required]
    missing = [name for name in names if not installed(name)]
    if missing:
        raise CheckFailed(f"{', '.join(missing)} of {len(names)} packages are not installed", INSTALL)
    return f"{len(names)} of {len(names)} installed"


def installed(name: str) -> str:
    """Version of a package; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def torch() -> str:
    output = torch_ranks()
    if "torch" not in output.facts:
        state = UNKNOWN if output.late else BROKEN if installed("torch") else ABSENT
        raise CheckFailed(output.reason or "it printed nothing", AGAIN if output.late else INSTALL, state)
    kind = f"CUDA {output.facts['built']}" if output.facts["built"] else "CPU"
    return f"{output.facts['torch']}, a {kind} build, {output.facts['threads']} threads"


def torch_report() -> dict[str, Any]:
    """Versions and devices that torch reports. Raises CheckFailed without a report."""
    output = torch_ranks()
    if "torch" not in output.facts:
        raise CheckFailed("torch reports nothing", "see torch", UNKNOWN)
    return output.facts


def gloo() -> str:
    torch_facts, output = torch_report(), torch_ranks()
    if not torch_facts["gloo"]:
        raise CheckFailed("torch was built without it", INSTALL)
    if "sum" not in torch_facts and output.late and "gloo_error" not in torch_facts:
        raise CheckFailed(output.reason, AGAIN, UNKNOWN)
    if torch_facts.get("sum") != 2.0:
        reason = torch_facts.get("gloo_error") or output.reason or f"1 + 1 is {torch_facts.get('sum')}"
        raise CheckFailed(
            f"two ranks do not add: {reason}", "GLOO_SOCKET_IFNAME=lo, or another interface of this machine", BROKEN
        )
    return "two ranks add"


def cuda() -> str:
    torch_facts = torch_report()
    if not torch_facts["cuda"]:
        reason = "torch sees no device" if torch_facts["built"] else "this torch is a CPU build"
        raise CheckFailed(reason, "nothing on a laptop, runs use the CPU; with a GPU, install torch's CUDA build")
    return f"{len(torch_facts['cuda'])} x {torch_facts['cuda'][0]}"


def nccl() -> str:
    torch_facts = torch_report()
    if not torch_facts["nccl"] or not torch_facts["cuda"]:
        reason = "there is no CUDA device for it" if torch_facts["nccl"] else "torch was built without it"
        raise CheckFailed(reason, "nothing on a CPU: comm.transport is mpi or gloo there")
    return "built in: comm.transport=nccl"


def mpi4py() -> str:
    if not installed("mpi4py"):
        raise CheckFailed("it is not installed", INSTALL)
    output = attempt([sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"])
    if output.late:
        raise CheckFailed(output.reason, AGAIN, UNKNOWN)
    if output.reason:
        raise CheckFailed(
            f"it finds no MPI library: {output.reason}", f"{INSTALL} (a wheel with Open MPI), or load an MPI", BROKEN
        )
    return f"{installed('mpi4py')} on {' '.join(output.text.replace(chr(0), '').split(',')[0].split()[:5])}"


def mpiexec() -> str:
    output = mpi_ranks()
    facts = output.facts
    if facts.get("size") == 1:
        remedy = "keep one MPI: mpi4py's library and mpiexec must be of the same"
        raise CheckFailed(
            f"each of two ranks is alone: mpi4py loads {facts['library']}, mpiexec is another's", remedy, BROKEN
        )
    if output.late:
        raise CheckFailed(output.reason, AGAIN, UNKNOWN)
    if "moved" not in facts:
        raise CheckFailed(f"two ranks do not talk: {output.reason or 'they printed nothing'}", INSTALL, BROKEN)
    return f"{facts['library']}, two ranks start and talk"


def root() -> str:
    from suite.comm.rendezvous import mpiexec_flags
    from suite.core.cores import cores

    who = "not root" if os.geteuid() else "root"
    most = cores()
    typed = f"{mpiexec_flags.command_line(most)}; more ranks: {mpiexec_flags.command_line(most + 1)}"
    return f"{who}, {most} cores; the suite's own runs start anyhow, and those on more ranks are marked; typed: {typed}"


def kernel_copies() -> str:
    output = mpi_ranks()
    if "moved" not in output.facts:
        raise CheckFailed("two ranks do not talk", "see mpiexec", UNKNOWN)
    if not output.facts["moved"]:
        remedy = "nothing, the suite calls MPI while it waits; where ptrace is allowed large messages are quicker"
        raise CheckFailed("a message of 4 MiB moves only while both sides call MPI", remedy)
    return "a message of 4 MiB moves while its sender calls nothing"


def deepspeed() -> str:
    if not installed("deepspeed"):
        raise CheckFailed("it is not installed", f"DS_BUILD_OPS=0 {INSTALL}")
    torch_facts, output = torch_report(), torch_ranks()
    if "deepspeed_error" in torch_facts:
        raise CheckFailed(f"it does not import: {torch_facts['deepspeed_error']}", f"DS_BUILD_OPS=0 {INSTALL}", BROKEN)
    if "deepspeed" not in torch_facts:
        reason = output.reason or "it printed nothing"
        raise CheckFailed(
            reason, AGAIN if output.late else f"DS_BUILD_OPS=0 {INSTALL}", UNKNOWN if output.late else BROKEN
        )
    return f"{torch_facts['deepspeed']} imports"


def compiler() -> str:
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    path = next((path for name in names if name and (path := shutil.which(name))), None)
    missing = [] if path else ["no C++ compiler"]
    missing += [] if shutil.which("ninja") or find_spec("ninja") else ["no ninja"]
    if missing:
        raise CheckFailed(
            f"there is {' and '.join(missing)}", "nothing: only DeepSpeed's optional kernels want g++ and ninja"
        )
    output = attempt([str(path), "--version"], 5)
    if output.reason:
        raise CheckFailed(output.reason, "another compiler in CXX", BROKEN)
    return f"{output.text.splitlines()[0]}, and ninja"


def find_chromium() -> str | None:
    """The Chromium program on the PATH; None without one."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def chromium() -> str:
    path = find_chromium()
    if path is None:
        raise CheckFailed("there is none on the PATH", "apt-get install chromium; only tests of the page need it")
    output = attempt([path, "--version"], 10)
    if output.reason:
        remedy = AGAIN if output.late else "apt-get install --reinstall chromium"
        raise CheckFailed(output.reason, remedy, UNKNOWN if output.late else BROKEN)
    return output.text.strip()


def pytest_benchmark() -> str:
    if not (version := installed("pytest-benchmark")):
        raise CheckFailed("it is not installed", INSTALL)
    return f"{version}, with pytest {installed('pytest')}: make benchmark"


def slurm() -> str:
    missing = [name for name in ("sinfo", "sbatch") if shutil.which(name) is None]
    if missing:
        raise CheckFailed(
            f"there is no {' and no '.join(missing)}", "nothing on a laptop; on a cluster, log in where it is"
        )
    output = attempt(["sinfo", "--noheader", "--format=%P %D"], 5)
    if output.reason:
        raise CheckFailed(output.reason, "scontrol ping, and ask whoever runs the controller", BROKEN)
    return f"partitions and nodes: {', '.join(output.text.strip().splitlines()) or 'none'}"


def triton() -> str:
    if not (version := installed("triton")):
        raise CheckFailed("it is not installed", "nothing: no system here has kernels of its own")
    return version


def disk(folder: Path = REPORTS) -> str:
    from suite.core.units import si

    places = {place: shutil.disk_usage(place).free for place in (existing(folder), Path(tempfile.gettempdir()))}
    for place, free in places.items():
        if free < ROOM:
            raise CheckFailed(f"{place} has {si(free, 'B')} free", f"make room: {si(ROOM, 'B')} are enough", BROKEN)
    return ", ".join(f"{si(free, 'B')} free in {place}" for place, free in places.items())


def existing(path: Path) -> Path:
    """The path, or its nearest existing parent folder."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def reports(folder: Path = REPORTS) -> str:
    place = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            return f"{folder.absolute()} can be written"
    except OSError as error:
        raise CheckFailed(
            f"{place} cannot be written: {error.strerror}", "another folder: reports=FOLDER", BROKEN
        ) from error


CHECKS = (
    ComponentCheck("Python", python, needed=True),
    ComponentCheck("machine", cores, needed=True),
    ComponentCheck("packages", packages, needed=True),
    ComponentCheck("torch", torch, needed=True),
    ComponentCheck("gloo", gloo, needed=True),
    ComponentCheck("mpi4py", mpi4py, needed=True),
    ComponentCheck("mpiexec", mpiexec, needed=True),
    ComponentCheck("root, many ranks", root),
    ComponentCheck("kernel copies", kernel_copies),
    ComponentCheck("CUDA", cuda),
    ComponentCheck("NCCL", nccl),
    ComponentCheck("DeepSpeed", deepspeed),
    ComponentCheck("compiler", compiler),
    ComponentCheck("Triton", triton),
    ComponentCheck("Chromium", chromium),
    ComponentCheck("pytest-benchmark", pytest_benchmark),
    ComponentCheck("Slurm", slurm),
    ComponentCheck("disk", disk, needed=True),
    ComponentCheck("reports", reports, needed=True),
)


def checks(folder: Path) -> list[ComponentCheck]:
    """All checks, for this reports folder."""
    return [replace(c, run=partial(c.run, folder)) if c.run in (disk, reports) else c for c in CHECKS]
