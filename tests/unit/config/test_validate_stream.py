"""Rules about weight policies and streams, and the stream of a configuration."""

from __future__ import annotations

from typing import Any

import pytest

from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.op import FlushInterval
from suite.runner.runs import freeze, validate_run
from tests.support.configs import altered, unchecked
from tests.support.refusals import refused

SMALL = ("model=vgg_narrow", "data=digits", "optimizer=sgd", "batch.size=8")
BASES: dict[str, RunConfig] = {}


def base(*more: str) -> RunConfig:
    key = " ".join(more)
    if key not in BASES:
        BASES[key] = resolve([*SMALL, *more])
    return BASES[key]


PIPEOPTIM, SPECTRAIN, TWO_BW = (f"system={name}" for name in ("pipeoptim", "spectrain", "pipedream_2bw"))
DEEP = {"grid.inter": 4, "measure.batches": 9}


@pytest.mark.parametrize(
    ("overrides", "changes", "key", "rule", "legal"),
    [
        ((SPECTRAIN, "optimizer=adam"), DEEP, "weights", "momentum of SGD alone", "optimizer=sgd"),
        ((SPECTRAIN,), {**DEEP, "optimizer.momentum": 0.0}, "weights", "momentum of SGD alone", "momentum=0.9"),
        ((TWO_BW,), {**DEEP, "update_interval": 3}, "", "", "update_interval=4"),
        ((PIPEOPTIM,), {**DEEP, "update_interval": None}, "update_interval", "without draining", "update_interval=1"),
        (
            (PIPEOPTIM,),
            {**DEEP, "update_interval": 2},
            "update_interval",
            "one update per mini-batch",
            "update_interval=1",
        ),
        ((PIPEOPTIM, "memory=offload"), DEEP, "memory", "fetch them before every pass", "memory=dense"),
        (
            (PIPEOPTIM,),
            {**DEEP, "optimizer.clip_norm": 1.0},
            "optimizer.clip_norm",
            "all gradients have a norm",
            "optimizer.clip_norm=null",
        ),
        ((PIPEOPTIM, "precision=fp16"), DEEP, "precision", "to leave a batch out", "precision=bf16"),
        ((PIPEOPTIM,), {"grid.inter": 4}, "measure.batches", "at least as many as stages", "measure.batches=3"),
        (
            (PIPEOPTIM,),
            {**DEEP, "update_interval": 0},
            "update_interval",
            "at least 1, or null",
            "update_interval=null",
        ),
        (
            ("system=pytorch",),
            {"update_interval": 1},
            "update_interval",
            "the suite's engine has streams",
            "update_interval=null",
        ),
        (("system=pytorch", "executor=replay"), {}, "executor", "systems on the suite's engine", "system=pipeoptim"),
        (
            (PIPEOPTIM, "executor=replay"),
            {**DEEP, "checkpoint.folder": "here"},
            "checkpoint.folder",
            "no ranks of a system train under it",
            "checkpoint.folder=null",
        ),
    ],
)
def test_asynchronous_run_that_cannot_train_is_refused(
    overrides: tuple[str, ...], changes: dict[str, Any], key: str, rule: str, legal: str
) -> None:
    error = freeze(unchecked(base(*overrides), changes), "").refusal
    assert isinstance(error, InvalidRequest)
    assert error.key == key
    assert rule in error.rule
    assert legal in error.legal


def test_tied_model_is_refused_with_an_accepted_legal_value() -> None:
    config = resolve([PIPEOPTIM, "grid.inter=2"])
    with pytest.raises(Unsupported) as caught:
        validate_run(config)
    assert (caught.value.key, caught.value.value) == ("model.shape.tied", True)
    assert "to add the gradients of the weight that its ends share" in caught.value.rule
    validate_run(resolve([PIPEOPTIM, "grid.inter=2", caught.value.legal]))


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw", "spectrain", "pipeoptim"])
@pytest.mark.parametrize("executor", ["real", "replay"])
def test_default_systems_are_accepted(name: str, executor: str) -> None:
    config = altered(base(f"system={name}", f"executor={executor}", "grid.inter=4"), measure__batches=9)
    validate_run(config)
    assert freeze(config.plain(), "").ranks == (1 if executor == "replay" else 4)


def test_replay_needs_no_ranks() -> None:
    deep = altered(base(PIPEOPTIM, "executor=replay"), grid__inter=8, launch__max_ranks=1, measure__batches=20)
    validate_run(deep)
    with refused(InvalidRequest, "launch.max_ranks", 1, subject="8 ranks"):
        validate_run(altered(base(PIPEOPTIM), grid__inter=8, launch__max_ranks=1, measure__batches=20))


def test_a_warm_up_fills_the_pipeline() -> None:
    """A stream of fewer microbatches than stages would be refused."""
    config = altered(base(PIPEOPTIM), grid__inter=4, measure__warm_up=1)
    assert config.warm_up_batches == 4
    assert altered(config, batch__microbatch=2).warm_up_batches == 1
    assert altered(config, measure__warm_up=7).warm_up_batches == 7
    assert altered(base("system=gpipe"), grid__inter=4, measure__warm_up=1).warm_up_batches == 1


def test_checked_interval_is_a_batch_or_part_of_a_stream() -> None:
    assert altered(base("system=gpipe"), batch__microbatch=2).flush_interval() == FlushInterval(0, 4, None, 0)
    deep = altered(base(PIPEOPTIM), grid__inter=4)
    assert altered(deep, measure__discard_first=1, measure__batches=8).flush_interval() == FlushInterval(0, 9, 1, 0)
    assert altered(deep, measure__batches=10_000).flush_interval() == FlushInterval(0, 17, 1, 0)
