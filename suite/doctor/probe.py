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

PATIENCE = 15.0  # seconds for one program, so that the doctor ends within 20
_running: set[subprocess.Popen[str]] = set()
_ending = threading.Event()  # once set, no further program starts


class ProbeOutput(NamedTuple):
    """Output of a program.

    Attributes:
        text: Standard output.
        reason: Reason of a failure; empty after success.
        late: Whether the program exceeded its time limit.
    """

    text: str
    reason: str = ""
    late: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """The lines of JSON as one mapping. Other output, which libraries print, is ignored."""
        facts_by_name: dict[str, Json] = {}
        for line in self.text.splitlines():
            with suppress(ValueError):
                content = json.loads(line)
                facts_by_name |= content if isinstance(content, dict) else {}
        return facts_by_name


def attempt(
    line: Sequence[str], seconds: float | None = None, environment: Mapping[str, str] | None = None
) -> ProbeOutput:
    """Run a program for at most `seconds` (default PATIENCE), and two more to end it.

    Args:
        line: Command line.
        seconds: Time limit.
        environment: Variables in addition to those of this process.
    """
    patience = PATIENCE if seconds is None else seconds
    if _ending.is_set():
        return ProbeOutput("", "the doctor was interrupted", late=True)
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
        return ProbeOutput("", str(error))
    name = Path(line[0]).name
    _running.add(process)
    try:
        if _ending.is_set():  # set since the test above
            _kill(process)
        output, errors = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return ProbeOutput(_end(process), f"{name} was not done after {patience:g} s{load()}", late=True)
    except BaseException:  # Ctrl-C
        _end(process)
        raise
    finally:
        _running.discard(process)
    if process.returncode == 0:
        return ProbeOutput(output)
    last = (errors.strip() or output.strip() or "it printed nothing").splitlines()[-1]
    return ProbeOutput(output, f"{name} ended with {process.returncode}: {last}")


def load() -> str:
    return f", load {os.getloadavg()[0]:.1f}"


def _end(process: subprocess.Popen[str]) -> str:
    """End a program and its children. Returns its output so far."""
    _kill(process)
    try:
        return process.communicate(timeout=2)[0]
    except subprocess.TimeoutExpired:
        return ""


def _kill(process: subprocess.Popen[str]) -> None:
    family: list[Any] = []
    with suppress(Exception):  # psutil itself may be missing
        import psutil

        family = [other for other in psutil.process_iter() if _session(other.pid) == process.pid]
    for member in (process, *family):
        with suppress(Exception):
            member.kill()


def _session(pid: int) -> int:
    """Session of a process, which its children keep after its end; 0 if there is no such process."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def end_all() -> None:
    """End all running programs and start no further one, after an interrupt."""
    _ending.set()
    end = time.monotonic() + 3
    while (running := list(_running)) and time.monotonic() < end:  # a program may start another in between
        for process in running:
            _kill(process)
        time.sleep(0.05)


class RunOnce:
    """A probe that runs once, even if several checks request it at the same time."""

    def __init__(self, probe: Callable[[], ProbeOutput]) -> None:
        self.probe, self.lock = probe, threading.Lock()
        self.output: ProbeOutput | None = None

    def __call__(self) -> ProbeOutput:
        with self.lock:
            if self.output is None:
                self.output = self.probe()
            return self.output


_TORCH = """
import datetime, json, os, sys
import torch, torch.distributed as dist
from suite import accelerator
rank = int(sys.argv[2])
def say(**facts):
    if rank == 0:
        print(json.dumps(facts), flush=True)
cuda = accelerator.names()
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


@RunOnce
def torch_ranks() -> ProbeOutput:
    """Reports of torch, of a sum over two gloo ranks, and of DeepSpeed, up to a failure or a hang."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        lines = [[sys.executable, "-c", _TORCH, str(Path(folder) / "store"), str(rank)] for rank in (0, 1)]
        try:
            return next(iter(pool.map(lambda line: attempt(line, environment={"DS_ACCELERATOR": "cpu"}), lines)))
        except (KeyboardInterrupt, SystemExit):  # otherwise the pool would wait for both programs
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


@RunOnce
def mpi_ranks() -> ProbeOutput:
    """Report of two ranks under mpiexec: library, size, and whether a large message moves while the sender sleeps."""
    from suite.comm.rendezvous.mpiexec_flags import find_mpiexec
    from suite.runner.launch.launch_command import binding_options, rank_environment

    mpiexec = find_mpiexec(None)
    if mpiexec is None:
        raise CheckFailed(
            "there is none next to this Python and none on the PATH", f"{INSTALL}, or load your cluster's MPI"
        )
    line = [mpiexec, "-n", "2", *binding_options(None), sys.executable, "-m", "mpi4py", "-c", _MPI]
    return attempt(line, environment=rank_environment(threads=1))
