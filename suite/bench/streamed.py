"""Decides which asynchronous runs cannot run, before any rank starts, and how long a stream of theirs is at least.

A system with `update.every` trains in streams: a turn of a measurement is one, from drain to drain.
"""

from __future__ import annotations

import math
from typing import Any

from suite.config.run import RunConfig
from suite.core.errors import Refused, Unsupported
from suite.core.keys import in_config_keys
from suite.core.op import Work

MOMENT = "stages of an asynchronous pipeline have no moment in common"


def microbatches(config: RunConfig) -> int:
    """Microbatches per replica and batch."""
    return config.batch.size // (config.batch.microbatch * config.grid.data)


def work(config: RunConfig) -> Work:
    """From one drain to the next: a batch, or a turn of an asynchronous run, as far as its order can differ."""
    every, count = config.update.every, microbatches(config)
    if every is None:
        return Work(0, count, None, 0)
    turn = count * (config.measure.settle + config.measure.batches)
    return Work(0, min(turn, 4 * config.grid.inter + every), every, 0)


def warm_up(config: RunConfig) -> int:
    """Batches before the first turn: of an asynchronous pipeline no fewer than fill it."""
    told, stages = config.measure.warm_up, config.grid.inter
    if config.update.every is None:
        return told
    return max(told, math.ceil(stages / microbatches(config)))


@in_config_keys()
def check(config: RunConfig, shape: Any) -> None:
    """Raises Refused for a policy, rule, layout or stream that cannot train together; ranks refuse the rest."""
    policy, every, stages = config.weights.build(), config.update.every, config.grid.inter
    if config.executor.replays and not _on_the_engine(config):
        what = f"executor=replay of system={config.system.name}"
        raise Unsupported(what, rule="what is replayed are systems on the suite's engine", legal="system=pipeoptim")
    policy.check(stages, every)
    if policy.predicts:
        _prediction(config, policy.smoothed)
    if every is None:
        return
    check_engine(config)
    if getattr(shape, "tied", False):
        what = f"model.shape.tied=true of model={config.model.name} in an asynchronous pipeline"
        raise Unsupported(
            what,
            rule=f"{MOMENT} to add the gradients of the weight that its ends share",
            legal="model.shape.tied=false",
        )
    if config.update.clip is not None:
        what = f"update.clip={config.update.clip} in an asynchronous pipeline"
        raise Unsupported(what, rule=f"{MOMENT} at which all gradients have a norm", legal="update.clip=null")
    scale = config.precision.loss_scale
    if scale and config.precision.half and scale.build().least != scale.build().most:
        what = f"precision={config.precision.name}: dynamic loss scaling in an asynchronous pipeline"
        raise Unsupported(what, rule=f"{MOMENT} at which to leave a batch out", legal="precision=bf16")
    plan, count = config.measure, microbatches(config)
    turn = count * (plan.settle + plan.batches)
    if turn < stages:
        raise Refused(
            f"measure.batches={plan.batches} in a turn of {turn} microbatches through {stages} stages",
            rule="an asynchronous pipeline fills before it updates: at least as many as stages",
            legal=f"measure.batches={math.ceil(stages / count) - plan.settle}",
        )


def check_engine(config: RunConfig) -> None:
    """Raises Unsupported for a stream of a system that has none."""
    if (every := config.update.every) is not None and not _on_the_engine(config):
        what = f"update.every={every} under system={config.system.name}"
        raise Unsupported(what, rule="the suite's engine has streams", legal="update.every=null")


def _on_the_engine(config: RunConfig) -> bool:
    return config.system.can_stream


def _prediction(config: RunConfig, smoothed: bool) -> None:
    """What weights cannot be predicted from."""
    name, optimizer = config.weights.target.rpartition(".")[2], config.optimizer
    rule = optimizer.target.rpartition(".")[2]
    if smoothed and not (rule == "SGD" and optimizer.arguments.get("momentum")):
        told = f"{name} with {rule}" + (" without momentum" if rule == "SGD" else "")
        raise Unsupported(
            told,
            rule="it predicts by the momentum of SGD alone (PipeOptim II-C2)",
            legal="optimizer=sgd optimizer.momentum=0.9",
        )
    half = config.precision.half
    layout = config.memory.layout.build()(entries=1, moments=("moment",), half=half)
    if away := sorted({state.name for state in layout if state.home == "host"}):
        what = f"{name} with memory={config.memory.name}, which has {', '.join(away)} on the host"
        raise Unsupported(what, rule="a prediction would fetch them before every pass", legal="memory=dense")
