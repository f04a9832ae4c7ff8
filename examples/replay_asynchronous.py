"""Train an asynchronous pipeline of four stages in one process: predicted weights against stale ones (PipeOptim)."""

import torch
from torch.nn.functional import cross_entropy

from suite import SGD, Grid, OneFOneB, Predict, Replay

torch.manual_seed(0)
layers = [torch.nn.Linear(8, 32), *(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(32, 32)) for _ in range(2))]
layers.append(torch.nn.Linear(32, 4))
samples, labels = torch.randn(64, 8), torch.randint(0, 4, (64,))
batches = [(samples, labels)] * 2  # 16 microbatches each, with an update after every microbatch

for name, policy in (("stale weights", None), ("predicted weights", Predict())):
    replay = Replay(
        layers,
        grid=Grid(inter=4),
        loss=cross_entropy,
        optimizer=SGD(lr=0.02, momentum=0.9),
        microbatch=4,
        schedule=OneFOneB(),
        weights=policy,
        update_interval=1,
    )
    losses = list(replay.train(batches))
    print(f"{name:<18} first loss {losses[0]:.3f}, last {losses[-1]:.3f}")
