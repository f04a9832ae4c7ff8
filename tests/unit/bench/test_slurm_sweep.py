"""A sweep given to Slurm, without Slurm: what is submitted, what is refused, and what a job's end leaves."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest
import slurm_cluster


def test_a_cluster_that_wants_root_is_a_skip_that_no_skip_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_cluster, "needs", lambda tool: tool)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with ExitStack() as stack, pytest.raises(pytest.skip.Exception, match=r"^slurm: "):
        stack.enter_context(slurm_cluster.cluster())
