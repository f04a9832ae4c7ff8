"""Stage of a PyTorch pipeline that can be evaluated next to another stage of its rank."""

from __future__ import annotations

import torch
from torch.distributed.pipelining import PipelineStage

Gradients = tuple[torch.Tensor | None, ...]


class EvaluatedStage(PipelineStage):
    """PyTorch's stage, which hands over no gradients in an evaluation.

    PyTorch's runtime requests them between two stages of a rank in an evaluation too, and PyTorch's own stage then
    raises an AssertionError.
    """

    def get_local_bwd_output(self, mb_index: int) -> Gradients:
        gradients: Gradients = ()
        if self.has_backward:
            gradients = super().get_local_bwd_output(mb_index)  # type: ignore[no-untyped-call]
        return gradients

    def set_local_bwd_input(self, next_stage_bwd_outputs: Gradients, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)
