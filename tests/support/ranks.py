"""Functions on real ranks: on MPI ranks that run one after the other, or on new ranks of mpiexec or torchrun.

    def total(world: World, addend: float) -> float:
        return world.all_reduce_numbers([addend], "sum", lambda: None)[0]

    assert on_ranks(2, total, 1.5, transport="gloo") == [3.0, 3.0]

The MPI ranks of a size start once per process, so that torch is imported once. They wait for the next function without
MPI and so use no core. Ranks that fail or exceed their time are replaced. Functions that measure time or depend on
loaded modules name a launcher, which starts new ranks. Messages of the lasting ranks move as on a network
(`without_single_copy`).
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from suite.runner.launch.launch_command import binding_options, rank_environment
from tests.support.tools import needs
from tests.support.waiting import patience

ROOT = Path(__file__).resolve().parents[2]
POLL = 0.01  # seconds between two polls of the folder, about 1 % of a function's time
_NOT_STARTED = "listener thread failed to start"  # of mpiexec, before any rank


def without_single_copy() -> dict[str, str]:
    """Open MPI without kernel-assisted copies: messages move only while somebody calls MPI, as on a network."""
    return {"OMPI_MCA_smsc": "^cma,xpmem,knem"}


def rank_command(ranks: int, program: Path, *arguments: str, launcher: str = "mpiexec") -> list[str]:
    """The command line of ranks that run a program."""
    if launcher == "torchrun":
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    else:
        line = [needs("mpiexec"), "-n", str(ranks), *binding_options(None), sys.executable, "-m", "mpi4py"]
    return [*line, str(program), *arguments]


def run_ranks(
    ranks: int,
    program: Path,
    *arguments: str,
    launcher: str = "mpiexec",
    deadline: float = 120,
    extra: dict[str, str] | None = None,
    again: int = 2,
) -> str:
    """Standard output of `program` under mpiexec or torchrun; an AssertionError with everything it said if it fails or
    is late. `deadline` counts seconds of an idle machine."""
    line, env = rank_command(ranks, program, *arguments, launcher=launcher), rank_environment(1, [str(ROOT)])
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, env=env | (extra or {}), timeout=patience(deadline), check=False
        )
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"")[-2000:], (late.stderr or b"")[-2000:]
        raise AssertionError(f"{ranks} ranks of {program.name} were not done in {deadline} s\n{said}") from late
    if again and _NOT_STARTED in done.stdout + done.stderr:  # a busy machine exceeds Open MPI's own limits of time
        return run_ranks(ranks, program, *arguments, launcher=launcher, deadline=deadline, extra=extra, again=again - 1)
    assert done.returncode == 0, f"{program.name} on {ranks} ranks: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def on_new_ranks(
    ranks: int,
    function: Callable[..., Any],
    *arguments: object,
    launcher: str = "mpiexec",
    deadline: float = 120,
    extra: dict[str, str] | None = None,
    **settings: object,
) -> list[Any]:
    """Return values of `function(world, *arguments)` by rank, from ranks that start for it and may print nothing.

    Args:
        ranks: Number of ranks.
        function: Function of a module.
        launcher: mpiexec or torchrun.
        deadline: Seconds of an idle machine.
        extra: Further environment variables of the ranks.
        settings: Arguments of `init_world`; the transport `ordered` has NCCL's channels and static order, on gloo.

    Raises:
        AssertionError: With the output of the ranks, if one fails or is late.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        (Path(folder) / "call1").write_bytes(pickle.dumps((function, arguments, settings)))
        said = run_ranks(ranks, Path(__file__), folder, launcher=launcher, deadline=deadline, extra=extra)
        assert not said, f"a rank prints: {said}"
        return [pickle.loads((Path(folder) / f"answer1-{rank}").read_bytes()) for rank in range(ranks)]


def on_ranks(
    ranks: int,
    function: Callable[..., Any],
    *arguments: object,
    launcher: str = "",
    deadline: float = 120,
    **settings: object,
) -> list[Any]:
    """Like `on_new_ranks`, on ranks that may have run other functions, unless a launcher is named."""
    if launcher:
        return on_new_ranks(ranks, function, *arguments, launcher=launcher, deadline=deadline, **settings)
    up = _up(ranks)
    if not up:
        up.append(Ranks(ranks))
    try:
        return up[0].run(pickle.dumps((function, arguments, settings)), function.__name__, deadline)
    except BaseException:
        up.pop().end()
        raise


@cache
def _up(size: int) -> list[Ranks]:
    """The ranks of that size: one entry, or none before the first start and after an end."""
    return []


class Ranks:
    """Ranks of one mpiexec, and the folder through which they receive functions."""

    def __init__(self, size: int) -> None:
        self.size, self.calls = size, 0
        self.folder = Path(tempfile.mkdtemp(prefix="persistent-ranks-"))
        self.log = self.folder / "log"
        line = rank_command(size, Path(__file__), str(self.folder), str(os.getpid()))
        env = rank_environment(1, [str(ROOT)]) | without_single_copy()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env
            )
        atexit.register(self.end)

    def run(self, call: bytes, name: str, deadline: float) -> list[Any]:
        before, late = self.log.stat().st_size, time.monotonic() + patience(deadline)
        self.calls += 1
        _whole(self.folder / f"call{self.calls}", call)
        answers = [self.folder / f"answer{self.calls}-{rank}" for rank in range(self.size)]
        while not all(answer.exists() for answer in answers):
            ended, missed = self.process.poll() is not None, time.monotonic() > late
            if ended or missed:
                said = self.log.read_bytes()[before:].decode(errors="replace")
                how = "ended early" if ended else f"were not done in {deadline} s"
                raise AssertionError(f"{self.size} ranks of {name} {how}\n{said}")
            time.sleep(POLL)
        return [pickle.loads(answer.read_bytes()) for answer in answers]

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


def _whole(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(content)
    partial.rename(path)


# -- on a rank ---------------------------------------------------------------------------------------------------------


def _answer(folder: Path, number: int) -> None:
    """Run one function, and write what it returns."""
    from suite.comm.collective.process_group import TorchWorld
    from suite.comm.rendezvous.launcher_env import launch_info
    from suite.comm.world import connect_ranks, create_world, init_world
    from suite.engine.process_setup import prepare

    function, arguments, settings = pickle.loads((folder / f"call{number}").read_bytes())
    prepare(1)
    create_world.cache_clear()  # the function before has closed its world
    if settings.get("transport") == "ordered":
        world: Any = TorchWorld(launch_info(), connect_ranks(launch_info()), **settings | {"transport": "nccl"})
    else:
        world = init_world(**settings)
    value = function(world, *arguments)
    world.close()
    _whole(folder / f"answer{number}-{launch_info().rank}", pickle.dumps(value))


def serve(folder: Path, parent: int) -> None:
    """Run one function after the other, until the parent closes."""
    number = 1
    while _alive(parent):
        if not (folder / f"call{number}").exists():
            time.sleep(POLL)
            continue
        _answer(folder, number)
        gc.collect()
        number += 1


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        _answer(Path(sys.argv[1]), 1)
