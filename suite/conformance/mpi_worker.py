"""Laws 2 and 3 over real messages: each rank of one mpiexec checks itself and reports its result.

The program is started as `python -m mpi4py -m suite.conformance.mpi_worker JOB.json`.
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
from suite.runner.launch.process_tree import run_program

DEADLINE = 120.0  # seconds


def check_ranks(ranks: int, jobs: Mapping[str, RunConfig]) -> str:
    """Check laws on ranks of mpiexec. Raises AssertionError with the report of the first rank that finds a fault.

    Args:
        ranks: Number of ranks.
        jobs: Config of each law.
    """
    launch = next(iter(jobs.values())).launch
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({law: config.plain() for law, config in jobs.items()}))
        command = [str(find_mpiexec(launch.mpiexec)), "-n", str(ranks), *binding_options(launch.mpiexec)]
        command += [sys.executable, "-m", "mpi4py", "-m", "suite.conformance.mpi_worker", str(job)]
        try:
            process = run_program(command, seconds=DEADLINE, env=rank_environment(launch.threads, launch.python_path))
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{ranks} ranks were not done in {DEADLINE:g} s: they wait for one another") from error
        reports = [_read_report(job, rank) for rank in range(ranks)]
    for rank, report in enumerate(reports):
        assert "broken" not in report, f"rank {rank} of {ranks}: {report['broken']}"
    output = (process.stdout + process.stderr)[-500:]
    assert process.returncode == 0, f"{ranks} ranks ended with {process.returncode}: {output}"
    counts = [f"{sum(report[law] for report in reports)} tensors ({law})" for law in jobs]
    return f"on {ranks} ranks over {reports[0]['backend']}: {', '.join(counts)}, bit for bit"


def _report_file(job: Path, rank: int) -> Path:
    return job.with_name(f"rank{rank}.json")


def _read_report(job: Path, rank: int) -> dict[str, Any]:
    path = _report_file(job, rank)
    return dict(json.loads(path.read_text())) if path.exists() else {}


def main(job: Path) -> None:
    """Check the jobs on this rank, and write its report next to the job file."""
    from suite.comm.world import init_world
    from suite.conformance.fixtures import case_of, epochs_of, reason_of
    from suite.conformance.gradients import check_system
    from suite.conformance.replays import check_replayed
    from suite.engine.process_setup import prepare

    prepare(1)
    jobs = {law: RunConfig.model_validate(data) for law, data in json.loads(job.read_text()).items()}
    config = jobs["gradients"]
    search(config.launch.python_path)
    system_class = locate(config.system.target)
    with in_config_keys():
        comm = config.comm
        world = init_world(
            transport=comm.transport, order=comm.order, eager_bytes=comm.eager_bytes, pair_exchange=comm.pair_exchange
        )
    report: dict[str, int | str] = {"backend": world.backend}
    try:
        case = case_of(config, system_class.layer_makers(config, config.model.shape.build()))
        report["gradients"] = check_system(system_class, config, case, world)
        report["replay"] = check_replayed(system_class, jobs["replay"], epochs_of(jobs["replay"]), world)
    except BaseException as error:
        _report_file(job, world.rank).write_text(json.dumps({"broken": reason_of(error)}))
        raise
    _report_file(job, world.rank).write_text(json.dumps(report))
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
