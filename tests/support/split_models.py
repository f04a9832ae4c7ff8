"""Models that an engine splits into layers.

They stand apart from their tests, because pytest rewrites `assert` in test modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH, LENGTH = 11, 8, 5


class Block(nn.Module):
    """Causal attention and an MLP. Its forward has control flow that cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, bias: torch.Tensor | None = None) -> Any:
        query, key, value = self.mix(self.norm(x)).chunk(3, -1)
        if float(x.detach().sum()) > 1e9:
            raise ValueError("a value that no test has")
        scores = query @ key.transpose(-1, -2) / WIDTH**0.5
        if bias is not None:
            scores = scores + bias
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if mask is not None:
            visible = visible & mask[:, None]
        x = x + scores.masked_fill(~visible, -1e4).softmax(-1) @ value
        return x + self.mlp(x)


class NanoGPT(nn.Module):
    """GPT as in nanoGPT: positions from arange, a check of the length, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(WORDS, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList(Block() for _ in range(4)),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> tuple[torch.Tensor, Any]:
        _, t = idx.size()
        assert t <= LENGTH, f"{t} tokens"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        return logits, None if targets is None else F.cross_entropy(logits.view(-1, WORDS), targets.view(-1))


class Masked(nn.Module):
    """Blocks with a mask and a bias that the root computes, and a head that uses the embedding's matrix directly."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.position = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.register_buffer("distance", torch.arange(LENGTH).view(1, -1) - torch.arange(LENGTH).view(-1, 1))
        self.slope = nn.Linear(1, 1, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        count = tokens.size(1)
        mask = tokens != 0
        bias = self.slope(self.distance[:count, :count, None].to(self.position.dtype)).squeeze(-1)
        x = self.table(tokens) + self.position[:count]
        for block in self.blocks:
            x = block(x, mask, bias=bias)
        kept = torch.where(mask[..., None], x, torch.zeros(x.shape[0], count, WIDTH, dtype=x.dtype))
        return F.linear(kept, self.table.weight)


class Named(nn.Module):
    """Inputs and outputs by name. The mask has a default, and `scale` keeps its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, WIDTH)
        self.encoder = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)))
        self.leave = nn.Linear(WIDTH, 4)

    def forward(self, features: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2.0) -> dict[str, Any]:
        hidden = self.encoder(self.enter(features))
        if mask is not None:
            hidden = hidden * mask
        return {"logits": scale * self.leave(hidden), "parts": [hidden, (hidden.mean(-1), None)]}


@dataclass
class Prediction:
    """Output of a model; `extra` is no tensor."""

    logits: torch.Tensor
    energy: torch.Tensor | None = None
    extra: str = "none"


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Recorded(nn.Module):
    """Dataclass as output, and a tuple of a block whose entries are read after later blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.blocks = Halves(), nn.ModuleList(Halves() for _ in range(4))

    def forward(self, x: torch.Tensor) -> Prediction:
        energy = x.new_zeros(x.shape[0], 1)
        start = self.start(x)
        for block in self.blocks:
            halves = block(x)
            energy = energy + halves.second.sum(-1, keepdim=True)
            x = torch.cat([halves[0], halves[1]], -1)
        return Prediction(x + torch.cat([start[0], start.second], -1), energy=energy)


class Paired(nn.Module):
    """Blocks that take the tuple of the block before, and a tuple without weights that every block takes."""

    def __init__(self) -> None:
        super().__init__()
        self.angles, self.blocks = Angles(), nn.ModuleList(Turn() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles, halves = self.angles(x), (x[:, :2], x[:, 2:])
        for block in self.blocks:
            halves = block(halves, angles)
        return torch.cat((halves[0], halves[1]), -1)


class Angles(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(2, dtype=x.dtype)[None]
        return positions.cos(), positions.sin()


class Turn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(2, 2)

    def forward(self, halves: Any, angles: Any) -> tuple[torch.Tensor, torch.Tensor]:
        (first, second), (cos, sin) = halves, angles
        return (self.mix(first) * cos - second * sin).tanh(), first * sin + second * cos


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(*self.mix(x).tanh().chunk(2, -1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.norm(self.conv(x)), inplace=True)


class ResNet(nn.Module):
    """Stem, nn.Sequential of blocks and head, with operations in place between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True)
        self.features = nn.Sequential(*(Residual() for _ in range(4)))
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        skip = 2.0 * x
        x = self.features(self.relu(x))
        skip.add_(x)
        x = skip
        return self.fc(torch.flatten(x.mean((-1, -2)), 1))


class UNet(nn.Module):
    """Skip connections, and a size of the input that the end uses."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(
            [nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)]
        )
        self.up = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.steps[0](x).tanh()
        second = self.steps[1](F.avg_pool2d(first, 2)).tanh()
        deep = self.steps[2](F.avg_pool2d(second, 2)).tanh()
        y = torch.cat([second, F.interpolate(deep, size=second.shape[-2:])], 1)
        y = self.up[0](y).tanh() * second.mean((1, 2, 3), keepdim=True) + second
        y = self.up[1](torch.cat([first, F.interpolate(y, size=(x.shape[-2], x.size(3)))], 1)) + first * first
        return y.mean((-1, -2)) / x.shape[1]
