"""Restrictions of asynchronous pipelines.

At no moment within a stream are all stages at the same update. So the grid as a whole cannot decide anything within a
stream: a loss scale that follows overflows, one norm of all gradients, or the gradient of a weight that two stages
share. This module raises Unsupported for these combinations.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.members import missing_members
from suite.core.protocols import UpdateRule, WeightPolicy
from suite.engine.engine_config import EngineConfig
from suite.engine.optim.optimizer import SGD
from suite.engine.torch_api.torch_optimizer import TorchOptimizer
from suite.schedule.placement import check_policy, is_plain, places

NO_COMMON_UPDATE = "stages of an asynchronous pipeline are never at the same update"


def check(config: EngineConfig, policy: WeightPolicy, optimizer: UpdateRule, *, tied: bool) -> None:
    """Raises InvalidRequest where this policy, optimizer and memory layout cannot train together."""
    schedule, grid = config.chosen_schedule, config.grid
    if not is_plain(schedule):
        check_policy(policy, schedule)
        if config.pruning is not None and len(set(places(schedule, grid.inter)[0].held_stages)) > 1:
            raise Unsupported(
                "pruning",
                config.pruning,
                rule="a mask divides equal weights in the order of stages, which is the order of ranks with one stage "
                "each",
                legal="pruning=None, or a schedule with one stage per rank",
            )
    policy.check(grid.inter, config.update_interval)
    if policy.predicts:
        _check_prediction(config, policy, optimizer)
    scaler, norm = config.loss_scaler, config.clip_norm
    for found, what, decision, legal in (
        (tied, "a tied weight", "all ends of a tie could add their gradients", "tied=()"),
        (norm is not None, f"clip_norm={norm}", "all gradients have one norm", "clip_norm=None"),
        (
            scaler is not None and scaler.least != scaler.most,
            "dynamic loss scaling (loss_scaler=)",
            "all could skip an overflow",
            'half="bfloat16"',
        ),
    ):
        if found and config.update_interval is not None:
            rule = f"{NO_COMMON_UPDATE}, at which {decision}"
            raise Unsupported(f"{what} in an asynchronous pipeline", rule=rule, legal=legal)


def _check_prediction(config: EngineConfig, policy: WeightPolicy, rule: UpdateRule) -> None:
    missing = missing_members(rule, UpdateRule)
    rules: Sequence[UpdateRule] = rule.rules() if isinstance(rule, TorchOptimizer) else [rule]
    offloaded = [] if missing else [state.name for state in config.layout(rule.states) if state.home == "host"]
    if missing:
        what = f"{type(rule).__name__}, which cannot predict weights"
        reason = f"an update rule with {' and '.join(missing)}, as suite.core.protocols.UpdateRule has"
        legal = "SGD, Adam"
    elif policy.smoothed and not all(isinstance(each, SGD) and each.momentum for each in rules):
        what = type(rule).__name__ + (" without momentum" if isinstance(rule, SGD) else "")
        reason, legal = "this policy predicts weights from the momentum of SGD only", "SGD(lr, momentum=0.9)"
    elif offloaded:
        what = f"states in host memory ({', '.join(offloaded)})"
        reason, legal = "a prediction would fetch these states before every pass", "memory=resident"
    else:
        return
    raise Unsupported(f"{type(policy).__name__} with {what}", rule=reason, legal=legal)


def never_drains(call: str, update_interval: int | None) -> Unsupported:
    """The error for a call that requires a pipeline that drains after every batch."""
    rule = "an asynchronous pipeline does not drain between batches"
    return Unsupported(f"{call} with update_interval={update_interval}", rule=rule, legal="train(batches)")


def within_stream(call: str) -> InvalidRequest:
    """The error for a call while microbatches are in flight, or after they were lost."""
    return InvalidRequest(
        f"{call} within a stream, or after a batch that was interrupted",
        rule="stages stand at different updates until the pipeline drains",
        legal=f"a new engine that loads the last checkpoint, or {call} after the last loss of the stream",
    )


def check_stream(microbatches: int, stages: int, *, drained: bool) -> None:
    """Raises InvalidRequest for a stream that does not fill the pipeline, and after an interrupted stream."""
    if not drained:
        raise within_stream("train()")
    if microbatches < stages:
        raise InvalidRequest(
            f"a stream of {microbatches} microbatches through {stages} stages",
            rule="a stream has at least as many microbatches as stages, because the pipeline fills before it updates",
            legal=f"{stages} microbatches",
        )
