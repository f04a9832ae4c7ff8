"""Restrictions of asynchronous pipelines.

Each unsupported combination is refused with the reason. There is no moment at which all stages are at the same update.
So nothing can be decided by the whole grid within a stream: a loss scale that follows overflows, one norm of all
gradients, a weight that two stages share.
"""

from __future__ import annotations

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.members import lacking
from suite.core.protocols import UpdateRule, WeightPolicy
from suite.engine.optim.loss_scaler import Dynamic
from suite.engine.optim.optimizer import SGD
from suite.engine.states.flat_layout import LayoutOf

MOMENT = "stages of an asynchronous pipeline have no moment in common"


def check(
    policy: WeightPolicy,
    rule: UpdateRule,
    memory: LayoutOf,
    grid: Grid,
    update_interval: int | None,
    *,
    tied: bool,
    clip: float | None,
    half: str | None,
    scaler: Dynamic | None,
) -> None:
    """Raises InvalidRequest for what this policy, rule and layout of states cannot train together."""
    policy.check(grid.inter, update_interval)
    if policy.predicts:
        _check_prediction(policy, rule, memory, half)
    if update_interval is None:
        return
    if tied:
        what = "a tied weight in an asynchronous pipeline"
        raise Unsupported(what, rule=f"{MOMENT} at which both ends could add their gradients", legal="tied=()")
    if clip is not None:
        what = f"clip={clip} in an asynchronous pipeline"
        raise Unsupported(what, rule=f"{MOMENT} at which all gradients have a norm", legal="clip=None")
    if scaler is not None and scaler.least != scaler.most:
        what = "dynamic loss scaling (scaler=) in an asynchronous pipeline"
        raise Unsupported(what, rule=f"{MOMENT} at which an overflow could be left out", legal='half="bfloat16"')


def _check_prediction(policy: WeightPolicy, rule: UpdateRule, memory: LayoutOf, half: str | None) -> None:
    name, kind = type(policy).__name__, type(rule).__name__
    if missing := lacking(rule, UpdateRule):
        raise Unsupported(
            f"{name} with {kind}, which predicts nothing",
            rule=f"a rule with {' and '.join(missing)}, as suite.core.protocols.UpdateRule has",
            legal="SGD, Adam",
        )
    if policy.smoothed and not (isinstance(rule, SGD) and rule.momentum):
        what = f"{name} with {kind}" + (" without momentum" if isinstance(rule, SGD) else "")
        raise Unsupported(what, rule="it predicts by the momentum of SGD alone", legal="SGD(lr, momentum=0.9)")
    away = [state.name for state in memory(entries=1, moments=rule.states, half=half) if state.home == "host"]
    if away:
        what = f"{name} with states in host memory ({', '.join(away)})"
        raise Unsupported(what, rule="a prediction would fetch them before every pass", legal="memory=resident")


def check_flush(update_interval: int | None, what: str) -> None:
    """Raises Unsupported for what only a pipeline that drains after every batch has."""
    if update_interval is not None:
        rule = "an asynchronous pipeline does not drain between batches"
        raise Unsupported(f"{what} with update_interval={update_interval}", rule=rule, legal="train(batches)")


def check_stream(microbatches: int, stages: int, update_interval: int | None, drained: bool) -> None:
    """Raises InvalidRequest for a stream that does not fill the pipeline, and after an interrupted stream."""
    if update_interval is None:
        return
    if not drained:
        raise InvalidRequest(
            "a stream after one that was broken off", rule="what was in flight is lost", legal="a new engine"
        )
    if microbatches < stages:
        raise InvalidRequest(
            f"a stream of {microbatches} microbatches through {stages} stages",
            rule="an asynchronous pipeline fills before it updates: at least as many as stages",
            legal=f"{stages} microbatches",
        )
