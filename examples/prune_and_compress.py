"""Prune nine tenths of a network and train it with compressed model states (SAMO)."""

import torch
from torch.nn.functional import mse_loss

from suite import AdamW, Engine, Magnitude, Pruning

for pruning in (None, Pruning(Magnitude(), sparsity=0.9)):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)]
    samples = torch.randn(64, 64)
    engine = Engine(layers, loss=mse_loss, optimizer=AdamW(lr=1e-2), microbatch=16, half="bfloat16", pruning=pruning)
    losses = list(engine.train([(samples, samples)] * 20))
    kind, layout = "pruned" if pruning else "dense", engine.state.model_states.layout
    print(f"{kind:<7} {layout.bytes():>7} bytes of model states, loss {losses[0]:.3f} to {losses[-1]:.3f}")
