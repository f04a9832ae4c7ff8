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
    "torch_interleaved": "suite.schedule.Staircase",
    "torch_looped_bfs": "suite.schedule.LoopedBFS",
    "torch_interleaved_zero_bubble": "suite.schedule.Staircase",
    "torch_zbv": "suite.schedule.ZBV",
    "torch_dual_pipe_v": "suite.schedule.DualPipeV",
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
        (["system=torch_zbv", "system.schedule=ScheduleDualPipeV"], "system=torch_dual_pipe_v"),
    ],
)
def test_other_order_than_pytorchs_is_refused(overrides: list[str], legal: str) -> None:
    error = refusal(*overrides)
    assert isinstance(error, InvalidRequest)
    assert (error.key, error.legal) == ("system.schedule", legal)


@pytest.mark.parametrize(
    ("overrides", "key", "value", "legal"),
    [
        (["system=torch_interleaved", "schedule.lead=1"], "schedule.lead", 1, "schedule.lead=2"),
        (["system=torch_interleaved", "schedule.lead=null"], "schedule.lead", None, "schedule.lead=2"),
        (["system=torch_interleaved", "schedule.split=true"], "schedule.split", True, "schedule.split=False"),
        (["system=torch_interleaved", "schedule=zb_h1"], "schedule.lead", 1, "system=torch_interleaved_zero_bubble"),
        (["system=torch_interleaved_zero_bubble", "schedule=interleaved"], "schedule.lead", 2, "torch_interleaved"),
        (["system=torch_zbv", "schedule.split=false"], "schedule.split", False, "schedule.split=True"),
        (["system=torch_looped_bfs", "schedule.split=true"], "schedule.split", True, "schedule.split=False"),
        (["system=torch_zbv", "schedule=interleaved"], "schedule", "suite.schedule.Staircase", "torch_interleaved"),
    ],
)
def test_parameters_that_pytorch_does_not_take_are_refused(
    overrides: list[str], key: str, value: Any, legal: str
) -> None:
    error = refusal(*overrides, "grid.inter=2", "executor=check")
    assert isinstance(error, Unsupported)
    assert (error.key, error.value) == (key, value)
    assert error.legal in (legal, f"system={legal}")


@pytest.mark.parametrize("system", ["torch_interleaved", "torch_looped_bfs", "torch_interleaved_zero_bubble"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_pytorch_takes_the_number_of_chunks(system: str, chunks: int) -> None:
    assert refusal(f"system={system}", f"schedule.chunks={chunks}", "grid.inter=2") is None


def test_pytorch_refuses_rounds_of_different_length() -> None:
    error = refusal("system=torch_interleaved", "grid.inter=2", "batch.size=5", "batch.microbatch=1")
    assert isinstance(error, Unsupported)
    assert (error.key, error.value) == ("batch.microbatch", 1)
    assert error.rule == "PyTorch divides them into 2 equal rounds of at least one microbatch per rank"
    assert error.legal == "batch.size=4"
    three = ("grid.inter=4", "batch.size=3", "batch.microbatch=1", "model.shape.layers=8")
    assert refusal("system=torch_interleaved", *three) is None
    with pytest.raises(Unsupported) as drawn:
        draw(["system=torch_interleaved_zero_bubble", "grid.inter=3", "draw.microbatches=7"])
    assert drawn.value.legal == "draw.microbatches=6"


def test_pytorch_dual_pipe_v_wants_two_microbatches_per_rank() -> None:
    error = refusal("system=torch_dual_pipe_v", "grid.inter=2", "batch.size=6")
    assert isinstance(error, Unsupported)
    assert "3 microbatches (batch.size=6, batch.microbatch=2) on 4 stages of grid.inter=2 ranks" in str(error)
    assert (error.key, error.legal) == ("batch.microbatch", "batch.microbatch=1")


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
