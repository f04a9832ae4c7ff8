"""Search for an early-bird mask, prune nine tenths of the weights, and train with compressed states (SAMO)."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from suite import AdamW, EarlyBird, Engine, Grid, Pruning

SPARSITY, GRID = 0.9, Grid()


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))


def batches(count=60):
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(4, 16, generator=generator)
    labels = torch.randint(0, 4, (count, 32), generator=generator)
    return [(centres[row] + torch.randn(32, 16, generator=generator), row) for row in labels]


def main(grid=GRID, dtype=torch.float32):
    """Losses, updates before the pruning, bytes of model states before and after it, and the trained weights."""
    pruning = Pruning(EarlyBird(epoch=5, window=3), sparsity=SPARSITY)
    model = make_model().to(dtype)
    engine = Engine(model, loss=cross_entropy, optimizer=AdamW(lr=1e-2), microbatch=8, grid=grid, pruning=pruning)
    losses, dense = [], engine.state.model_states.layout.bytes()
    for inputs, labels in batches():
        losses.append(engine.train_batch((inputs.to(dtype), labels)))
    compressed = engine.state.model_states.layout.bytes()
    return losses, engine.state.pruned_after, (dense, compressed), engine.state_dict()


if __name__ == "__main__":
    losses, pruned_after, (dense, compressed), _ = main()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, pruned after {pruned_after} updates")
    print(f"{dense} bytes of model states before, {compressed} after")
