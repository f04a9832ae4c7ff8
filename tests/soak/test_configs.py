"""A sample of random configurations, and detection of a planted fault.

`make soak` tries thousands, and kills sweeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from suite.core.record import Outcome, Record, Source
from tests.soak import composed, real
from tests.soak.composed import Tally

COUNT, SEED = 20, 20261123


def test_random_configs_are_refused_or_run_to_an_outcome(tmp_path: Path) -> None:
    tally = composed.many(COUNT, SEED, tmp_path)
    assert not tally.faults, composed.report(tally)
    assert tally.outcomes["ok"] >= COUNT // 10
    assert tally.outcomes["unsupported"] >= COUNT // 10


def test_seed_reproduces_the_same_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[str]] = []
    monkeypatch.setattr(composed, "one", lambda overrides, folder, tally: tried.append(overrides))
    composed.many(20, SEED, tmp_path)
    composed.many(20, SEED, tmp_path)
    composed.many(20, SEED + 1, tmp_path)
    assert tried[:20] == tried[20:40] != tried[40:]
    assert real.config(Random("1-2")) == real.config(Random("1-2"))


def record(outcome: Outcome = Outcome.OK, reason: str = "") -> Record:
    return Record("k", "e", "s", "l", outcome, Source.ANALYTIC, reason=reason)


@pytest.mark.parametrize(
    ("left", "fault"),
    [
        ([record()], ""),
        ([record(Outcome.UNSUPPORTED, "rule: one")], ""),
        (
            [record(Outcome.FAILED, 'Traceback\n  File "a/suite/x.py", line 3\nTypeError: no')],
            "outcome TypeError",
        ),
        ([record(Outcome.UNSUPPORTED, "one\ntwo")], "several lines"),
        (KeyError("size"), "KeyError at"),
        (SystemExit(3), "SystemExit at"),
    ],
)
def test_unexpected_endings_are_faults(left: Any, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def carried_out(overrides: Sequence[str], folder: Path) -> list[Record]:
        if isinstance(left, BaseException):
            raise left
        return list(left)

    monkeypatch.setattr(composed, "carried_out", carried_out)
    tally = Tally()
    composed.one(["a=1"], tmp_path, tally)
    kinds = list(tally.faults)
    assert bool(kinds) == bool(fault)
    assert not fault or kinds[0].startswith(fault)
    assert not fault or "FAULT (1 times)" in composed.report(tally)
