"""Ranks on two hosts, by two slurmds in networks of their own: found, met, heard, and the same bits as on one host."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.cli.run import run
from suite.config.compose import register
from suite.core.record import Outcome, Record
from tests.support.slurm_cluster import Cluster, cluster, two_hosts

ROOT = Path(__file__).resolve().parents[2]
SHORT = [
    *("measure.rounds=1", "measure.batches=2", "measure.warm_up=1", "measure.discard_first=0", "measure.eval_batches=2")
]
SHORT += ["launch.grace=30"]
GRID = ["grid.inter=2", "grid.data=2"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    register()
    with two_hosts() as two, cluster(two) as found:
        yield found


def batch(hosts: Cluster, folder: Path, *overrides: str) -> list[Record]:
    """The records of one command line, in a job on both hosts."""
    line = " ".join(f"'{part}'" for part in ("-m", "suite", "run", *overrides, f"reports={folder}"))
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\nexport PYTHONPATH={ROOT}\nexec {sys.executable} {line}\n")
    log = folder / "job.log"
    more = ["--nodes=2", "--ntasks-per-node=2", "--exclusive", f"--output={log}", f"--chdir={ROOT}", "--parsable"]
    job = hosts.run("sbatch", *more, str(script)).strip()
    hosts.until(lambda: not hosts.run("squeue", "-h", "-j", job).strip(), 120)
    files = (folder / "records").glob("*.json")
    found = [Record.read(file) for file in files]
    assert found, log.read_text()
    return found


@pytest.mark.exhaustive
def test_two_hosts_train_as_one_does(hosts: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)  # an earlier test's ranks were threads of this process
    launch = ["launch.launcher=srun", "launch.nodes=2"]
    (far,) = batch(hosts, tmp_path, *SHORT, *GRID, *launch)
    assert far.outcome is Outcome.OK, far.reason
    assert far.provenance["carrier"] == "gloo"
    here = tmp_path / "here"
    (near,) = run([*SHORT, *GRID, "launch=torchrun", f"reports={here}"])
    assert near.outcome is Outcome.OK, near.reason
    assert json.dumps(far.series) == json.dumps(near.series), "other bits than on one host"
    assert not any((tmp_path / "scratch").iterdir()), "what ranks read is left behind"


@pytest.mark.exhaustive
def test_a_rank_of_another_host_that_hangs_tells_where(hosts: Cluster, tmp_path: Path) -> None:
    faulty = ["system._target_=faulty.Faulty", "+system.fault=hang", f"launch.python_path=[{ROOT / 'tests/plugins'}]"]
    late = ["measure.deadline=5", "launch.heartbeat_interval=0.5", "measure.batches=4"]
    (record,) = batch(hosts, tmp_path, *SHORT, "grid.inter=2", *faulty, *late, "launch.launcher=srun", "launch.nodes=2")
    assert record.outcome is Outcome.TIMEOUT, record.reason
    assert f"on {hosts.hosts[1].name}:" in record.reason
    assert "faulty.py" in record.reason, "no stack of the stuck rank"
    assert "at batch 2" in record.reason
