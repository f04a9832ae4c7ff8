"""Decides what a sweep's exit status says of its jobs, and what is said of a job that died."""

from __future__ import annotations

import pytest

from suite.core.exits import Exit
from suite.core.record import Outcome
from suite.sweep import asks_hydra, ended, together


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], Exit.NOTHING),
        ([0, 0], Exit.OK),
        ([2, 2], Exit.NOTHING),
        ([0, 2], Exit.SOME_FAILED),
        ([0, 1], Exit.SOME_FAILED),
        ([1, 1], Exit.SOME_FAILED),
        ([0, 3, 3], Exit.STOPPED),
        ([1, 2, 3], Exit.STOPPED),
    ],
)
def test_some_failed_is_not_nothing_measured(codes: list[int], expected: Exit) -> None:
    assert together(codes) == expected


@pytest.mark.parametrize(
    ("status", "outcome", "words"),
    [
        (-9, Outcome.LOST_RANK, "SIGKILL (the kernel's out-of-memory killer sends it)"),
        (137, Outcome.LOST_RANK, "SIGKILL"),  # as a shell tells it
        (-11, Outcome.LOST_RANK, "SIGSEGV"),
        (-15, Outcome.CANCELLED, "SIGTERM"),
        (143, Outcome.CANCELLED, "SIGTERM"),
        (130, Outcome.CANCELLED, "SIGINT"),
        (77, Outcome.FAILED, "status 77"),
        (255, Outcome.FAILED, "status 255"),
    ],
)
def test_how_a_job_died_is_said(status: int, outcome: Outcome, words: str) -> None:
    found, reason = ended(status)
    assert found is outcome
    assert words in reason


def test_only_hydras_flags_are_hydras() -> None:
    assert asks_hydra(["seed=1,2", "-m"])
    assert asks_hydra(["--cfg", "job"])
    assert not asks_hydra(["seed=1", "tag=-m-", "--dry-run"])
