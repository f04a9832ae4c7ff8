"""Drawings of systems: the order that runs, weight versions, Table II, and keys that a drawing depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from suite.cli.draw import ALWAYS, PIPELINE, check_read, draw
from suite.config.compose import composed, groups
from suite.core.errors import InvalidRequest, Unsupported
from suite.runner.keys_read import BOOKKEEPING, below, overlaps
from tests.support.refusals import refused

THIRD_PARTY = {"torch_gpipe": "gpipe", "torch_1f1b": "one_f_one_b", "deepspeed_3d": "one_f_one_b"}


def grid_of(*overrides: str) -> str:
    return draw([*overrides]).partition("\nmakespan")[0]


def cells_of(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()[1:]]


def test_third_party_pipeline_is_drawn_in_its_own_order() -> None:
    size = ("grid.inter=3", "draw.microbatches=5")
    for system, schedule in THIRD_PARTY.items():
        same = grid_of("system=pipeline", f"schedule={schedule}", *size)
        assert grid_of(f"system={system}", *size) == same != grid_of("system=axonn", *size)


REFUSED: list[tuple[list[str], str, Any]] = [  # overrides, key, value
    (["system=pytorch", "grid.inter=3"], "system", "pytorch"),
    (["system=torch_gpipe", "schedule=message_driven"], "schedule", "suite.schedule.MessageDriven"),
    (["system=torch_gpipe", "system.schedule=Schedule1F1B"], "system.schedule", "Schedule1F1B"),
    (["system=torch_gpipe", "system.order=null"], "system.order", None),
    (["system=naive", "draw.microbatches=3"], "draw.microbatches", "3"),
    (["system=axonn", "grid.tensor=2"], "grid.tensor", 2),
    (["system=gpipe", "weights=stash"], "update_interval", None),
    (["system=cagnet", "grid.data=2"], "system", "cagnet"),
    (["system=pipedream", "grid.inter=2", "schedule=zbv"], "weights", "Stash"),
    (["system=pipeoptim", "update_interval=often"], "update_interval", "often"),
    (["draw.forward=0"], "draw.forward", 0),
    (["grid.inter=2000"], "", None),
]


def test_illegal_run_is_not_drawn() -> None:
    for overrides, key, value in REFUSED:
        with refused(InvalidRequest, key, value):
            draw(overrides)
    with refused(Unsupported, "batch.microbatch", 2, legal="draw.microbatches=4"):
        draw(["system=torch_1f1b", "grid.inter=4", "draw.microbatches=3"])


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


def test_pipeoptim_reads_ahead_and_table_2_stands_below() -> None:
    grid, versions, table = draw(["system=pipeoptim", "grid.inter=3", "draw.microbatches=4"]).split("\n\n")
    assert len(grid.splitlines()) == 5
    assert versions.splitlines()[0].split()[-5:] == ["0", "1", "2", "3", "copies"]
    assert cells_of(versions) == [
        ["stage", "0", "forward", "0+2", "0+2", "0+2", "1+2", "2"],
        ["stage", "0", "backward", "0", "1", "2", "3"],
        ["stage", "1", "forward", "0+1", "0+1", "1+1", "2+1", "2"],
        ["stage", "1", "backward", "0", "1", "2", "3"],
        ["stage", "2", "forward", "0", "1", "2", "3", "1"],
        ["stage", "2", "backward", "0", "1", "2", "3"],
    ]
    assert cells_of(table) == [
        ["pipedream", *"210", *"210", *"000", *"000", *"321"],
        ["pipedream_2bw", *"111", *"111", *"000", *"000", *"222"],
        ["spectrain", "0", "0", "-1", "0", "0", "-1", *"211", *"001", *"222"],
        ["pipeoptim", *"000", *"000", *"210", *"000", *"221"],
    ]


def test_stream_of_a_v_is_drawn_with_the_versions_of_every_stage() -> None:
    zbv = ["system=pipeline", "schedule=zbv", "grid.inter=2", "update_interval=4", "draw.microbatches=8"]
    grid, versions = draw(zbv).split("\n\n")
    assert "makespan 49, idle per rank 1, 1" in grid
    forward = [row for row in cells_of(versions) if "forward" in row]
    assert forward == [["stage", str(stage), "forward", *"00001111", "1"] for stage in range(4)]


def test_deep_pipeline_is_drawn_without_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.cli.draw.DEEPEST", 3)
    for stages, lines in ((3, 5), (4, 1)):
        *_, table = draw(["system=pipeoptim", f"grid.inter={stages}", "draw.microbatches=1"]).split("\n\n")
        assert len(table.splitlines()) == lines


# -- keys that a drawing depends on ----------------------------------------------------------------------------------


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")


FLUSH = (*ALWAYS, *PIPELINE)
DRAWINGS: list[tuple[list[str], Sequence[str], list[str]]] = [  # a drawing, the keys that it reads, and changes of it
    (
        ["system=pipeline", "grid.inter=3"],
        FLUSH,
        ["grid.inter=2", "grid.data=2", "schedule=gpipe", "update_interval=2", "draw.microbatches=3"],
    ),
    (["system=pipeline", "grid.inter=2"], FLUSH, ["draw.forward=2", "draw.backward=1"]),
    (["schedule=zb_h1", "grid.inter=3", "draw.backward=3"], FLUSH, ["draw.weight=2"]),
    (
        ["system=pipeoptim", "grid.inter=3"],
        (*FLUSH, "weights"),
        ["weights.s=authors", "weights=stash", "system.name=mine"],
    ),
]


@pytest.mark.parametrize(("base", "read", "changes"), DRAWINGS, ids=["flush", "ticks", "split", "stream"])
def test_every_key_changes_a_drawing_or_is_refused(
    base: list[str], read: Sequence[str], changes: list[str], tmp_path: Path
) -> None:
    config = composed(base)
    reports = f"reports={tmp_path}"
    base = [*base, reports] if "reports" in read else base
    before = draw(base)
    for override in changes:
        others = [one for one in base if one.partition("=")[0] != override.partition("=")[0]]
        assert draw([*others, override]) != before, override
    unread = [key for key in (*leaves(config), *groups()) if not overlaps(key, read) and not below(key, BOOKKEEPING)]
    assert {"model", "batch.size", "optimizer.lr", "executor", "precision", "measure.rounds"} <= {*unread}
    for number, key in enumerate(unread):
        with refused(InvalidRequest, key, "1"):
            check_read([f"{('', '+', '++', '~')[number % 4]}{key}=1"], config["system"]["name"], read)
    bookkeeping = ["experiment=single", "tag=mine", "system.description=mine", "launch.name=mine"]
    assert draw([*{*base, reports}, *bookkeeping]) == before
    with refused(InvalidRequest, "batch.size", "32"):
        draw([*base, "batch.size=32"])
