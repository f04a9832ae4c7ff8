"""Restrictions of asynchronous pipelines.

At no moment within a stream are all stages at the same update. So the grid as a whole cannot decide anything within a
stream: a loss scale that follows overflows, one norm of all gradients, or the gradient of a weight that two stages
share. This module raises Unsupported for these combinations. It loads no torch: a configuration is checked by the same
function before ranks start.
"""

from __future__ import annotations

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import Schedule, WeightPolicy
from suite.memory.layout import Layout
from suite.schedule.placement import check_policy

NO_COMMON_UPDATE = "stages of an asynchronous pipeline are never at the same update"


def check(
    policy: WeightPolicy,
    schedule: Schedule,
    stages: int,
    update_interval: int | None,
    *,
    has_momentum: bool,
    layout: Layout,
    tied: bool,
    clip_norm: float | None,
    scales_follow_overflows: bool,
) -> None:
    """Raises InvalidRequest where the policy cannot serve such a pipeline, and where a stream cannot do all else.

    Args:
        has_momentum: Whether the optimizer is SGD with momentum.
        layout: Homes of the model states.
        scales_follow_overflows: Whether the loss scale is dynamic.
    """
    check_policy(policy, schedule)
    policy.check(stages, update_interval)
    name = type(policy).__name__
    if policy.predicts and policy.smoothed and not has_momentum:
        rule = "this policy predicts weights from the momentum of SGD only (PipeOptim II-C2)"
        raise Unsupported("weights", name, rule=rule, legal="optimizer=SGD(lr, momentum=0.9)")
    if policy.predicts and (offloaded := sorted({state.name for state in layout if state.home == "host"})):
        rule = f"{name} predicts weights, and would fetch {', '.join(offloaded)} from the host before every pass"
        raise Unsupported("memory", "offloaded", rule=rule, legal="memory=resident")
    for found, key, value, decision, legal in (
        (tied, "tied", True, "all ends of a tie could add their gradients", "tied=()"),
        (clip_norm is not None, "clip_norm", clip_norm, "all gradients have one norm", "clip_norm=None"),
        (scales_follow_overflows, "loss_scaler", "dynamic", "all could skip an overflow", 'half="bfloat16"'),
    ):
        if found and update_interval is not None:
            raise Unsupported(key, value, rule=f"{NO_COMMON_UPDATE}, at which {decision}", legal=legal)


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
