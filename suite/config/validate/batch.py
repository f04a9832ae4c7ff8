"""Rules about how a batch and a network are spread over ranks."""

from __future__ import annotations

import math

from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.memory.checkpointing import resolve_interval
from suite.schedule.check import check as check_schedule
from suite.schedule.placement import homes_of
from suite.workload.split import Split, blocks, divide_ranks
from suite.workload.transformer import Transformer


def system_splits_layers(config: RunConfig) -> None:
    """Only some systems split layers over ranks."""
    tensor = config.grid.tensor
    if tensor != 1 and not config.system.tensor:
        raise Unsupported("grid.tensor", tensor, rule=f"{config.system.name} splits no layer", legal="grid.tensor=1")


def batch_is_whole_microbatches(config: RunConfig) -> None:
    """Each replica has a whole number of microbatches."""
    size, microbatch, data = config.batch.size, config.batch.microbatch, config.grid.data
    chunk = microbatch * data
    if size % chunk:
        raise InvalidRequest(
            "batch.size",
            size,
            what=f"batch.size={size} on grid.data={data} replicas with batch.microbatch={microbatch}",
            rule="grid.data * batch.microbatch divides batch.size",
            legal=f"batch.size={math.ceil(size / chunk) * chunk}",
        )


def batch_has_systems_microbatches(config: RunConfig) -> None:
    """A system with a fixed number of microbatches has a batch of as many."""
    expected, count = config.system.microbatches, config.microbatches
    if expected is not None and count != expected:
        chunk = config.grid.data * expected
        size, rest = divmod(config.batch.size, chunk)
        raise InvalidRequest(
            "batch.microbatch",
            config.batch.microbatch,
            what=f"system={config.system.name} with {count} microbatches per replica",
            rule=f"it has {expected}",
            legal=f"batch.size={chunk * config.batch.microbatch}" if rest else f"batch.microbatch={size}",
        )


def split_layers_are_transformers(config: RunConfig) -> None:
    """Only transformer blocks are split over ranks."""
    tensor, shape = config.grid.tensor, config.network()
    if tensor != 1 and not isinstance(shape, Transformer):
        raise Unsupported(
            "grid.tensor",
            tensor,
            what=f"grid.tensor={tensor} with a {type(shape).__name__}",
            rule="only transformer blocks are split",
            legal="grid.tensor=1",
        )


def system_trains_network(config: RunConfig) -> None:
    """Some systems train transformers and no other networks."""
    shape, system = config.network(), config.system
    if system.transformers and not isinstance(shape, Transformer):
        raise Unsupported(
            "system",
            system.name,
            what=f"system={system.name} with a {type(shape).__name__}",
            rule="it trains networks of transformer blocks only",
            legal="system=axonn",
        )


def microbatch_suits_batch_norms(config: RunConfig) -> None:
    """A batch norm has more than one value of each channel."""
    microbatch, shape = config.batch.microbatch, config.network()
    least, image = shape.least_microbatch, config.model.shape.arguments.get("image")
    if microbatch < least:
        raise InvalidRequest(
            "batch.microbatch",
            microbatch,
            what=f"batch.microbatch={microbatch} with a {type(shape).__name__} of model.shape.image={image}",
            rule=f"its last batch norms have one point per image, and need at least {least} samples",
            legal=f"batch.microbatch={least}",
        )


def stages_have_layers(config: RunConfig) -> None:
    """Each stage has a layer, by a split that fits the network (suite.workload.split)."""
    _split(config)


def stages_have_whole_checkpoints(config: RunConfig) -> None:
    """The interval of activation checkpoints divides the blocks of each stage (suite.memory.checkpointing)."""
    shape = config.network()
    resolve_interval(config.activation_checkpointing, blocks(shape, _split(config)))


def _split(config: RunConfig) -> Split:
    """Layers of each stage of the pipeline."""
    return divide_ranks(config.network(), homes_of(config.schedule.build(), config.grid.inter), config.split)


def schedule_obeys_order_laws(config: RunConfig) -> None:
    """The schedule runs each op once and in a legal order. Raises IllegalSchedule (suite.schedule.check)."""
    check_schedule(config.schedule.build(), config.grid.inter, config.flush_interval())
