"""Train three layers on a pipeline of two ranks: mpiexec -n 2 python -m mpi4py examples/train_two_stages.py"""

import torch
from torch.nn.functional import cross_entropy

from suite import AdamW, Engine, Grid

torch.manual_seed(0)  # every rank draws the same batches
layers = [torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)]
batches = [(torch.randn(32, 8), torch.randint(0, 4, (32,))) for _ in range(3)]
engine = Engine(layers, loss=cross_entropy, optimizer=AdamW(lr=1e-2), microbatch=4, grid=Grid(inter=2))
for loss in engine.train(batches):
    print(f"loss {loss:.4f}")
