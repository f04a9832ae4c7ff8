"""Ranks on two hosts, under two slurmds in network namespaces of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.cli.run import run
from suite.config.compose import register
from suite.core.record import Outcome, Record
from tests.support.short import faulty, short
from tests.support.slurm_cluster import Cluster, cluster, two_hosts

ROOT = Path(__file__).resolve().parents[2]
SHORT = [*short(rounds=1, batches=2, evaluated=2), "launch.grace=30"]
GRID = ["grid.inter=2", "grid.data=2"]
TWO_NODES = ["launch.launcher=srun", "launch.nodes=2"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    register()
    with two_hosts() as hosts, cluster(hosts) as two_nodes:
        yield two_nodes


def run_on_both_hosts(hosts: Cluster, folder: Path, *overrides: str) -> list[Record]:
    """Records of a `suite run` command in one job on both hosts."""
    command = " ".join(f"'{part}'" for part in ("-m", "suite", "run", *overrides, f"reports={folder}"))
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\nexport PYTHONPATH={ROOT}\nexec {sys.executable} {command}\n")
    log = folder / "job.log"
    options = ["--nodes=2", "--ntasks-per-node=2", "--exclusive", f"--output={log}", f"--chdir={ROOT}", "--parsable"]
    job_id = hosts.run("sbatch", *options, str(script)).strip()
    hosts.until(lambda: not hosts.run("squeue", "-h", "-j", job_id).strip(), 120)
    records = [Record.read(file) for file in (folder / "records").glob("*.json")]
    assert records, log.read_text()
    return records


@pytest.mark.exhaustive
def test_two_hosts_train_bit_identically_to_one(
    hosts: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)  # rank threads of an earlier test may have set it
    (two_hosts_record,) = run_on_both_hosts(hosts, tmp_path, *SHORT, *GRID, *TWO_NODES)
    assert two_hosts_record.outcome is Outcome.OK, two_hosts_record.reason
    assert two_hosts_record.provenance["carrier"] == "gloo"
    (one_host_record,) = run([*SHORT, *GRID, "launch=torchrun", f"reports={tmp_path / 'one_host'}"])
    assert one_host_record.outcome is Outcome.OK, one_host_record.reason
    assert json.dumps(two_hosts_record.series) == json.dumps(one_host_record.series)
    assert not any((tmp_path / "scratch").iterdir()), "files of the ranks remain"


@pytest.mark.exhaustive
def test_hanging_rank_on_another_host_reports_its_stack(hosts: Cluster, tmp_path: Path) -> None:
    limits = ["measure.deadline=5", "launch.heartbeat_interval=0.5", "measure.batches=4"]
    (record,) = run_on_both_hosts(hosts, tmp_path, *SHORT, "grid.inter=2", *faulty("hang"), *limits, *TWO_NODES)
    assert record.outcome is Outcome.TIMEOUT, record.reason
    assert f"1 on {hosts.hosts[1].name} did not finish" in record.reason
    assert "faulty.py" in record.reason, "no stack of the hanging rank"
    assert "at batch 2" in record.reason
