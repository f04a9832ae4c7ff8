"""Batches on real ranks: drawn as in a plain PyTorch loop, and rejected on every rank if they differ."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import ROOT

PROGRAM = ROOT / "tests" / "distributed" / "program_batches.py"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "transport"),
    [
        (2, "mpi"),
        (2, "gloo"),
        (2, "ordered"),
        pytest.param(4, "mpi", marks=pytest.mark.exhaustive),
        pytest.param(4, "gloo", marks=pytest.mark.exhaustive),
    ],
)
def test_ranks_draw_like_plain_pytorch_and_report_differences(ranks: int, transport: str) -> None:
    reports: list[dict[str, Any]] = [
        json.loads(line) for line in run_persistent(ranks, PROGRAM, transport).splitlines()
    ]
    assert len(reports) == ranks
    right = reports[0].pop("plain")
    assert set(reports[0]) == {f"{ranks}x1", f"{ranks // 2}x2"}
    last = ranks - 1
    for rank in reports:
        for grid in (g for g in rank if g != "plain"):
            for mode in ("flush", "dropout", "stream"):
                assert rank[grid][mode]["drawn"] == right["drawn"], (grid, mode)
                assert rank[grid][mode]["after"] == right["after"], (grid, mode)
                assert rank[grid][mode]["losses"] == reports[0][grid][mode]["losses"]
            assert rank[grid]["flush"]["losses"] == pytest.approx(right["losses"], rel=1e-5)
            errors = rank[grid]["errors"]
            assert errors["contents"] == f"batch 1 has other contents on rank {last} than on rank 0"
            where = f"on rank {last} than on rank 0"
            assert errors["shorter stream"] == f"a stream has other sizes or types {where}"
            assert errors["stream"] == f"one of the batches 1 to 6 has other contents {where}"
