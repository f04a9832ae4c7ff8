"""Part of the suite's weights that a rank of Megatron-LM holds, with Megatron's names.

Megatron stores queries, keys and values by head (q, k and v of the first head, then of the second), and the suite all
queries first. Rows of embedding and head are split by the vocabulary. A block is split as in baselines.tensor_parallel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import nn

from baselines.tensor_parallel import split
from suite.models.gpt import TransformerBlock

_OF_BLOCK = {
    "norm_1": "input_layernorm",
    "norm_2": "pre_mlp_layernorm",
    "qkv": "self_attention.linear_qkv",
    "project": "self_attention.linear_proj",
    "widen": "mlp.linear_fc1",
    "narrow": "mlp.linear_fc2",
}


def renamed(
    layers: Mapping[int, nn.Module], own: Sequence[int], *, blocks: int, part: int, parts: int, vocabulary: int
) -> dict[str, torch.Tensor]:
    """Weights of the layers `own` of a stage by Megatron's names: part `part` of `parts`.

    Args:
        blocks: Blocks of the whole model; layer 0 is the embedding, blocks + 1 the head.
        vocabulary: Padded rows, with zeros at the end.
    """
    weights: dict[str, torch.Tensor] = {}
    first_block = max(1, own[0])
    last = blocks + 1

    def rows(weight: torch.Tensor) -> torch.Tensor:
        return F.pad(weight.detach(), (0, 0, 0, vocabulary - len(weight))).chunk(parts)[part]

    for number in own:
        layer = layers[number]
        if isinstance(layer, TransformerBlock):
            weights |= _block(layer, f"decoder.layers.{number - first_block}", part, parts)
        elif number == 0:
            weights["embedding.word_embeddings.weight"] = rows(layer.get_parameter("token.weight"))
            weights["embedding.position_embeddings.weight"] = layer.get_parameter("position.weight").detach()
        elif number == last:
            for kind in ("weight", "bias"):
                weights[f"decoder.final_layernorm.{kind}"] = layer.get_parameter(f"norm.{kind}").detach()
            if 0 not in own or layer.get_parameter("weight") is not layers[0].get_parameter("token.weight"):
                weights["output_layer.weight"] = rows(layer.get_parameter("weight"))
    return weights


def _block(block: TransformerBlock, name: str, part: int, parts: int) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for parameter, value in split(deepcopy(block), None, part, parts).named_parameters():
        layer, kind = parameter.split(".")
        weight = value.detach()
        if layer == "qkv":
            by_head = weight.view(3, block.heads // parts, -1, *weight.shape[1:])  # [3, heads, h / heads, ...]
            weight = by_head.transpose(0, 1).flatten(0, 2)
        weights[f"{name}.{_OF_BLOCK[layer]}.{kind}"] = weight
    return weights
