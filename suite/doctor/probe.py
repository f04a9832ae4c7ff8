"""Probe a component that may hang, crash or be missing, in another process with a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from suite.core.values import Json
from suite.doctor.finding import INSTALL, CheckFailed

PATIENCE = 15.0  # seconds for one program: the doctor is done within 20
_running: set[subprocess.Popen[str]] = set()
_ending = threading.Event()  # no further program is started


class Said(NamedTuple):
    """Output of a program.

    Attributes:
        why: How it failed, empty if it did not.
        late: It exceeded the time limit.
    """

    text: str
    why: str = ""
    late: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """Its lines of JSON as one mapping; other output of libraries is ignored."""
        facts_by_name: dict[str, Json] = {}
        for line in self.text.splitlines():
            with suppress(ValueError):
                content = json.loads(line)
                facts_by_name |= content if isinstance(content, dict) else {}
        return facts_by_name


def attempt(line: Sequence[str], seconds: float | None = None, environment: Mapping[str, str] | None = None) -> Said:
    """Run a program, with more of an environment, for at most `seconds` (PATIENCE) and two more to end it."""
    patience = PATIENCE if seconds is None else seconds
    if _ending.is_set():
        return Said("", "the doctor was interrupted", late=True)
    try:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except OSError as error:
        return Said("", str(error))
    name = Path(line[0]).name
    _running.add(process)
    try:
        if _ending.is_set():  # since it was asked above
            _kill(process)
        said, complained = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return Said(_end(process), f"{name} was not done after {patience:g} s{load()}", late=True)
    except BaseException:  # Ctrl-C
        _end(process)
        raise
    finally:
        _running.discard(process)
    if process.returncode == 0:
        return Said(said)
    last = (complained.strip() or said.strip() or "it said nothing").splitlines()[-1]
    return Said(said, f"{name} ended with {process.returncode}: {last}")


def load() -> str:
    return f", load {os.getloadavg()[0]:.1f}"


def _end(process: subprocess.Popen[str]) -> str:
    """End a program and all that it started; what it had printed."""
    _kill(process)
    try:
        return process.communicate(timeout=2)[0]
    except subprocess.TimeoutExpired:
        return ""


def _kill(process: subprocess.Popen[str]) -> None:
    family: list[Any] = []
    with suppress(Exception):  # psutil itself may be what is missing
        import psutil

        family = [one for one in psutil.process_iter() if _session(one.pid) == process.pid]
    for member in (process, *family):
        with suppress(Exception):
            member.kill()


def _session(pid: int) -> int:
    """The session of a process, which its children keep when it is gone; 0 for no process."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def end_all() -> None:
    """End every program that is running, and start no further one: the doctor was interrupted."""
    _ending.set()
    end = time.monotonic() + 3
    while (running := list(_running)) and time.monotonic() < end:  # a program may start another one meanwhile
        for process in running:
            _kill(process)
        time.sleep(0.05)


class Once:
    """A probe that is made once, however many checks ask for it at the same time."""

    def __init__(self, look: Callable[[], Said]) -> None:
        self.look, self.lock = look, threading.Lock()
        self.said: Said | None = None

    def __call__(self) -> Said:
        with self.lock:
            if self.said is None:
                self.said = self.look()
            return self.said


_TORCH = """
import datetime, json, os, sys
import torch, torch.distributed as dist
rank = int(sys.argv[2])
def say(**facts):
    if rank == 0:
        print(json.dumps(facts), flush=True)
cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
here = dist.is_available()
say(torch=torch.__version__, built=torch.version.cuda, cuda=cuda, threads=torch.get_num_threads(),
    nccl=here and dist.is_nccl_available(), gloo=here and dist.is_gloo_available())
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
patience = datetime.timedelta(seconds=10)
try:
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2, timeout=patience)
    x = torch.ones(3)
    dist.all_reduce(x)
    say(sum=float(x[0]))
except Exception as error:
    say(gloo_error=f"{type(error).__name__}: {error}"[:200])
if rank == 0:
    try:
        import deepspeed
        say(deepspeed=deepspeed.__version__)
    except Exception as error:
        say(deepspeed_error=f"{type(error).__name__}: {error}"[:200])
"""


@Once
def torch_ranks() -> Said:
    """Report of torch, then the sum of two gloo ranks, then DeepSpeed: everything before a hang is kept."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        lines = [[sys.executable, "-c", _TORCH, str(Path(folder) / "store"), str(rank)] for rank in (0, 1)]
        try:
            return next(iter(pool.map(lambda line: attempt(line, environment={"DS_ACCELERATOR": "cpu"}), lines)))
        except (KeyboardInterrupt, SystemExit):  # else the pool waits for both programs
            end_all()
            raise


_MPI = """
import json, sys, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
library = MPI.Get_library_version().strip("\\0 ").split("\\n")[0].split(",")[0]
if comm.rank == 0:
    print(json.dumps(dict(library=library, size=comm.size)), flush=True)
if comm.size == 2:
    value, moved = bytearray(4 << 20), bytearray(1)
    comm.Barrier()
    if comm.rank == 0:
        request = comm.Isend(value, dest=1)
        time.sleep(1.2)  # and calls nothing of MPI's
        request.Wait()
        comm.Recv(moved, source=1)
        print(json.dumps(dict(moved=bool(moved[0]))), flush=True)
    else:
        request, end = comm.Irecv(value, source=0), time.monotonic() + 0.4
        while not moved[0] and time.monotonic() < end:
            moved[0] = request.Test()
            time.sleep(0.001)
        request.Wait()
        comm.Send(moved, dest=0)
"""


@Once
def mpi_ranks() -> Said:
    """Report of two ranks under mpiexec: library, size, and whether a large message moves while its sender sleeps."""
    from suite.comm.rendezvous.mpiexec_flags import find_mpiexec
    from suite.runner.launch.launch_command import binding_options, rank_environment

    mpiexec = find_mpiexec(None)
    if mpiexec is None:
        raise CheckFailed(
            "there is none beside this Python and none on the PATH", f"{INSTALL}, or load your cluster's MPI"
        )
    line = [mpiexec, "-n", "2", *binding_options(None), sys.executable, "-m", "mpi4py", "-c", _MPI]
    return attempt(line, environment=rank_environment(threads=1))
