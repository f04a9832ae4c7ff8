"""Decides what every test starts from: one thread for torch, so that orders of summation are those of a rank."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
