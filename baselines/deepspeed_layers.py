"""Layers in DeepSpeed's PipelineModule: stage boundaries, ties, recomputed groups and marks.

DeepSpeed has no partition by list, so a method is overridden. Attributes of weights mark the gradients that count in
the norm.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import nn

from baselines.common import PeerPlan, join
from baselines.tensor_parallel import SPLIT, split
from suite.core.errors import Unsupported
from suite.models.gpt import TransformerBlock


class Piece(nn.Sequential):
    """Blocks that are recomputed together: one layer for DeepSpeed, which checkpoints layers with this class name
    only."""


def module(plan: PeerPlan) -> Any:
    """PipelineModule of this rank, divided as the suite divides layers, with the suite's initial weights.

    A tie is a TiedLayerSpec at both ends, which DeepSpeed keeps equal; on one stage it is one parameter. With
    grid.tensor > 1 blocks are split among DeepSpeed's slice groups. Raises Unsupported for two ties at one layer.
    """
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    grid = plan.grid
    layers_by_number: dict[int, nn.Module] = {}
    tensor = SimpleNamespace(group=None, rank=0)  # part of a split layer, which DeepSpeed sets before it builds layers
    stages = [plan.pieces(layers) for layers in plan.split]
    pieces = [piece for stage in stages for piece in stage]

    def make(piece: tuple[int, ...]) -> nn.Module:
        for number in piece:
            layers_by_number[number] = plan.layer(number)
            join(layers_by_number, plan.ties)
            layer = layers_by_number[number]
            if grid.tensor > 1 and isinstance(layer, TransformerBlock):
                split(layer, tensor.group, tensor.rank, grid.tensor)
        piece_layers = [layers_by_number[number] for number in piece]
        return Piece(*piece_layers) if plan.recomputed(piece) else piece_layers[0]

    class Made(nn.Module):
        """What DeepSpeed calls to build a layer: it accepts a class of modules alone."""

        def __new__(cls, piece: tuple[int, ...]) -> Any:
            return make(piece)

    class Divided(PipelineModule):  # type: ignore[misc]
        def _partition_layers(self, method: str = "") -> None:
            self.parts = [sum(map(len, stages[:stage])) for stage in range(grid.inter + 1)]
            self._set_bounds(*self.parts[self.stage_id : self.stage_id + 2])
            tensor.group = self._grid.get_slice_parallel_group()
            tensor.rank = self._grid.get_slice_parallel_rank()

    ends = [number for tie in plan.ties for number in (tie[0], tie[2])]
    if len(set(ends)) < len(ends):
        raise Unsupported("two ties at one layer", rule="DeepSpeed ties a layer once", legal="model.shape.tied=false")
    specs: list[Any] = [LayerSpec(Made, piece) for piece in pieces]
    for tie, (first, first_name, last, last_name) in enumerate(plan.ties):
        if grid.inter > 1:
            for number, name in ((first, first_name), (last, last_name)):
                specs[pieces.index((number,))] = TiedLayerSpec(f"tie_{tie}", Made, (number,), tied_weight_attr=name)
    divided = Divided(
        specs,
        topology=PipeModelDataParallelTopology(grid.inter, grid.tensor, grid.data),
        loss_fn=plan.loss,
        activation_checkpoint_interval=1 if plan.options.checkpoints else 0,
        checkpointable_layers=[Piece.__name__],
    )
    _mark(divided, tensor.rank)
    return divided


def _mark(module: Any, tensor_rank: int) -> None:
    """Mark the weights of a rank that count in the gradient norm, so that each weight of the model counts once.

    DeepSpeed marks all weights of the second of two tied layers as copies, even weights that are not tied. In ZeRO
    stage 0 it counts weights without `model_parallel` on the first stage only.
    """
    copies = set()
    for comms in module.tied_comms.values():
        if module.global_rank != comms["ranks"][0]:
            copies |= {id(comms["module"].get_parameter(name)) for name in comms["weight_attr"]}
    for weight in module.parameters():
        weight.ds_pipe_replicated = id(weight) in copies
        weight.model_parallel = tensor_rank == 0 and not weight.ds_pipe_replicated
    for block in module.modules():
        if isinstance(block, TransformerBlock):
            for name, weight in block.named_parameters():
                weight.model_parallel = tensor_rank == 0 or name in SPLIT  # type: ignore[attr-defined]
