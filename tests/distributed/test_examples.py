"""The scripts in examples/ run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.runner.launch.launch_command import rank_environment
from tests.support.ranks import ROOT
from tests.support.tools import needs

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PRINTED = {  # a line of each script's output
    "classify_images": "validation accuracy 1.00",
    "compare_bubbles": "OneFOneB       bubble 27%, live activations per stage (4, 3, 2, 1)",
    "finetune_gpt2": "60,096 weights, embeddings tied: True",
    "finetune_llama": "53,536 weights on 2 stages",
    "graph_volumes": "cagnet                 245,760 rows sent per product",
    "memory_layouts": "compressed    4.2 bytes per parameter on the device,   0.0 on the host",
    "own_schedule": "makespan 27, idle per stage 18",
    "pipeoptim_threads": "bit-equal to the replay: True",
    "plain_gpt": "validation ",
    "prune_and_compress": "150560 bytes of model states",
    "read_records": "pipeoptim 4x1               0.168951",
    "replay_asynchronous": "predicted weights  first loss",
    "samo_early_bird": "bytes of model states before, ",
    "simulate_cluster": "axonn_samo  8 stages: 14.9 s per batch, simulated",
    "train_gpt": "validation ",
    "train_two_stages": "loss ",
    "weight_versions": "stage 0 forward             0+3  0+3  0+3",
}
QUICK = {"compare_bubbles", "memory_layouts", "own_schedule", "weight_versions"}  # no torch


def test_every_example_is_listed() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(PRINTED)


@pytest.mark.parametrize(
    "path",
    [path if path.stem in QUICK else pytest.param(path, marks=pytest.mark.exhaustive) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_example_prints_its_result(path: Path, tmp_path: Path) -> None:
    line = [sys.executable, str(path)]
    if path.stem == "train_two_stages":
        needs("mpiexec")
        line = ["mpiexec", "-n", "2", sys.executable, "-m", "mpi4py", str(path)]
    env = rank_environment(1, [str(ROOT)])
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert PRINTED[path.stem] in done.stdout
