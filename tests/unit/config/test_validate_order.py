"""Rules about the order of ops that a system brings, and the grids and batches that it serves."""

from __future__ import annotations

from typing import Any

import pytest

from suite.cli.draw import draw
from suite.config.compose import composed
from suite.core.errors import InvalidRequest, Unsupported
from suite.runner.runs import freeze

ORDERS = {
    "torch_gpipe": "baselines.gpipe.GPipe",
    "torch_1f1b": "suite.schedule.OneFOneB",
    "deepspeed_3d": "suite.schedule.OneFOneB",
    "megatron_lm": "suite.schedule.OneFOneB",
    "pytorch": "suite.schedule.OneFOneB",
}


def refusal(*overrides: str) -> Any:
    return freeze(composed(list(overrides)), "").refusal


@pytest.mark.parametrize("system", list(ORDERS))
@pytest.mark.parametrize("executor", ["real", "check"])
def test_another_schedule_than_the_systems_own_is_refused(system: str, executor: str) -> None:
    error = refusal(f"system={system}", f"executor={executor}", "schedule=message_driven")
    assert isinstance(error, Unsupported)
    assert (error.key, error.value) == ("schedule", "suite.schedule.MessageDriven")
    assert error.rule == f"{system} brings its own order, {ORDERS[system]}"
    assert refusal(f"system={system}", f"executor={executor}") is None


@pytest.mark.parametrize(
    ("overrides", "legal"),
    [
        (["system=torch_gpipe", "system.schedule=Schedule1F1B"], "system=torch_1f1b"),
        (["system=torch_1f1b", "system.schedule=ScheduleGPipe"], "system=torch_gpipe"),
        (["system=torch_gpipe", "system.order=suite.schedule.OneFOneB"], "system=torch_gpipe"),
        (["system=torch_gpipe", "system.order=null"], "system.order=baselines.gpipe.GPipe"),
        (["system=torch_gpipe", "system.schedule=ScheduleGpipe"], "system.schedule=ScheduleGPipe"),
    ],
)
def test_other_order_than_pytorchs_is_refused(overrides: list[str], legal: str) -> None:
    error = refusal(*overrides)
    assert isinstance(error, InvalidRequest)
    assert (error.key, error.legal) == ("system.schedule", legal)


def test_the_order_of_a_users_system_has_parameters() -> None:
    overrides = [
        *("system=pytorch", "system._target_=mine.Own", "system.processes=null", "grid.inter=2"),
        *("system.order=suite.schedule.MessageDriven", "schedule=message_driven", "executor=check"),
    ]
    assert refusal(*overrides, "schedule.cap=2") is None
    assert refusal(*overrides, "schedule=gpipe") is not None
    assert draw([*overrides[:-1], "schedule.cap=1"]) != draw(overrides[:-1])


def test_the_order_of_a_peer_has_no_parameters() -> None:
    error = refusal("system=torch_1f1b", "+schedule.cap=2")
    assert isinstance(error, InvalidRequest)
    assert error.key == "schedule.cap"
    order = "suite.schedule.MessageDriven"
    error = refusal("system=megatron_lm", f"system.order={order}", "schedule=message_driven", "schedule.cap=2")
    assert isinstance(error, Unsupported)
    assert (error.key, error.rule) == ("schedule.pipeline_limit", "the order of megatron_lm has no parameters")
    assert "schedule.cap=2" in str(error)


@pytest.mark.parametrize("executor", ["real", "check", "simulated", "emulated"])
@pytest.mark.parametrize(
    ("overrides", "key", "legal"),
    [
        (["system=pytorch", "grid.inter=2"], "system", "grid.data=1 grid.inter=1 grid.tensor=1"),
        (["system=pytorch", "grid.data=2"], "system", "grid.data=1 grid.inter=1 grid.tensor=1"),
        (["system=torch_1f1b", "batch.size=6", "grid.inter=4"], "batch.microbatch", "batch.microbatch=1"),
        (
            ["system=torch_1f1b", "batch.size=4", "grid.inter=2", "grid.data=2"],
            "batch.microbatch",
            "batch.microbatch=1",
        ),
        (["system=torch_1f1b", "batch.size=2", "grid.inter=4"], "batch.microbatch", "batch.size=8"),
    ],
)
def test_unsupported_grid_or_batch_of_an_order_is_refused(
    executor: str, overrides: list[str], key: str, legal: str
) -> None:
    error = refusal(*overrides, f"executor={executor}")
    assert isinstance(error, Unsupported)
    assert (error.key, error.legal) == (key, legal)
