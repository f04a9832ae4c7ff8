"""On a fake device: a batch runs without a tensor of another device, and the host waits for few numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import patience

ROOT = Path(__file__).parents[2]
FLAG, NORM, LOSS = "read in /suite/engine/states/state.py", "copy in /suite/engine/optim/update.py", "step_runner.py"
CASES = {  # waits of one batch, in order
    "precision=full": [LOSS],
    "precision=bf16": [FLAG, LOSS],
    "precision=bf16 optimizer.clip_norm=1.0": [FLAG, NORM, LOSS],
    "precision=bf16 memory=offload optimizer.bucket_numel=100000": [FLAG, LOSS],
    "precision=bf16 memory=samo pruning=random": [FLAG, LOSS],
    "precision=bf16 memory=samo_offload pruning=random optimizer.bucket_numel=100000": [FLAG, LOSS],
    "precision=bf16 activation_checkpointing=1 optimizer=rmsprop": [FLAG, LOSS],
}


def test_the_host_waits_for_few_numbers() -> None:
    line = [sys.executable, "-m", "tests.cuda.program_waits", *CASES]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stderr
    for (case, expected), waits in zip(CASES.items(), json.loads(done.stdout), strict=True):
        assert len(waits) == len(expected), (case, waits)
        assert all(part in wait for part, wait in zip(expected, waits, strict=True)), (case, waits)
