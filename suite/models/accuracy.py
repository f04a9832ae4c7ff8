"""Top-1 and top-5 accuracy of a classifier (PipeOptim V-B, Figures 2 and 3).

Every classifier reports them next to its loss, in percent as the paper prints them."""

from __future__ import annotations

import torch

SCORES = ("top_1", "top_5")


def top(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Percent of samples whose class has the largest logit, and one of the five largest logits: shape (2,).

    With fewer than five classes all count. The result has the dtype of the logits, but at least single precision, as
    the loss has. Among equal logits any may count. A row with NaN counts for nothing.

    Args:
        logits: (batch, classes).
        targets: (batch,).
    """
    five = min(5, logits.shape[-1])
    places = logits.topk(five, dim=-1).indices
    right = (places == targets.unsqueeze(-1)) & logits.isfinite().all(dim=-1, keepdim=True)
    hits = torch.stack([right[:, :1].any(-1), right.any(-1)])
    return hits.to(torch.promote_types(logits.dtype, torch.float32)).mean(dim=1) * 100
