"""The real packages start where the suite starts: on every grid their losses are those of plain PyTorch."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from curves import config_of, curve
from ranks import run_ranks
from tools import needs

from baselines.common import Plan
from baselines.deepspeed_3d import DeepSpeed3D
from baselines.pytorch import PyTorch
from baselines.torch_pipelining import TorchPipelining
from suite.__main__ import run
from suite.comm import loopback
from suite.core.errors import Refused, UnknownName, Unsupported
from suite.core.protocols import Missing, Ready
from suite.core.record import Outcome

BATCHES = 8
SMALL = "batch.size=8"
TOLERANCE = 1e-5
PROGRAM = Path(__file__).with_name("program_peers.py")
WARMUP = ["optimizer.lr={_target_: suite.engine.rate.WarmupCosine, lr: 0.002, total: 8, warmup: 3}"]


@cache
def one_process(batches: int, *overrides: str) -> dict[str, Any]:
    config = config_of(["system=pytorch", *overrides])
    return curve(PyTorch(world=loopback.LoopbackWorld(loopback.Hub(1), 0), config=config), config, batches)


def apart(a: float, b: float) -> float:
    return abs(a - b) / abs(b)


def weights_of(config: dict[str, Any]) -> list[int]:
    """Bytes of the weights of every rank, sorted: the suite's split, on every replica."""
    plan = Plan(config)
    sizes = [sum(p.numel() * 4 for n in own for p in plan.layer(n).parameters()) for own in plan.split]
    if plan.grid.inter == 1:  # both ends of a tie are one
        sizes[0] -= sum(plan.layer(last).get_parameter(name).numel() * 4 for _, _, last, name in plan.ties)
    return sorted(sizes * plan.grid.data)


# every entry: overrides of a run; what stands after the system and the grid holds for the reference too
GRIDS: dict[tuple[int, int], list[tuple[list[str], list[str]]]] = {
    (1, 1): [
        (["system=deepspeed_3d"], ["optimizer=sgd"]),
        (["system=torch_gpipe"], WARMUP),
        (["system=torch_1f1b", "system.fused=false"], []),
    ],
    (2, 1): [
        (["system=deepspeed_3d"], ["model.shape.layers=3"]),  # 3 of the 5 layers are on the first stage
        (["system=deepspeed_3d", "system.activation_checkpoint_interval=1"], WARMUP),
        (["system=torch_gpipe"], ["batch.microbatch=8"]),  # one microbatch: fewer than stages
        (["system=torch_1f1b"], ["model.shape.layers=3"]),
    ],
    # Adam does not see a gradient that is a multiple of the right one: replicas are compared with SGD
    (1, 2): [
        (["system=deepspeed_3d"], ["optimizer=sgd"]),
        (["system=deepspeed_3d", "system.zero_stage=1"], ["optimizer=sgd"]),
        (["system=torch_gpipe", "system.data_parallel=ddp"], ["optimizer=sgd"]),
        (["system=torch_1f1b"], ["optimizer=sgd"]),
    ],
    (2, 2): [
        (["system=deepspeed_3d", "system.zero_stage=1"], []),
        (["system=torch_gpipe"], []),
        (["system=torch_1f1b", "system.data_parallel=ddp"], ["optimizer=sgd"]),
    ],
}


@pytest.mark.ranks
@pytest.mark.parametrize(("inter", "data"), GRIDS)
def test_losses_are_those_of_one_process(inter: int, data: int, tmp_path: Path) -> None:
    needs("mpiexec")
    needs("deepspeed")
    grid = [f"grid.inter={inter}", f"grid.data={data}", SMALL]
    runs = [[*system, *grid, *more] for system, more in GRIDS[inter, data]]
    configs, extensions = [config_of(overrides) for overrides in runs], tmp_path / "extensions"
    (tmp_path / "configs.json").write_text(json.dumps(configs))
    out = run_ranks(
        inter * data,
        PROGRAM,
        str(BATCHES),
        str(tmp_path / "configs.json"),
        deadline=180,
        extra={"TORCH_EXTENSIONS_DIR": str(extensions)},
    )
    assert all(line.startswith("[{") for line in out.splitlines()), "somebody talks"
    found = [json.loads(line) for line in out.splitlines()]
    for overrides, config, (_, more), every in zip(runs, configs, GRIDS[inter, data], found, strict=True):
        expected = one_process(BATCHES, SMALL, *more)
        assert all(one["losses"] == every[0]["losses"] for one in every), "every rank is told the same losses"
        worst = max(map(apart, every[0]["losses"], expected["losses"]))
        assert worst <= TOLERANCE, f"{overrides}: {worst:.2e}"
        assert apart(every[0]["held_out"], expected["held_out"]) <= TOLERANCE, overrides
        assert every[0]["losses"][-1] < every[0]["losses"][0] - 0.3, "it learns"
        check_memory(config, [one["memory"] for one in every])
        assert all(one["spans"] == 0 for one in every)
    assert not extensions.exists(), "nothing is compiled"


def check_memory(config: dict[str, Any], ranks: list[dict[str, int]]) -> None:
    assert sorted(one["weights"] for one in ranks) == weights_of(config)
    adam = config["optimizer"]["_target_"].endswith("AdamW")
    share = config["grid"]["data"] if config["system"].get("zero_stage") else 1
    for one in ranks:
        assert one["gradients"] == one["weights"]
        assert one["moments"] == pytest.approx((2 if adam else 1) * one["weights"] / share, abs=64)  # ZeRO pads
        assert ("masters" in one) == bool(config["system"].get("zero_stage"))
        assert one.get("masters", 0) in (0, pytest.approx(one["weights"] / share, abs=64))
        assert 0 < one["activations"] < 30e6


@pytest.mark.ranks
def test_a_run_leaves_a_record(tmp_path: Path) -> None:
    needs("mpiexec")
    needs("deepspeed")
    short = ["measure.settle=0", "measure.turns=1", "measure.batches=1", "measure.evaluate=1", "batch.size=8"]
    (record,) = run([*short, "system=deepspeed_3d", "grid.inter=2", f"reports={tmp_path}"])
    assert record.outcome is Outcome.OK, record.reason
    assert len(record.metrics["batch_time"].values) == 1
    assert record.trace is None
    assert record.memory["predicted"] == {}


def test_a_replica_takes_every_so_manieth_microbatch() -> None:
    plan = Plan(config_of(["system=torch_1f1b", "grid.data=2", "batch.size=12", "batch.microbatch=2"]))
    assert plan.rows(np.arange(12), 0).tolist() == [[0, 1], [4, 5], [8, 9]]
    assert plan.rows(np.arange(12), 1).tolist() == [[2, 3], [6, 7], [10, 11]]


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "kind", "words"),
    [
        (["system=deepspeed_3d", "system.zero_stage=2"], Unsupported, ["zero_stage=2", "legal: system.zero_stage=1"]),
        (["system=deepspeed_3d", "system.zero_stage=3"], Unsupported, ["zero_stage=3"]),
        (["system=deepspeed_3d", "model.dtype=float16"], Unsupported, ["float16", "legal: model.dtype=float32"]),
        (["system=torch_gpipe", "model.dtype=float16"], Unsupported, ["float16", "bfloat16"]),
        (["system=deepspeed_3d", "grid.tensor=2"], Unsupported, ["grid.tensor=2", "legal: grid.tensor=1"]),
        (["system=torch_1f1b", "grid.tensor=2"], Unsupported, ["grid.tensor=2"]),
        (["system=deepspeed_3d", "optimizer._target_=somewhere.Lion"], Unsupported, ["Lion", "legal: optimizer=adamw"]),
        (["system=torch_1f1b", "batch.size=6", "grid.inter=4"], Unsupported, ["3 microbatches", "legal: batch.size=8"]),
        (["system=torch_gpipe", "batch.size=7"], Refused, ["batch.size=7", "legal: batch.size=6"]),
        (["system=deepspeed_3d", "batch.size=6", "grid.data=2"], Refused, ["batch.size=6", "legal: batch.size=4"]),
        (["system=torch_1f1b", "system.schedule=ScheduleGpipe"], UnknownName, ["did you mean 'ScheduleGPipe'"]),
        (["system=torch_1f1b", "system.data_parallel=dpp"], UnknownName, ["did you mean 'ddp'"]),
    ],
)
def test_refusals_name_the_rule_and_a_legal_value(
    overrides: list[str], kind: type[Exception], words: list[str]
) -> None:
    config = config_of(overrides)
    with pytest.raises(kind) as caught:
        (DeepSpeed3D if "deepspeed" in overrides[0] else TorchPipelining).probe(config)
    assert "rule:" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("overrides", [["system=torch_gpipe", "batch.size=2", "grid.inter=4"], ["system=torch_1f1b"]])
def test_what_runs_is_ready(overrides: list[str]) -> None:
    assert TorchPipelining.probe(config_of(overrides)) == Ready()


def test_a_world_of_another_size_is_refused() -> None:
    config = config_of(["system=torch_1f1b", "grid.inter=2"])
    with pytest.raises(Refused, match="grid of 2 ranks"):
        TorchPipelining(loopback.LoopbackWorld(loopback.Hub(1), 0), config)
    with pytest.raises(Refused, match=r"without torch\.distributed"):
        TorchPipelining(loopback.LoopbackWorld(loopback.Hub(2), 0), config)
    assert not dist.is_initialized()


def test_deepspeed_that_is_not_here_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.deepspeed_3d.find_spec", lambda name: None)
    found = DeepSpeed3D.probe(config_of(["system=deepspeed_3d"]))
    assert isinstance(found, Missing)
    assert "pip install deepspeed" in found.reason


def test_a_lock_that_a_killed_build_left_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs("deepspeed")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda tool: f"/bin/{tool}")
    with_memory = config_of(["system=deepspeed_3d", "system.shm_comm=true"])
    lock = tmp_path / "deepspeed_shm_comm" / "lock"
    assert DeepSpeed3D.probe(with_memory) == Ready()
    lock.parent.mkdir()
    with lock.open("w"):
        assert DeepSpeed3D.probe(with_memory) == Ready(), "another rank is building"
    found = DeepSpeed3D.probe(with_memory)
    assert isinstance(found, Missing)
    assert f"rm {lock}" in found.reason
    assert DeepSpeed3D.probe(config_of(["system=deepspeed_3d"])) == Ready(), "nothing is built then"


def test_shared_memory_wants_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs("deepspeed")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda tool: None)
    found = DeepSpeed3D.probe(config_of(["system=deepspeed_3d", "system.shm_comm=true"]))
    assert isinstance(found, Missing)
    assert "ninja" in found.reason
    assert DeepSpeed3D.probe(config_of(["system=deepspeed_3d"])) == Ready()
