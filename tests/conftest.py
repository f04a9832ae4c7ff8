"""Decides what every test starts from: one thread for torch, so that orders of summation are those of a rank.

No generated example has a deadline of Hypothesis's: its 200 ms of wall time pass while others have the core.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("shared cores", deadline=None)
settings.load_profile("shared cores")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
