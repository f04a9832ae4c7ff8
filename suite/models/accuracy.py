"""Top-1 and top-5 accuracy of a classifier (PipeOptim V-B, Figures 2 and 3).

Every classifier reports them next to its loss, in percent as the paper prints them."""

from __future__ import annotations

import torch

SCORES = ("top_1", "top_5")


def top(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Percent of samples whose class is the likeliest, and is among the five likeliest (all classes where there are
    fewer): [2], of the logits' type but in single precision at least, as the loss beside it is. logits [b, classes],
    targets [b]. Of equal logits any may count, and of a row that is not all numbers none."""
    five = min(5, logits.shape[-1])
    places = logits.topk(five, dim=-1).indices
    right = (places == targets.unsqueeze(-1)) & logits.isfinite().all(dim=-1, keepdim=True)
    hits = torch.stack([right[:, :1].any(-1), right.any(-1)])
    return hits.to(torch.promote_types(logits.dtype, torch.float32)).mean(dim=1) * 100
