"""Persistent MPI ranks that run several programs, so that torch is imported once.

    run_persistent(2, program, "argument")    # like run_ranks under mpiexec, on ranks that may have run other programs

Each rank waits for the next program without MPI and so uses no core. It runs the program as its main module and writes
the output to a file. Ranks that fail or exceed their time are replaced. Programs that end their process, measure time
or inspect loaded modules use run_ranks instead. MPI moves messages as on a network (`without_single_copy`).
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

POLL = 0.01  # seconds between two polls of the folder, about 1 % of a program's time


class Ranks:
    """Ranks of one mpiexec, and the folder through which they receive programs."""

    def __init__(self, size: int) -> None:
        from suite.runner.launch.launch_command import binding_options, rank_environment
        from tests.support.ranks import ROOT, without_single_copy
        from tests.support.tools import needs

        self.size, self.asked = size, 0
        self.folder = Path(tempfile.mkdtemp(prefix="persistent-ranks-"))
        self.log = self.folder / "log"
        env = rank_environment(1, [str(ROOT)]) | without_single_copy()
        line = [needs("mpiexec"), "-n", str(size), *binding_options(None), sys.executable, "-m", "mpi4py", __file__]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*line, str(self.folder), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
            )
        atexit.register(self.end)

    def run(self, program: Path, arguments: tuple[str, ...], deadline: float) -> str:
        """Output of all ranks, by rank."""
        from tests.support.waiting import patience

        before, late = self.log.stat().st_size, time.monotonic() + patience(deadline)
        self.asked += 1
        _whole(self.folder / f"ask{self.asked}", json.dumps([str(program), *arguments]))
        answers = [self.folder / f"said{self.asked} {rank}" for rank in range(self.size)]
        while not all(answer.exists() for answer in answers):
            ended, missed = self.process.poll() is not None, time.monotonic() > late
            if ended or missed:
                said = self.log.read_bytes()[before:].decode(errors="replace")
                how = "ended early" if ended else f"were not done in {deadline} s"
                raise AssertionError(f"{self.size} ranks of {program.name} {how}\n{said}")
            time.sleep(POLL)
        return "".join(answer.read_text() for answer in answers)

    def end(self) -> None:
        atexit.unregister(self.end)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def _up(size: int) -> list[Ranks]:
    """The ranks of that size: one entry, or none before the first start and after an end."""
    return []


def run_persistent(ranks: int, program: Path, *arguments: str, deadline: float = 120) -> str:
    """Standard output of `program` on ranks of mpiexec; an AssertionError with everything it said if it fails or is
    late."""
    up = _up(ranks)
    if not up:
        up.append(Ranks(ranks))
    try:
        return up[0].run(program, arguments, deadline)
    except BaseException:
        up.pop().end()
        raise


def _whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text(text)
    partial.rename(path)


def serve(folder: Path, parent: int) -> None:
    """On a rank: one program after the other, until the parent closes."""
    from mpi4py import MPI

    from suite.comm.world import create_world

    rank, number = MPI.COMM_WORLD.Get_rank(), 1
    while _alive(parent):
        ask = folder / f"ask{number}"
        if not ask.exists():
            time.sleep(POLL)
            continue
        sys.argv = json.loads(ask.read_text())
        create_world.cache_clear()  # the program before has closed its world
        with redirect_stdout(StringIO()) as said:
            runpy.run_path(sys.argv[0], run_name="__main__")
        gc.collect()
        _whole(folder / f"said{number} {rank}", said.getvalue())
        number += 1


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
