"""Restrictions of asynchronous pipelines.

At no moment within a stream are all stages at the same update. So the grid as a whole cannot decide anything within a
stream: a loss scale that follows overflows, one norm of all gradients, or the gradient of a weight that two stages
share. This module raises Unsupported for these combinations.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.members import missing_members
from suite.core.protocols import UpdateRule, WeightPolicy
from suite.engine.arguments import EngineArguments, schedule_of
from suite.engine.optim.optimizer import SGD
from suite.engine.optim.torch_optimizer import TorchOptimizer
from suite.schedule.placement import check_policy, is_plain, places

NO_COMMON_UPDATE = "stages of an asynchronous pipeline are never at the same update"


def check(args: EngineArguments, policy: WeightPolicy, optimizer: UpdateRule, grid: Grid, *, tied: bool) -> None:
    """Raises InvalidRequest where this policy, optimizer and memory layout cannot train together."""
    if not is_plain(schedule_of(args)):
        _check_placed(args, policy)
    policy.check(grid.inter, args.update_interval)
    if policy.predicts:
        _check_prediction(args, policy, optimizer)
    if args.update_interval is None:
        return
    if tied:
        rule = f"{NO_COMMON_UPDATE}, at which all ends of a tie could add their gradients"
        raise Unsupported("a tied weight in an asynchronous pipeline", rule=rule, legal="tied=()")
    if args.clip_norm is not None:
        rule = f"{NO_COMMON_UPDATE}, at which all gradients have one norm"
        raise Unsupported(f"clip_norm={args.clip_norm} in an asynchronous pipeline", rule=rule, legal="clip_norm=None")
    if args.loss_scaler is not None and args.loss_scaler.least != args.loss_scaler.most:
        rule = f"{NO_COMMON_UPDATE}, at which all could skip an overflow"
        raise Unsupported(
            "dynamic loss scaling (loss_scaler=) in an asynchronous pipeline", rule=rule, legal='half="bfloat16"'
        )


def _check_placed(args: EngineArguments, policy: WeightPolicy) -> None:
    """Raises Unsupported for what assumes one stage per rank and whole backward passes."""
    check_policy(policy, schedule_of(args))
    if args.pruning is not None and len(set(places(schedule_of(args), (args.grid or Grid()).inter)[0].held_stages)) > 1:
        raise Unsupported(
            "pruning",
            args.pruning,
            rule="a mask divides equal weights in the order of stages, which is the order of ranks with one stage each",
            legal="pruning=None, or a schedule with one stage per rank",
        )


def _check_prediction(args: EngineArguments, policy: WeightPolicy, rule: UpdateRule) -> None:
    policy_name, rule_name = type(policy).__name__, type(rule).__name__
    if missing := missing_members(rule, UpdateRule):
        raise Unsupported(
            f"{policy_name} with {rule_name}, which cannot predict weights",
            rule=f"an update rule with {' and '.join(missing)}, as suite.core.protocols.UpdateRule has",
            legal="SGD, Adam",
        )
    rules: Sequence[UpdateRule] = rule.rules() if isinstance(rule, TorchOptimizer) else [rule]
    if policy.smoothed and not all(isinstance(each, SGD) and each.momentum for each in rules):
        raise Unsupported(
            f"{policy_name} with {rule_name}" + (" without momentum" if isinstance(rule, SGD) else ""),
            rule="this policy predicts weights from the momentum of SGD only",
            legal="SGD(lr, momentum=0.9)",
        )
    layout = args.memory(entries=1, moments=rule.states, half=args.half)
    offloaded = [state.name for state in layout if state.home == "host"]
    if offloaded:
        raise Unsupported(
            f"{policy_name} with states in host memory ({', '.join(offloaded)})",
            rule="a prediction would fetch these states before every pass",
            legal="memory=resident",
        )


def check_drains(update_interval: int | None, call: str) -> None:
    """Raises Unsupported for a call that requires a pipeline that drains after every batch."""
    if update_interval is not None:
        rule = "an asynchronous pipeline does not drain between batches"
        raise Unsupported(f"{call} with update_interval={update_interval}", rule=rule, legal="train(batches)")


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
        raise InvalidRequest(
            "a stream after an interrupted one",
            rule="the microbatches in flight are lost when a stream is interrupted",
            legal="a new engine",
        )
    if microbatches < stages:
        raise InvalidRequest(
            f"a stream of {microbatches} microbatches through {stages} stages",
            rule="a stream has at least as many microbatches as stages, because the pipeline fills before it updates",
            legal=f"{stages} microbatches",
        )
