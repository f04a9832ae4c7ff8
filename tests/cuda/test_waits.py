"""On a fake device: a batch runs without a tensor of another device, and the host waits for few numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.scripts import printed

pytestmark = pytest.mark.slow("set-up of 2.7 billion fake weights")
FLAG, NORM, LOSS = "read in /suite/engine/states/state.py", "copy in /suite/engine/optim/update.py", "flush.py"
CASES = {  # waits of one batch, in order
    "precision=full": [LOSS],
    "precision=bf16": [FLAG, LOSS],
    "precision=bf16 optimizer.clip_norm=1.0": [FLAG, NORM, LOSS],
    "precision=bf16 memory=offload optimizer.bucket_numel=100000": [FLAG, LOSS],
    "precision=bf16 memory=samo pruning=random": [FLAG, LOSS],
    "precision=bf16 memory=samo_offload pruning=random optimizer.bucket_numel=100000": [FLAG, LOSS],
    "precision=bf16 activation_checkpointing=1 optimizer=rmsprop": [FLAG, LOSS],
}


@pytest.fixture(scope="module")
def found() -> Any:
    return json.loads(printed("-m", "tests.cuda.program_waits", *CASES))


def test_the_host_draws_nothing_for_a_timing_run(found: Any) -> None:
    _, on_device, on_host = found
    assert on_device == {}
    assert sum(on_host.values()) > 2 * 78_000_000, "weights and mask of one block"


def test_the_host_waits_for_few_numbers(found: Any) -> None:
    for (case, expected), waits in zip(CASES.items(), found[0], strict=True):
        assert len(waits) == len(expected), (case, waits)
        assert all(part in wait for part, wait in zip(expected, waits, strict=True)), (case, waits)
