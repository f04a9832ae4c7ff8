"""Laws 2 and 3 over real messages: each rank of one mpiexec checks itself and reports its result.

Started as `python -m mpi4py -m suite.conformance.mpi_worker JOB.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from suite.comm.rendezvous.mpiexec_flags import find_mpiexec
from suite.config.locate import locate, search
from suite.config.run import RunConfig
from suite.core.keys import in_config_keys
from suite.runner.launch.launch_command import binding_options, rank_environment
from suite.runner.launch.signals import run_program

DEADLINE = 120.0  # seconds


def check_ranks(ranks: int, jobs: Mapping[str, RunConfig]) -> str:
    """Law by law on ranks of mpiexec. Raises AssertionError with the report of the first rank that found a fault."""
    launch = next(iter(jobs.values())).launch
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({law: config.plain() for law, config in jobs.items()}))
        line = [str(find_mpiexec(launch.mpiexec)), "-n", str(ranks), *binding_options(launch.mpiexec)]
        line += [sys.executable, "-m", "mpi4py", "-m", "suite.conformance.mpi_worker", str(job)]
        try:
            done = run_program(line, seconds=DEADLINE, env=rank_environment(launch.threads, launch.python_path))
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{ranks} ranks were not done in {DEADLINE:g} s: they wait for one another") from late
        said = {rank: _said(job, rank) for rank in range(ranks)}
    for rank, answer in said.items():
        assert "broken" not in answer, f"rank {rank} of {ranks}: {answer['broken']}"
    assert done.returncode == 0, f"{ranks} ranks ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}"
    counts = [f"{sum(answer[law] for answer in said.values())} tensors ({law})" for law in jobs]
    return f"on {ranks} ranks over {said[0]['backend']}: {', '.join(counts)}, bit for bit"


def _answer(job: Path, rank: int) -> Path:
    return job.with_name(f"rank{rank}.json")


def _said(job: Path, rank: int) -> dict[str, Any]:
    path = _answer(job, rank)
    return dict(json.loads(path.read_text())) if path.exists() else {}


def main(job: Path) -> None:
    """Program of each rank."""
    from suite.comm import here
    from suite.conformance.fixtures import case_of
    from suite.conformance.gradients import check_system
    from suite.conformance.laws import _epochs, reason_of
    from suite.conformance.replays import check_replayed
    from suite.engine.process_setup import prepare

    prepare(1)
    jobs = {law: RunConfig.model_validate(data) for law, data in json.loads(job.read_text()).items()}
    config = jobs["gradients"]
    search(config.launch.python_path)
    system_class = locate(config.system.target)
    with in_config_keys():
        comm = config.comm
        world = here(
            transport=comm.transport, order=comm.order, inline=comm.eager_bytes, pair_exchange=comm.pair_exchange
        )
    report: dict[str, int | str] = {"backend": world.backend}
    try:
        case = case_of(config, system_class.makers(config, config.model.shape.build()))
        report["gradients"] = check_system(system_class, config, case, world)
        report["replay"] = check_replayed(system_class, jobs["replay"], _epochs(jobs["replay"]), world)
    except BaseException as error:
        _answer(job, world.rank).write_text(json.dumps({"broken": reason_of(error)}))
        raise
    _answer(job, world.rank).write_text(json.dumps(report))
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
