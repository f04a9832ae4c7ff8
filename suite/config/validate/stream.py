"""Rules about weight policies, and about systems that train in streams.

A system with `update_interval` does not drain between batches. A round of its measurement is one stream, from drain to
drain.
"""

from __future__ import annotations

import math

from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.schedule.placement import check_policy

MOMENT = "stages of an asynchronous pipeline have no common point in time"


def policy_serves_pipeline(config: RunConfig) -> None:
    """The weight policy serves as many stages with this update interval (suite.weights)."""
    config.weights.build().check(config.grid.inter, config.update_interval)


def policy_serves_placement(config: RunConfig) -> None:
    """An asynchronous policy serves one stage per rank and whole backward passes."""
    check_policy(config.weights.build(), config.schedule.build())


def smoothed_prediction_has_momentum(config: RunConfig) -> None:
    """A prediction by the smoothed gradient needs SGD with momentum."""
    policy, optimizer = config.weights.build(), config.optimizer
    rule = optimizer.target.rpartition(".")[2]
    if policy.predicts and policy.smoothed and not (rule == "SGD" and optimizer.arguments.get("momentum")):
        raise Unsupported(
            "weights",
            _policy(config),
            what=f"{_policy(config)} with {rule}" + (" without momentum" if rule == "SGD" else ""),
            rule="it predicts by the momentum of SGD alone (PipeOptim II-C2)",
            legal="optimizer=sgd optimizer.momentum=0.9",
        )


def prediction_has_states_on_device(config: RunConfig) -> None:
    """Weights are predicted from states on the device."""
    if not config.weights.build().predicts:
        return
    layout = config.memory.layout.build()(entries=1, moments=("moment",), half=config.precision.half)
    if away := sorted({state.name for state in layout if state.home == "host"}):
        raise Unsupported(
            "memory",
            config.memory.name,
            what=f"{_policy(config)} with memory={config.memory.name}, which has {', '.join(away)} on the host",
            rule="a prediction would fetch them before every pass",
            legal="memory=dense",
        )


def _policy(config: RunConfig) -> str:
    return config.weights.target.rpartition(".")[2]


def system_streams(config: RunConfig) -> None:
    """Only some systems train without draining between batches."""
    every = config.update_interval
    if every is not None and not config.system.can_stream:
        raise Unsupported(
            "update_interval",
            every,
            what=f"update_interval={every} under system={config.system.name}",
            rule="the suite's engine has streams",
            legal="update_interval=null",
        )


def stream_has_no_tied_layers(config: RunConfig) -> None:
    """The ends of a stream share no weight."""
    if config.update_interval is not None and config.network().tied:
        raise Unsupported(
            "model.shape.tied",
            True,
            what=f"model.shape.tied=true of model={config.model.name} in an asynchronous pipeline",
            rule=f"{MOMENT} to add the gradients of the weight that its ends share",
            legal="model.shape.tied=false",
        )


def stream_clips_no_gradients(config: RunConfig) -> None:
    """The gradients of a stream are not clipped by a norm over all stages."""
    clip = config.optimizer.clip_norm
    if config.update_interval is not None and clip is not None:
        raise Unsupported(
            "optimizer.clip_norm",
            clip,
            what=f"optimizer.clip_norm={clip} in an asynchronous pipeline",
            rule=f"{MOMENT} at which all gradients have a norm",
            legal="optimizer.clip_norm=null",
        )


def stream_has_constant_loss_scale(config: RunConfig) -> None:
    """The loss scale of a stream is constant."""
    scale = config.precision.loss_scale
    if config.update_interval is None or not scale or not config.precision.half:
        return
    built = scale.build()
    if built.least != built.most:
        raise Unsupported(
            "precision",
            config.precision.name,
            what=f"precision={config.precision.name}: dynamic loss scaling in an asynchronous pipeline",
            rule=f"{MOMENT} at which to leave a batch out",
            legal="precision=bf16",
        )


def stream_fills_pipeline(config: RunConfig) -> None:
    """A stream has at least as many microbatches as stages."""
    if config.update_interval is None:
        return
    measure, count, stages = config.measure, config.microbatches, config.grid.inter
    turn = count * (measure.discard_first + measure.batches)
    if turn < stages:
        raise InvalidRequest(
            "measure.batches",
            measure.batches,
            what=f"measure.batches={measure.batches} in a round of {turn} microbatches through {stages} stages",
            rule="an asynchronous pipeline fills before it updates: at least as many as stages",
            legal=f"measure.batches={math.ceil(stages / count) - measure.discard_first}",
        )
