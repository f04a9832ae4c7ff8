"""Simulate SAMO on 512 V100s of Summit: batch time of GPT-3 13B with and without compressed states."""

import tempfile

from suite.cli.run import run

CLUSTER = ["executor=simulated", "machine=summit", "efficiency=summit"]
PLAN = [*CLUSTER, "model=gpt3_13b", "batch.size=2048", "batch.microbatch=1"]

with tempfile.TemporaryDirectory() as reports:
    for system, inter in (("axonn", 32), ("axonn_samo", 8)):
        grid = [f"grid.inter={inter}", f"grid.data={512 // inter}"]
        (record,) = run([*PLAN, f"system={system}", *grid, f"reports={reports}"])
        (seconds,) = record.metrics["batch_time"].values
        print(f"{system:<10} {inter:>2} stages: {seconds:.1f} s per batch, {record.source}")
