"""What each rank runs for test_transports.py: a script that one rank leaves early, by an exception or an exit."""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import cross_entropy

from suite import AdamW, Engine, Grid

layers = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)]
engine = Engine(layers, loss=cross_entropy, optimizer=AdamW(lr=1e-2), microbatch=4, grid=Grid(inter=2))
engine.train_batch((torch.randn(8, 8), torch.zeros(8, dtype=torch.long)))
if engine.rank == 1:
    if sys.argv[1] == "raise":
        raise ValueError("a deliberate fault")
    sys.exit(3)
engine.train_batch((torch.randn(8, 8), torch.zeros(8, dtype=torch.long)))  # waits for a gradient that never comes
