"""A sample of random configurations, and detection of a planted fault.

`make soak` tries thousands, and kills sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from suite.core.record import Outcome, Record, Source
from tests.soak import composed, configs, real
from tests.soak.endings import report
from tests.soak.inputs import attempt

COUNT, SEED = 12, 14


def test_random_configs_are_refused_or_run_to_an_outcome(tmp_path: Path) -> None:
    endings = [ending for n in range(COUNT) for ending in attempt("configs", SEED, tmp_path, math.inf, n)]
    assert not any(ending.fault for ending in endings), report(endings)
    outcomes = [ending.outcome for ending in endings]
    assert min(outcomes.count("ok"), outcomes.count("unsupported")) >= COUNT // 10, report(endings)


def test_seed_reproduces_the_same_configs(tmp_path: Path) -> None:
    assert real.config(Random("1-2")) == real.config(Random("1-2"))
    first, again, other = ([configs.config(Random(f"{s}-{n}"), tmp_path) for n in range(9)] for s in (1, 1, 2))
    assert first == again != other


def record(outcome: Outcome = Outcome.OK, reason: str = "") -> Record:
    return Record("k", "e", "s", "l", outcome, Source.ANALYTIC, reason=reason)


@pytest.mark.parametrize(
    ("left", "fault"),
    [
        ([record()], ""),
        ([record(Outcome.UNSUPPORTED, "rule: one")], ""),
        (
            [record(Outcome.FAILED, 'Traceback\n  File "a/suite/x.py", line 3\nTypeError: no')],
            "failed with TypeError",
        ),
        ([record(Outcome.UNSUPPORTED, "one\ntwo")], "unsupported with two"),
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
    (ending,) = composed.endings(["a=1"], tmp_path)
    assert bool(ending.fault) == bool(fault)
    assert not fault or ending.outcome.startswith(fault)
    assert not fault or "FAULT (1 times)" in report([ending])
