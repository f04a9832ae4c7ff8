"""Train a small GPT on bytes of Python code, on two pipeline stages. `plain_gpt.py` is the same in plain PyTorch."""

import argparse
import inspect
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from suite import Engine, Grid

WIDTH, HEADS, BLOCKS, LENGTH, VOCABULARY, BATCH = 32, 4, 4, 32, 256, 16
TEXT = torch.tensor(list(inspect.getsource(argparse).encode()))
CHECKPOINTS = Path("gpt_checkpoints")
GRID = Grid(inter=2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        samples, length, _ = x.shape
        heads = self.qkv(self.norm_1(x)).view(samples, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attention = scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.project(attention.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(logits, targets):
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(model):
    """Matrices decay, vectors do not."""
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    vectors = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))


def make_scheduler(optimizer):
    """Warm-up over 10 updates, then half a cosine."""
    rate = lambda update: min((update + 1) / 10, 0.5 * (1 + math.cos(math.pi * update / 200)))  # noqa: E731
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def batch_of(step):
    starts = torch.randint(len(TEXT) - LENGTH - 1, (BATCH,), generator=torch.Generator().manual_seed(step))
    rows = torch.stack([TEXT[start : start + LENGTH + 1] for start in starts])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def main(steps=60, dtype=torch.float32, folder=CHECKPOINTS, grid=GRID):
    torch.manual_seed(0)
    model, losses = GPT().to(dtype), []
    training = {"optimizer": make_optimizer, "lr_scheduler": make_scheduler, "clip_norm": 1.0}
    engine = Engine(model, loss=loss_of, microbatch=4, grid=grid, **training)
    first = engine.load(folder).updates if folder.exists() else 0
    for step in range(first, steps):
        losses.append(engine.train_batch(batch_of(step)))
    validation = engine.evaluate(map(batch_of, (1000, 1001)))
    text = torch.tensor([list(b"def main(")])
    for _ in range(20):
        logits = engine.predict(text[:, -LENGTH:])
        text = torch.cat([text, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    engine.save(folder)
    engine.close()
    return losses, validation, bytes(text[0].tolist())


if __name__ == "__main__":
    losses, validation, text = main()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, validation {validation:.3f}")
    print(text.decode(errors="replace"))
