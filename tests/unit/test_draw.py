"""Drawings of systems: the order that runs, and keys that a drawing depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from suite.cli.draw import ALWAYS, PAGES, PIPELINE, WHOLE_GRAPH, check_read, draw
from suite.config.compose import composed, groups
from suite.core.errors import InvalidRequest
from suite.runner.keys_read import BOOKKEEPING, below
from tests.support.refusals import refused


def grid_of(*overrides: str) -> str:
    return draw([*overrides]).partition("\nmakespan")[0]


@pytest.mark.parametrize(
    ("system", "same"),
    [("torch_gpipe", "gpipe"), ("torch_1f1b", "one_f_one_b"), ("deepspeed_3d", "one_f_one_b")],
)
def test_third_party_pipeline_is_drawn_in_its_own_order(system: str, same: str) -> None:
    size = ("grid.inter=3", "draw.microbatches=5")
    assert grid_of(f"system={system}", *size) == grid_of(f"system={same}", *size) != grid_of("system=axonn", *size)


@pytest.mark.parametrize(
    ("overrides", "rule", "legal"),
    [
        (["system=pytorch", "grid.inter=3"], "1 process", ""),
        (["system=pytorch", "grid.data=2"], "1 process", ""),
        (["system=torch_1f1b", "grid.inter=4", "draw.microbatches=3"], "at least as many microbatches as stages", ""),
        (["system=torch_gpipe", "schedule=message_driven"], "brings its own order", ""),
        (["system=torch_gpipe", "system.schedule=Schedule1F1B"], "Schedule1F1B runs", "system=torch_1f1b"),
        (["system=torch_gpipe", "update_interval=1"], "the suite's engine has streams", ""),
        (["system=sputnik", "update_interval=1"], "the suite's engine has streams", ""),
        (["system=naive", "draw.microbatches=3"], "a batch of this system has 1", ""),
        (["system=axonn", "grid.tensor=2"], "splits no layer", ""),
        (["system=gpipe", "weights=stash"], "its versions bridge updates", ""),
        (["system=cagnet", "grid.inter=2"], "distributes vertices", ""),
    ],
)
def test_illegal_run_is_not_drawn(overrides: list[str], rule: str, legal: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        draw(overrides)
    assert rule in refusal.value.rule
    assert legal in refusal.value.legal


def test_pytorch_is_one_stage_and_naive_one_microbatch() -> None:
    assert draw(["system=pytorch", "draw.microbatches=2"]).startswith("stage 0 | F0 B0 == F1 B1 ==\n")
    assert grid_of("system=naive", "grid.inter=2").splitlines() == [
        "stage 0 | F0 .  .  .  B0 ==",
        "stage 1 | .  F0 B0 == .  .",
    ]


def test_chunks_are_drawn_on_the_row_of_their_rank() -> None:
    drawing = draw(["schedule=zbv", "grid.inter=2", "draw.microbatches=3"])
    assert drawing.splitlines() == [
        "rank 0 | F0  F1  F2  F0' I0' W0' F1' I1' W1' I0  W0  F2' I2' W2' I1  W1  I2  W2  .",
        "rank 1 | .   F0  F0' F1  F1' I0' W0' F2  I0  W0  F2' I1' W1' I1  I2' I2  W1  W2' W2",
        "makespan 19, idle per rank 1, 1",
        "activations alive per rank at most 4, 4",
        "weight gradients owed per rank at most 1, 3",
    ]


def test_ranks_that_run_the_same_order_are_counted() -> None:
    assert "4 ranks per stage (3x2x2)" in draw(["system=megatron_lm", "grid.inter=3", "grid.data=2", "grid.tensor=2"])
    assert "ranks per stage" not in draw(["system=axonn", "grid.inter=3"])


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")


FLUSH = (*ALWAYS, *PIPELINE)


@pytest.mark.parametrize(
    ("base", "read", "changes"),
    [
        (
            ["system=one_f_one_b", "grid.inter=3"],
            FLUSH,
            {
                "grid": ["grid.inter=2", "grid.data=2"],
                "schedule": ["schedule=gpipe"],
                "update_interval": ["update_interval=2"],
                "draw.microbatches": ["draw.microbatches=3"],
                "draw.forward": ["draw.forward=2"],
                "draw.backward": ["draw.backward=1"],
            },
        ),
        (["schedule=zb_h1", "grid.inter=3", "draw.backward=3"], FLUSH, {"draw.weight": ["draw.weight=2"]}),
        (
            ["system=pipeoptim", "grid.inter=3"],
            (*FLUSH, "weights"),
            {"weights": ["weights.s=authors", "weights=stash"], "system.name": ["system.name=mine"]},
        ),
        (
            ["system=sparsity_aware", "graph=rmat", "graph.source.vertices=64", "grid.data=4"],
            (*ALWAYS, *WHOLE_GRAPH),
            {
                "grid": ["grid.data=2"],
                "graph": ["graph.source.vertices=128"],
                "partitioner": ["partitioner=gvb"],
                "exchange.replication": ["exchange.replication=2"],
                "seed": ["seed=1"],
                "draw.width": ["draw.width=16"],
            },
        ),
    ],
    ids=["flush", "split", "stream", "graph"],
)
def test_every_key_changes_a_drawing_or_is_refused(
    base: list[str], read: Sequence[str], changes: dict[str, list[str]], tmp_path: Any
) -> None:
    config = composed(base)
    name = config["system"]["name"]
    base = [*base, f"reports={tmp_path}"] if "reports" in read else base
    before = draw(base)
    for overrides in changes.values():
        for override in overrides:
            key = override.partition("=")[0]
            others = [one for one in base if one.partition("=")[0] != key]
            assert draw([*others, override]) != before, override
    every = [*leaves(config), *groups()]
    unread = [
        key
        for key in every
        if not any(f"{key}.".startswith(f"{one}.") or f"{one}.".startswith(f"{key}.") for one in read)
        and not below(key, [*BOOKKEEPING, *PAGES])
    ]
    assert {"model", "batch.size", "optimizer.lr", "executor", "precision", "measure.rounds"} <= {*unread}
    for key in unread:
        for sign in ("", "+", "++", "~"):
            with refused(InvalidRequest, key, "1", rule="does not depend on it"):
                check_read([f"{sign}{key}=1"], name, read)
    arguments = base if any(word.startswith("reports=") for word in base) else [*base, f"reports={tmp_path}"]
    assert draw([*arguments, "experiment=single", "tag=mine", "system.description=mine", "launch.name=mine"]) == before
    for key in ("model=vgg_narrow", "batch.size=32"):
        with refused(InvalidRequest, *key.split("="), rule="does not depend on it"):
            draw([*base, key])
