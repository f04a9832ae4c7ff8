"""Parts shared by the compared systems: initial weights, split, rows, pieces, optimizer and memory counts.

A compared system brings its own engine, order and communication. The parts in this module are equal in all systems,
so that a comparison does not measure differences between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from suite import accelerator
from suite.comm.rendezvous.rank_rendezvous import use_loopback_interface
from suite.config.modules import network_module
from suite.config.plugins import Plugin
from suite.config.protocols import LossScale
from suite.config.run import RunConfig
from suite.core import errors
from suite.core.errors import Broken, Unsupported
from suite.core.grid import Grid
from suite.core.protocols import World
from suite.engine.makers import configured, loss_of
from suite.engine.optim.loss_scaler import DynamicLossScaler, unscaled
from suite.engine.optim.lr_schedule import Rate, as_rate
from suite.engine.random_state import drawing, initial
from suite.engine.torch_api.torch_optimizer import RULES, SuiteRule, torch_form
from suite.memory.checkpointing import checkpoint_interval
from suite.schedule.placement import homes_of
from suite.workload import Transformer
from suite.workload.recurrent import GNMT
from suite.workload.split import Split, divide_ranks

_HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Settings of a training loop in addition to its plan.

    Attributes:
        half: Dtype of passes and gradients in mixed precision; None for the model's dtype.
        loss_scale: Loss scale, for float16.
        clip: Largest norm of all gradients.
        checkpoints: Blocks per recomputed piece.
    """

    half: torch.dtype | None
    loss_scale: Plugin[LossScale] | None
    clip: float | None
    checkpoints: int | None

    def scale(self) -> DynamicLossScaler:
        """The loss scale in float16, 1 without one. Raises Unsupported for a user-defined class."""
        scaler = self.loss_scale.build() if self.loss_scale else unscaled()
        if not isinstance(scaler, DynamicLossScaler):
            what = f"precision.loss_scale={type(scaler).__name__} in a compared system"
            rule = "a compared system has its own loss scaler, which takes the numbers of a DynamicLossScaler"
            raise Unsupported(what, rule=rule, legal="suite.engine.optim.loss_scaler.DynamicLossScaler")
        return scaler


def train_options(config: RunConfig) -> TrainOptions:
    """The options of a config."""
    half, checkpoints = config.precision.half, config.activation_checkpointing
    if checkpoints == "auto":
        shapes, stages = config.network().shapes(), len(_homes(config))
        checkpoints = checkpoint_interval(sum(layer.checkpointed for layer in shapes), stages)
    return TrainOptions(
        _HALVES[half] if half else None, config.precision.loss_scale, config.optimizer.clip_norm, checkpoints
    )


def _homes(config: RunConfig) -> tuple[int, ...]:
    """Pipeline rank of each stage of the configured schedule."""
    return homes_of(config.schedule.build(), config.grid.inter)


def gpt(config: RunConfig) -> Transformer:
    """The shape of the config's GPT. Raises Unsupported for another network."""
    shape = config.model.shape.build()
    if not isinstance(shape, Transformer):
        what = f"{config.system.name} with model={config.model.name} and grid.tensor={config.grid.tensor}"
        raise Unsupported(what, rule="tensor parallelism splits the blocks of a GPT", legal="model=gpt_tiny")
    return shape


class PeerPlan:
    """Parts of a config that a compared system needs: the network, its split and the shape of a batch.

    Attributes:
        loss: Mean loss of outputs and targets.
        ties: Tied weights, as the argument `tied` of Engine.
        split: Layers of each stage.
        microbatches: Number per replica and batch.
        options: Settings of the training.
    """

    def __init__(self, config: RunConfig) -> None:
        model, batch = config.model, config.batch
        self.grid = config.grid.build()
        self.network, self.shape = network_module(model.network), config.network()
        makers = self.network.layers(self.shape, dropout=model.dropout, dtype=model.dtype)
        self.makers = configured(config.kernels, makers, draws_on=config.launch.draws_on)
        self.loss = loss_of(config.kernels, model.network)
        self.blocks = [layer.checkpointed for layer in self.shape.shapes()]
        self.ties: list[tuple[int, str, int, str]] = self.network.ties(self.shape)
        self.split: Split = divide_ranks(self.shape, _homes(config), config.split)
        self.seed, self.microbatch = config.seed, batch.microbatch
        self.size, self.microbatches = batch.size, config.microbatches
        self.options = train_options(config)

    def layer(self, number: int) -> nn.Module:
        """Layer `number` of the whole model with its initial weights, which are the same in every system and split."""
        with drawing(*initial(self.seed, number)):
            layer: nn.Module = self.makers[number]()
            return layer

    def pieces(self, stage_layers: Sequence[int]) -> list[tuple[int, ...]]:
        """The layers of a stage in order, grouped into pieces.

        From the first block of the stage on, each `checkpoints` consecutive blocks form a piece. An embedding or a head
        is a piece of its own. Without checkpoints, every layer is a piece of its own.
        """
        inner = [number for number in stage_layers if self.blocks[number]]
        step = self.options.checkpoints or 1
        ranges = [tuple(inner[at : at + step]) for at in range(0, len(inner), step)]
        return sorted([*ranges, *((number,) for number in stage_layers if number not in inner)])

    def recomputed(self, piece: Sequence[int]) -> bool:
        """Whether the backward pass recomputes `piece`: only with checkpoints, and only a piece of blocks."""
        return self.options.checkpoints is not None and self.blocks[piece[0]]

    def rows(self, part: Any, replica: int) -> torch.Tensor:
        """A replica's microbatches of a batch, with the shape (microbatches, microbatch, ...).

        With n replicas, replica r takes the chunks r, r + n, r + 2 n and so on.
        """
        chunks = torch.from_numpy(part).unflatten(0, (self.microbatches, self.grid.data, self.microbatch))
        rows: torch.Tensor = chunks[:, replica]
        return rows


def refuse(config: RunConfig, *, dtypes: Sequence[str]) -> None:
    """Raise Unsupported for features that every compared system lacks.

    They are optimizers that torch lacks, model types outside `dtypes`, and mixed precision of a model that is not
    float32.
    """
    errors.refuse(_rules(config, dtypes), Unsupported)
    suite_rule(config)
    refuse_pairs(config)


def _rules(config: RunConfig, dtypes: Sequence[str]) -> Iterator[Broken]:
    name, dtype = config.system.name, config.model.dtype
    known = f"one of {', '.join(dtypes)}"
    yield dtype not in dtypes, f"{name} with model.dtype={dtype}", known, f"model.dtype={dtypes[0]}"
    mixed = f"{name} with precision.half={config.precision.half} and model.dtype={dtype}"
    half = train_options(config).half and dtype != "float32"
    yield half, mixed, "mixed precision has float32 master weights", "model.dtype=float32"
    fused, rule = config.kernels.fused, "it makes its optimizer steps itself"
    yield fused, f"{name} with kernels.fused=true", rule, "kernels.fused=false"


def refuse_pairs(config: RunConfig) -> None:
    """Raise Unsupported for a network with several input tensors per batch, as a translator has."""
    if isinstance(config.model.shape.build(), GNMT):
        what = f"{config.system.name} with model={config.model.name}"
        rule = "the system takes one input tensor per batch, and a translator needs two"
        raise Unsupported(what, rule=rule, legal="system=axonn")


def join(layers: Mapping[int, nn.Module], ties: Iterable[tuple[int, str, int, str]]) -> None:
    """Make both ends of a tie one parameter, the first layer's, where both are in `layers`."""
    for first, first_name, last, last_name in ties:
        if first in layers and last in layers:
            owner, _, leaf = last_name.rpartition(".")
            setattr(layers[last].get_submodule(owner), leaf, layers[first].get_parameter(first_name))


def suite_rule(config: RunConfig) -> SuiteRule:
    """The suite's update rule. Raises Unsupported for a rule that torch does not have."""
    name, names = config.optimizer.target.rpartition(".")[2], [kind.__name__ for kind in RULES]
    rule = config.optimizer.build() if name in names else None
    if not isinstance(rule, SuiteRule):
        what = f"{config.system.name} with {name}"
        raise Unsupported(what, rule=f"one of {', '.join(names)}", legal="optimizer=adamw")
    return rule


def optimizer(config: RunConfig, parameters: Iterable[nn.Parameter], **more: Any) -> tuple[torch.optim.Optimizer, Rate]:
    """torch's optimizer with the name and arguments of the suite's update rule, and the learning-rate schedule."""
    rule = suite_rule(config)
    kind, arguments = torch_form(rule, 0)
    fitting = {key: value for key, value in more.items() if key in signature(kind).parameters}  # such as `fused`
    return kind(parameters, **arguments, **fitting), as_rate(rule.lr)


def set_rate(optimizer: Any, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


class Recomputed(nn.Sequential):
    """Layers whose activations are not stored: the backward pass computes them again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            outputs: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        else:
            outputs = checkpoint(super().forward, x, use_reentrant=False)
        return outputs


def stage_of(plan: PeerPlan, layers: Mapping[int, nn.Module]) -> nn.Sequential:
    """`layers` in sequence. With checkpoints, pieces of blocks are recomputed."""
    parts: list[nn.Module] = []
    for piece in plan.pieces(list(layers)):
        piece_layers = [layers[number] for number in piece]
        parts += [Recomputed(*piece_layers)] if plan.recomputed(piece) else piece_layers
    return nn.Sequential(*parts)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def bytes_of_moments(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer state per weight, without its step counters."""
    return bytes_of(t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim())


class DefaultGroup:
    """The default process group of torch.distributed.

    The world of several ranks has already created this group. A single rank creates a group of size 1 and destroys it
    at the end.
    """

    def __init__(self, world: World, grid: Grid) -> None:
        what = f"a grid of {grid.size} ranks ({grid}) in a world of {world.size} ranks"
        rule = "the world has one rank for each place of the grid"
        errors.refuse([(world.size != grid.size, what, rule, f"{grid.size} ranks")])
        self.owns_group = not dist.is_initialized()
        if not self.owns_group:
            return
        what = f"{world.size} ranks without torch.distributed"
        rule = "the ranks of a compared system form one default process group"
        errors.refuse([(world.size > 1, what, rule, "mpiexec, or torchrun")])
        use_loopback_interface()
        backend = "gloo" if accelerator.on_host(world.device) else "nccl"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)

    def close(self) -> None:
        if self.owns_group and dist.is_initialized():
            dist.destroy_process_group()
