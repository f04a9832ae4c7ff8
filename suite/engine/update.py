"""Decides what an update does: reduce over the column of the grid, then over a tie, then step.

Gradients are sums of losses divided by (microbatches * replicas), so the reduction is a sum and the result the batch's
mean (AxoNN Algorithm 1, lines 12-13 and 7). Parts that name one buffer run one after the other: two asynchronous
reductions of the same numbers would race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from suite.comm.waiting import until
from suite.core.errors import Refused
from suite.core.protocols import Group, UpdateRule
from suite.core.trace import REDUCE, TIE
from suite.engine.state import ModelState

Part = tuple[str, Group, torch.Tensor]  # REDUCE or TIE, who meets, what is summed


class Update:
    """The update of one stage. `ties`: weights that share their gradient with the pipeline's other end."""

    def __init__(
        self,
        state: ModelState,
        rule: UpdateRule,
        *,
        column: Group,
        ends: Group,
        ties: Sequence[tuple[torch.nn.Parameter, ...]],
        progress: Callable[[], None],
    ) -> None:
        self.state, self.rule, self.progress = state, rule, progress
        self.parts: list[Part] = []
        if len(column.ranks) > 1 and state.entries:
            self.parts.append((REDUCE, column, state.gradient))
        self.local: list[tuple[torch.Tensor, torch.Tensor]] = []
        for tie in ties:
            flat = [state.part(parameter) for parameter in tie]
            if len(flat) == 2:
                self.local.append((flat[0], flat[1]))  # both ends stand here: input part, then output part
            elif flat and len(ends.ranks) == 2:
                self.parts.append((TIE, ends, flat[0]))

    def reduce(self) -> Iterator[str]:
        """Sum each part over its group, in order, while messages keep moving; yields what each part was."""
        if not self.state.attached():
            raise Refused(
                "a gradient was replaced between the backward passes and the update",
                rule="the engine owns .grad: do not call zero_grad",
            )
        for category, group, buffer in self.parts:
            until(group.all_reduce(buffer).done, self.progress)
            yield category
        for first, last in self.local:
            first.add_(last)
            last.copy_(first)

    def step(self) -> None:
        if self.state.entries:  # a stage may hold no weights at all
            self.rule.step(self.state.rule, self.state.gradient)
            self.state.gradient.zero_()
