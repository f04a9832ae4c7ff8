"""Checks of the components: one function each, which describes the working component or raises CheckFailed.

A check is here if its failure changes what a user does.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from suite.comm.rendezvous import mpiexec_flags
from suite.core.cores import cores
from suite.core.units import si
from suite.doctor.check import BROKEN, INSTALL, CheckFailed, ComponentCheck, output, two_ranks
from suite.runner import provenance

ROOM = 1e9  # bytes: a laptop's records, traces and page, several times over
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

_TORCH = """
import json, torch
from suite import accelerator
print(json.dumps([torch.__version__, torch.version.cuda, accelerator.names()]))
"""
_GLOO = """
import datetime, os, sys, torch, torch.distributed as dist
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=int(sys.argv[2]), world_size=2,
                        timeout=datetime.timedelta(seconds=10))
x = torch.ones(3)
dist.all_reduce(x)
assert x.tolist() == [2.0] * 3, f"1 + 1 is {x.tolist()}"
"""
_MPI = """
from mpi4py import MPI
if MPI.COMM_WORLD.allreduce(1) == 2 and MPI.COMM_WORLD.rank == 0:
    print(MPI.Get_library_version().strip("\\0 ").split("\\n")[0].split(",")[0])
"""


def machine() -> str:
    here, python = provenance.machine(), f"Python {platform.python_version()}"
    memory, load = si(here["memory_bytes"], "B"), os.getloadavg()[0]
    return f"{here['cores']} cores of {here['processor']}, {memory}, load {load:.1f}, {python}"


def torch() -> str:
    text = output([sys.executable, "-c", _TORCH], INSTALL)
    number, cuda, devices = json.loads(text.splitlines()[-1])
    if devices:
        return f"{number}, CUDA {cuda}, {len(devices)} x {devices[0]}"
    return f"{number}, runs use the CPU: " + ("torch sees no device" if cuda else "with a GPU, install a CUDA build")


def gloo() -> str:
    remedy = "GLOO_SOCKET_IFNAME=lo, or another interface of this machine"
    with tempfile.TemporaryDirectory() as folder:
        ranks = " & ".join(f'"$0" -c "$1" "$2" {rank}' for rank in (1, 0))
        output(["sh", "-c", ranks, sys.executable, _GLOO, str(Path(folder) / "store")], remedy)
    return "two ranks add"


def mpi() -> str:
    if not (library := two_ranks(_MPI).strip()):
        remedy = "keep one MPI: mpi4py's library and mpiexec must be of the same"
        raise CheckFailed("each of two ranks is alone: mpi4py and mpiexec are of different MPIs", remedy, BROKEN)
    return f"{library.splitlines()[-1]}, two ranks start and talk"


def many_ranks() -> str:
    who, most = "not root" if os.geteuid() else "root", cores()
    typed = f"{mpiexec_flags.command_line(most)}; more ranks: {mpiexec_flags.command_line(most + 1)}"
    return f"{who}, {most} cores; the suite's own runs start anyhow, and those on more ranks are marked; typed: {typed}"


def deepspeed() -> str:
    remedy = f"DS_BUILD_OPS=0 {INSTALL}"
    if find_spec("deepspeed") is None:
        raise CheckFailed("it is not installed", remedy)
    output([sys.executable, "-c", "import deepspeed"], remedy, environment={"DS_ACCELERATOR": "cpu"})
    return f"{version('deepspeed')} imports"


def find_chromium() -> str | None:
    """The Chromium program on the PATH; None without one."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def chromium() -> str:
    path = find_chromium()
    if path is None:
        raise CheckFailed("there is none on the PATH", "apt-get install chromium; only tests of the page need it")
    return output([path, "--version"], "apt-get install --reinstall chromium")


def slurm() -> str:
    if shutil.which("sinfo") is None:
        raise CheckFailed("there is no sinfo", "nothing on a laptop; on a cluster, log in where it is")
    text = output(["sinfo", "--noheader", "--format=%P %D"], "scontrol ping, and ask whoever runs the controller", 5)
    return f"partitions and nodes: {', '.join(text.strip().splitlines()) or 'none'}"


def reports(folder: Path) -> str:
    place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise CheckFailed(f"{place} cannot be written: {error.strerror}", "reports=FOLDER", BROKEN) from error
    free = {each: shutil.disk_usage(each).free for each in (place, Path(tempfile.gettempdir()))}
    full = min(free, key=lambda each: free[each])
    if free[full] < ROOM:
        raise CheckFailed(f"{full} has {si(free[full], 'B')} free", f"make room: {si(ROOM, 'B')} are enough", BROKEN)
    return f"{folder.absolute()} can be written, {si(free[place], 'B')} free"


def checks(folder: Path) -> list[ComponentCheck]:
    """All checks, for this reports folder."""
    return [
        ComponentCheck("machine", machine, needed=True),
        ComponentCheck("torch", torch, needed=True),
        ComponentCheck("gloo", gloo, needed=True),
        ComponentCheck("MPI", mpi, needed=True),
        ComponentCheck("root, many ranks", many_ranks),
        ComponentCheck("DeepSpeed", deepspeed),
        ComponentCheck("Chromium", chromium),
        ComponentCheck("Slurm", slurm),
        ComponentCheck("reports", partial(reports, folder), needed=True),
    ]
