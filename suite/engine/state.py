"""Decides the tensors behind memory.layout: one allocation per state, of exactly the layout's bytes.

Weights stay the layers' own tensors (a product's last bits depend on their alignment). Gradients are views into one
flat tensor, so that a reduction is one message and the optimizer one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from suite.core.errors import Refused
from suite.engine.optimizer import RuleState
from suite.memory.layout import Layout

LayoutOf = Callable[..., Layout]


class ModelState:
    """The model states of one stage: `parameters` in order, their gradients, the rule's moments."""

    def __init__(self, parameters: Iterable[nn.Parameter], moments: Sequence[str], layout: LayoutOf) -> None:
        self.parameters = list(parameters)
        dtypes = {parameter.dtype for parameter in self.parameters}
        if len(dtypes) > 1:
            raise Refused(f"weights of {', '.join(sorted(map(str, dtypes)))}", rule="one dtype per stage")
        self.dtype = dtypes.pop() if dtypes else torch.float32
        self.entries = sum(parameter.numel() for parameter in self.parameters)
        self.layout = layout(entries=self.entries, moments=tuple(moments), dtype=str(self.dtype).removeprefix("torch."))
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self.gradient = torch.zeros(self.entries, dtype=self.dtype, device=device)
        self.rule = RuleState(
            [parameter.data for parameter in self.parameters],
            {name: torch.zeros(self.entries, dtype=self.dtype, device=device) for name in moments},
        )
        self.views: list[torch.Tensor] = []
        self.at: dict[int, int] = {}
        start = 0
        for parameter in self.parameters:
            self.at[id(parameter)] = start
            self.views.append(self.gradient[start : start + parameter.numel()].view(parameter.shape))
            start += parameter.numel()
        self.attach()

    def attach(self) -> None:
        """Let every weight's gradient be its view of the flat one; what user code has put elsewhere is copied in."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = view

    def attached(self) -> bool:
        """Whether nobody has replaced a gradient (zero_grad sets None, which would lose it silently)."""
        return all(p.grad is view for p, view in zip(self.parameters, self.views, strict=True))

    def part(self, parameter: nn.Parameter) -> torch.Tensor:
        """The flat gradient of one weight."""
        start = self.at[id(parameter)]
        return self.gradient[start : start + parameter.numel()]

    def allocated(self) -> dict[str, int]:
        """Bytes held, by the layout's kinds."""
        moments = sum(m.numel() * m.element_size() for m in self.rule.moments.values())
        return {
            "weights": sum(w.numel() * w.element_size() for w in self.rule.weights),
            "gradients": self.gradient.numel() * self.gradient.element_size(),
            "moments": moments,
        }
