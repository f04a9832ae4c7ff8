"""Reference implementation of an LSTM."""

from __future__ import annotations

import torch
from torch import nn


def gates(cell: nn.LSTM, x: torch.Tensor) -> torch.Tensor:
    """An LSTM in the words of its paper, a token at a time: x [b, s, i] to [b, s, h]."""
    h = c = x.new_zeros(len(x), cell.hidden_size)
    made = []
    for at in range(x.shape[1]):
        all_four = x[:, at] @ cell.weight_ih_l0.T + cell.bias_ih_l0 + h @ cell.weight_hh_l0.T + cell.bias_hh_l0
        enter, forget, candidate, leave = all_four.chunk(4, 1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(candidate)
        h = torch.sigmoid(leave) * torch.tanh(c)
        made.append(h)
    return torch.stack(made, 1)
