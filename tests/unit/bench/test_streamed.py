"""Decides whether asynchronous runs that cannot work are refused before ranks start, and how those that can are run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from configs import altered, unchecked

from suite.bench import refuse, streamed
from suite.bench.runs import freeze
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import Refused, Unsupported
from suite.core.op import Work

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
    ("overrides", "changes", "says"),
    [
        ((SPECTRAIN, "optimizer=adam"), DEEP, "SpecTrain with Adam; rule: .*momentum of SGD"),
        ((SPECTRAIN,), {**DEEP, "optimizer.momentum": 0.0}, "SpecTrain with SGD without momentum"),
        ((TWO_BW,), {**DEEP, "update.every": 3}, "2BW on 4 stages with update.every=3; .*legal: update.every=4"),
        ((PIPEOPTIM,), {**DEEP, "update.every": None}, "with a flush .*update.every=null"),
        ((PIPEOPTIM,), {**DEEP, "update.every": 2}, "s=paper with update.every=2"),
        ((PIPEOPTIM, "memory=offload"), DEEP, "Predict with memory=offload, which has moment on the host"),
        ((PIPEOPTIM,), {**DEEP, "update.clip": 1.0}, "update.clip=1.0 in an asynchronous pipeline"),
        ((PIPEOPTIM, "precision=fp16"), DEEP, "dynamic loss scaling in an asynchronous pipeline; .*precision=bf16"),
        ((PIPEOPTIM,), {"grid.inter": 4}, "a turn of 3 microbatches through 4 stages; .*legal: measure.batches=3"),
        ((PIPEOPTIM,), {**DEEP, "update.every": 0}, "update.every=0; .*legal: update.every=null"),
        (("system=pytorch",), {"update.every": 1}, "update.every=1 under system=pytorch"),
        (("system=pytorch", "executor=replay"), {}, "executor=replay of system=pytorch"),
        ((PIPEOPTIM, "executor=replay"), {**DEEP, "resume.folder": "here"}, "resume.folder with executor=replay"),
    ],
)
def test_what_cannot_train_is_refused_by_name(overrides: tuple[str, ...], changes: dict[str, Any], says: str) -> None:
    refusal = freeze(unchecked(base(*overrides), changes), "").refusal
    assert isinstance(refusal, Refused)
    assert re.search(says, str(refusal))


def test_a_tied_model_is_refused_and_its_legal_value_is_accepted() -> None:
    config = resolve([PIPEOPTIM, "grid.inter=2"])
    with pytest.raises(Unsupported, match=r"model.shape.tied=true of model=gpt_tiny.*legal: model.shape.tied=false"):
        refuse.check(config)
    refuse.check(resolve([PIPEOPTIM, "grid.inter=2", "model.shape.tied=false"]))


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw", "spectrain", "pipeoptim"])
@pytest.mark.parametrize("executor", ["real", "replay"])
def test_the_systems_as_they_stand_are_accepted(name: str, executor: str) -> None:
    config = altered(base(f"system={name}", f"executor={executor}", "grid.inter=4"), measure__batches=9)
    refuse.check(config)
    assert freeze(config.plain(), "").ranks == (1 if executor == "replay" else 4)


def test_replays_want_no_ranks_of_this_machine() -> None:
    deep = altered(base(PIPEOPTIM, "executor=replay"), grid__inter=8, launch__max_ranks=1, measure__batches=20)
    refuse.check(deep)
    with pytest.raises(Refused, match="8 ranks"):
        refuse.check(altered(base(PIPEOPTIM), grid__inter=8, launch__max_ranks=1, measure__batches=20))


def test_a_warm_up_fills_the_pipeline() -> None:
    """A stream of fewer microbatches than stages would be refused."""
    config = altered(base(PIPEOPTIM), grid__inter=4, measure__warm_up=1)
    assert streamed.warm_up(config) == 4
    assert streamed.warm_up(altered(config, batch__microbatch=2)) == 1
    assert streamed.warm_up(altered(config, measure__warm_up=7)) == 7
    assert streamed.warm_up(altered(base("system=gpipe"), grid__inter=4, measure__warm_up=1)) == 1


def test_the_checked_work_is_a_batch_or_as_much_of_a_stream_as_can_differ() -> None:
    assert streamed.work(altered(base("system=gpipe"), batch__microbatch=2)) == Work(0, 4, None, 0)
    deep = altered(base(PIPEOPTIM), grid__inter=4)
    assert streamed.work(altered(deep, measure__settle=1, measure__batches=8)) == Work(0, 9, 1, 0)
    assert streamed.work(altered(deep, measure__batches=10_000)) == Work(0, 17, 1, 0)
