"""Train an asynchronous pipeline of four stages, each in a thread, with predicted weights (PipeOptim)."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from suite import SGD, Engine, Grid, OneFOneB, Predict, Replay


def make_layers():
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(2)]
    return [nn.Sequential(nn.Linear(8, 32), nn.Tanh()), *hidden, nn.Linear(32, 4)]


def batches(count=60):
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(4, 8, generator=generator)
    labels = torch.randint(0, 4, (count, 16), generator=generator)
    return [(centres[row] + torch.randn(16, 8, generator=generator), row) for row in labels]


def main(engine_of=Engine):
    """Losses of an engine or of its replay, which trains the same pipeline in one thread."""
    engine = engine_of(
        make_layers(),
        loss=cross_entropy,
        optimizer=SGD(lr=0.05, momentum=0.9),
        microbatch=4,
        grid=Grid(inter=4),
        schedule=OneFOneB(),
        weights=Predict(),
        update_interval=1,  # an update after every microbatch; the pipeline never drains
    )
    return list(engine.train(batches()))


if __name__ == "__main__":
    losses = main()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    print("bit-equal to the replay:", losses == main(Replay))
