"""Reference implementation of an LSTM."""

from __future__ import annotations

import torch
from torch import nn


def gates(cell: nn.LSTM, x: torch.Tensor) -> torch.Tensor:
    """An LSTM by its published equations, token by token.

    Args:
        x: Inputs of shape (batch, sequence, input).

    Returns:
        Hidden states of shape (batch, sequence, hidden).
    """
    h = c = x.new_zeros(len(x), cell.hidden_size)
    outputs = []
    for position in range(x.shape[1]):
        gate_inputs = x[:, position] @ cell.weight_ih_l0.T + cell.bias_ih_l0 + h @ cell.weight_hh_l0.T + cell.bias_hh_l0
        input_gate, forget_gate, candidate, output_gate = gate_inputs.chunk(4, 1)
        c = torch.sigmoid(forget_gate) * c + torch.sigmoid(input_gate) * torch.tanh(candidate)
        h = torch.sigmoid(output_gate) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, 1)
