"""torch.distributed.pipelining (PyTorch's own pipelines): its seven schedules, with replicas.

Stages, order and messages are PyTorch's. A rank holds one stage, or with an interleaved schedule, LoopedBFS, ZBV and
DualPipeV several, placed as PyTorch wants them: in a loop, or in a V. The stages are those of the suite's schedule.

PyTorch leaves other parts to the user, and they follow its tutorials. Replicas sum their gradients with one all-reduce
of a flat buffer (system.data_parallel=flat) or through DistributedDataParallel, which overlaps it with the last
microbatch's backward pass (ddp). A weight tied between the first and the last stage is kept equal by an all-reduce of
its gradient; in a V both stages are on rank 0 and share the weight. The loss is summed over all ranks as in the suite's
own systems.

PyTorch splits a backward pass by running its graph twice: once from the outputs to the inputs, and once from the nodes
between to the weights. On the first stage it runs the whole backward pass in place of the weight gradients, and nothing
in place of the input gradient.

In mixed precision passes, messages and reductions are in half precision, and gradients of the microbatches are added in
it. Clipping uses the norm of the whole model, and all ranks agree on whether a batch overflowed. Dropout masks are
PyTorch's, and differ from the suite's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from baselines.common import (
    DefaultGroup,
    PeerPlan,
    join,
    refuse,
    stage_of,
)
from baselines.stepping import Stepper
from suite.config.plugins import own_settings
from suite.config.protocols import System
from suite.config.run import RunConfig
from suite.core.errors import Unsupported
from suite.core.op import Place
from suite.core.protocols import Missing, Ready, Value, World
from suite.core.trace import Trace
from suite.schedule.placement import is_placed, is_plain, place_of


@dataclass(frozen=True, kw_only=True)
class TorchPipelineSettings:
    """Keys of `system` of PyTorch's pipelines; conf/system/torch_pipelining.yaml explains them."""

    data_parallel: Literal["flat", "ddp"]
    fused: bool


class TorchPipelining(System):
    """One rank's stages of a PyTorch pipeline on grid.inter ranks and grid.data replicas."""

    settings = TorchPipelineSettings

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        refuse(config, dtypes=("float32", "float64", "bfloat16"))
        if own_settings(TorchPipelineSettings, config).data_parallel == "ddp":
            _check_ddp(config)
        return Ready()

    def __init__(self, world: World, config: RunConfig) -> None:
        from torch.distributed import pipelining
        from torch.distributed.pipelining.schedules import PipelineScheduleMulti

        from baselines.torch_stage import EvaluatedStage

        self.world, self.plan = world, PeerPlan(config)
        plan, grid = self.plan, self.plan.grid
        settings = own_settings(TorchPipelineSettings, config)
        self.group = DefaultGroup(world, grid)
        self.place = place = place_of(config.schedule.build(), grid, world.rank)
        replicas = [grid.rank(data=replica, inter=0) for replica in range(grid.data)]
        # every rank creates all groups, in the same order
        pipelines = [dist.new_group(list(range(first, first + grid.inter))) for first in replicas]
        self.column = [dist.new_group(list(grid.data_parallel_group(rank))) for rank in range(grid.inter)][place.rank]
        self.ends = [dist.new_group([first + end for end in _ends(place)]) for first in replicas][place.replica]

        numbers = [number for stage in place.held_stages for number in plan.split[stage]]
        layers = {number: plan.layer(number).to(world.device) for number in numbers}
        join(layers, plan.ties)
        parts = [stage_of(plan, {number: layers[number] for number in plan.split[s]}) for s in place.held_stages]
        self.parts = nn.ModuleList(parts)
        self.tied = self._ties(layers)
        self.trained = [p for p in self.parts.parameters() if p.requires_grad]
        self.stepper = Stepper(
            config,
            self.trained,
            fused=settings.fused or None,
            uncounted=() if place.first else self.tied,
            sum_over_ranks=lambda squares: world.all_reduce_numbers([squares], "sum", lambda: None)[0] / grid.data,
        )
        self.ddp = settings.data_parallel == "ddp" and grid.data > 1
        if self.ddp:
            self.parts = nn.ModuleList(self._overlapped(part) for part in self.parts)
        else:
            self.gradient = _flat_gradient(self.trained)
        # factor of a loss before its backward pass: DDP divides by the number of replicas itself
        self.share = 1 / (plan.microbatches * (1 if self.ddp else grid.data))
        stages = [
            EvaluatedStage(part, stage, place.stages, world.device, group=pipelines[place.replica])
            for stage, part in zip(place.held_stages, self.parts, strict=True)
        ]
        pipeline = getattr(pipelining, config.system.order_of(config.schedule))
        held = stages if issubclass(pipeline, PipelineScheduleMulti) else stages[0]
        try:
            # dividing the loss by the number of microbatches avoids dividing every gradient
            self.schedule = pipeline(held, plan.microbatches, loss_fn=self._loss, scale_grads=False)
        except ValueError as error:  # not every schedule runs every number of microbatches
            legal = f"batch.size={place.stages * config.batch.microbatch * grid.data}"
            raise Unsupported("batch.size", config.batch.size, str(error), legal) from error

    def train_batch(self, batch: Value) -> float:
        self.parts.train()
        self._zero_gradients()
        loss = self._run(self.schedule.step, batch)
        if not self.ddp and self.plan.grid.data > 1:
            dist.all_reduce(self.gradient, group=self.column)
        for weight in self.tied:
            dist.all_reduce(weight.grad, group=self.ends)
        self.stepper.step()
        return loss

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Value]) -> float:
        self.parts.eval()
        return sum(self._run(self.schedule.eval, batch) for batch in batches) / len(batches)

    def observe(self) -> Trace:
        """PyTorch's pipelines keep no spans."""
        return Trace()

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        return self.stepper.measured(lambda: self.train_batch(batch))

    def close(self) -> None:
        self.group.close()

    def _run(self, step: Any, batch: Value) -> float:
        """Run one batch through the pipeline; returns its mean loss, on every rank."""
        inputs, targets = (self.plan.rows(part, self.place.replica).flatten(0, 1) for part in batch)
        losses: list[torch.Tensor] = []
        arguments = (inputs.to(self.world.device),) if self.place.first else ()
        keywords = {"target": targets.to(self.world.device), "losses": losses} if self.place.last else {}
        step(*arguments, **keywords, return_outputs=False)
        mean_loss = float(torch.stack(losses).detach().double().mean()) / self.plan.grid.data if losses else 0.0
        return self.world.all_reduce_numbers([mean_loss / self.factor], "sum", lambda: None)[0]

    @property
    def factor(self) -> float:
        """Factor of a microbatch's loss: its share of the batch times the loss scale."""
        return self.share * self.stepper.factor

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.plan.loss(outputs, targets) * self.factor
        return loss

    def _zero_gradients(self) -> None:
        if self.ddp:
            self.parts.zero_grad(set_to_none=False)  # the gradients are views of DDP's buckets
        else:
            self.gradient.zero_()

    def _overlapped(self, part: nn.Module) -> nn.Module:
        """A stage whose gradients DistributedDataParallel reduces in the backward pass of the last microbatch."""
        return nn.parallel.DistributedDataParallel(
            part,
            process_group=self.column,
            gradient_as_bucket_view=True,
            # DDP sorts its buckets again after the first batch, and fails without a forward pass between the
            # backward passes; this setting prevents the sorting, for one walk through a graph per batch
            find_unused_parameters=True,
        )

    def _ties(self, layers: Mapping[int, nn.Module]) -> list[nn.Parameter]:
        """This rank's end of every tie between two ranks. From here on it has the value of the first stage's end."""
        ends = _ends(self.place)
        if len(ends) == 1:
            return []
        first_rank = self.plan.grid.pipeline(self.world.rank)[ends[0]]
        tied = []
        for first, first_name, last, last_name in self.plan.ties:
            for number, name in ((first, first_name), (last, last_name)):
                if number in layers:
                    weight = layers[number].get_parameter(name)
                    dist.broadcast(weight.data, first_rank, group=self.ends)
                    tied.append(weight)
        return tied


def _ends(place: Place) -> tuple[int, ...]:
    """Pipeline ranks of the first and the last stage; a single one where they are the same."""
    return tuple(dict.fromkeys((place.rank_of(0), place.rank_of(place.stages - 1))))


def _check_ddp(config: RunConfig) -> None:
    """Raise Unsupported for a schedule whose gradients DistributedDataParallel cannot reduce."""
    schedule = config.schedule.build()
    if is_plain(schedule):
        return
    if is_placed(schedule) and schedule.split:
        rule = "PyTorch makes weight gradients apart from backward passes, where DistributedDataParallel reduces them"
    elif config.grid.inter == 1:
        rule = "tied weights of two stages of one rank would be in two modules of DistributedDataParallel"
    else:
        return
    name = f"{config.system.name} with system.data_parallel=ddp"
    raise Unsupported("system.data_parallel", "ddp", what=name, rule=rule, legal="system.data_parallel=flat")


def _flat_gradient(weights: Sequence[nn.Parameter]) -> torch.Tensor:
    """One buffer that holds the gradients of `weights`: it is zeroed, divided and reduced without a copy."""
    first = weights[0]
    flat = torch.zeros(sum(weight.numel() for weight in weights), dtype=first.dtype, device=first.device)
    for weight, part in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
        weight.grad = part.view_as(weight)
    return flat
