"""Bytes that a transformer block saves for its backward pass, by the kernels of published training software.

The papers ran Megatron's kernels from before fused attention, which write the attention scores to memory. These scores
dominate long sequences. Flash attention writes one statistic per token and head instead.
"""

from __future__ import annotations

from suite.workload.transformer import DecoderOnly

HALF, FULL = 2, 4  # bytes
SCORES = ("unfused", "fused_softmax")  # attention kernels that write the scores to memory


def saved_per_token(
    model: DecoderOnly,
    tensor: int = 1,
    *,
    attention: str = "fused_softmax",
    drops: bool = True,
    keeps_scores: bool = True,
    fused_norm: bool = True,
    entry: int = HALF,
    saved: float = HALF,
    sequence_parallel: bool = False,
    context: int = 1,
) -> float:
    """Bytes that a block saves for one token on one of `tensor` tensor-parallel ranks, including its input.

    Half-precision kernels with dropout save h (10 + 24 / t) + 5 a s / t bytes per token (Korthikanti et al. 2022,
    Equation 2), and with flash attention 4 a / t in place of the last term.

    Args:
        drops: Whether attention and residuals have dropout, whose masks are saved.
        keeps_scores: Whether attention scores, where there are any, are saved and not computed again.
        fused_norm: Whether a norm is one kernel, without single-precision intermediates.
        entry: Bytes of an activation entry.
        saved: Bytes of an entry of a product's input.
        sequence_parallel: Whether norms and residuals are split over the tensor-parallel ranks.
        context: Context-parallel ranks, over which the scores of a token are divided.
    """
    h, f = model.hidden, model.ffn
    norm = entry if fused_norm else entry + FULL + FULL  # input, and single-precision intermediates
    whole = 2 * norm * h + 2 * saved * h + (2 * h if drops else 0)  # inputs and outputs of norms, masks of dropout
    split = entry * (h + 2 * model.key_width) + saved * h + (entry * (2 if model.gated else 1) + saved) * f
    if attention not in SCORES:
        split += FULL * model.heads  # one statistic per token and head
    elif keeps_scores:
        # softmax, and with dropout its output and mask; apart, also single-precision probabilities
        each = entry + (entry + 1 if drops else 0)
        each += FULL + HALF if attention == "unfused" and entry == HALF else 0
        split += each * model.sequence * model.heads / context
    return whole / (tensor if sequence_parallel else 1) + split / tensor
