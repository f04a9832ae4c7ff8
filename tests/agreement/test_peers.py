"""The original packages start where the suite starts: on every grid their losses equal plain PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from baselines.common import PeerPlan
from baselines.deepspeed_3d import DeepSpeed3D
from baselines.tensor_parallel import SPLIT
from baselines.torch_pipelining import TorchPipelining
from suite.cli.run import run
from suite.comm.p2p import threads
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import Missing, Ready
from suite.core.record import Outcome
from suite.models.gpt import TransformerBlock
from tests.support.curves import config_of, one_process, peer_curves
from tests.support.drawn import few
from tests.support.ranks import on_new_ranks
from tests.support.refusals import refused
from tests.support.short import short
from tests.support.tools import needs

BATCHES = 6
SMALL = "batch.size=8"
TOLERANCE = 1e-5
HALF_TOLERANCE = 5e-4  # sums in half precision round by their order; measured are 2e-4
WARMUP = ["optimizer.lr={_target_: suite.engine.optim.lr_schedule.WarmupCosine, lr: 0.002, total: 8, warmup: 3}"]


def apart(a: float, b: float) -> float:
    return abs(a - b) / abs(b)


def weights_of(config: RunConfig) -> list[int]:
    """Entries of the weights of every rank, sorted: the suite's split on every replica; a part of each split layer."""
    plan = PeerPlan(config)

    def entries(number: int) -> int:
        layer = plan.layer(number)
        cut = SPLIT if isinstance(layer, TransformerBlock) else ()
        parameters = layer.named_parameters()
        return sum(p.numel() // (plan.grid.tensor if name in cut else 1) for name, p in parameters)

    sizes = [sum(map(entries, part)) for part in plan.split]
    if plan.grid.inter == 1:  # both ends of a tie are one
        sizes[0] -= sum(plan.layer(last).get_parameter(name).numel() for _, _, last, name in plan.ties)
    return sorted(sizes * plan.grid.data * plan.grid.tensor)


def passes_of(config: RunConfig) -> dict[str, int]:
    """Forward passes of each kind of layer in a batch, over all ranks: blocks, and nothing else, are computed again."""
    once = config.batch.size // config.batch.microbatch * config.grid.tensor
    layers, again = config.model.shape.arguments["layers"], config.activation_checkpointing is not None
    return {"TokenEmbedding": once, "TransformerBlock": layers * once * (2 if again else 1), "Head": once}


# by ranks, of every run: overrides of the system and its grid, and those that hold for the reference too
DEEPSPEED, ONE_F_ONE_B = "system=deepspeed_3d", "system=torch_pipelining"
GPIPE = ONE_F_ONE_B, "schedule=gpipe"
SGD, CLIP, LOOSE = "optimizer=sgd", "optimizer.clip_norm=0.3", "optimizer.clip_norm=1.0"
BF16 = ["precision=bf16", SGD, "optimizer.lr=0.02"]  # a larger rate turns roundings into differences
OVERFLOWS = ["precision=fp16", "precision.loss_scale.start=1048576.0"]  # twice, and then it trains
Run = tuple[list[str], list[str]]
FLOAT32 = ["system.accumulate=float32", "system.reduce=float32"]
RUNS: dict[int, list[Run]] = {
    1: [
        ([DEEPSPEED], [SGD]),
        ([DEEPSPEED, "system.zero_stage=1"], BF16),
        ([*GPIPE], WARMUP),
        ([ONE_F_ONE_B, "system.fused=false"], []),
    ],
    2: [
        ([DEEPSPEED, "grid.inter=2"], ["model.shape.layers=3"]),  # 3 of the 5 layers are on the first stage
        ([DEEPSPEED, "grid.inter=2"], ["activation_checkpointing=2", *WARMUP]),
        ([DEEPSPEED, "grid.inter=2"], [SGD, CLIP]),
        ([DEEPSPEED, "grid.tensor=2"], ["model.shape.attention_bias=true", SGD, CLIP]),
        ([DEEPSPEED, "grid.tensor=2", "system.zero_stage=1"], BF16),
        ([*GPIPE, "grid.inter=2"], ["batch.microbatch=8"]),  # one microbatch: fewer than stages
        ([*GPIPE, "grid.inter=2"], [*OVERFLOWS, SGD]),
        ([ONE_F_ONE_B, "grid.inter=2"], [*BF16, "activation_checkpointing=2"]),
        # Adam does not see a gradient that is a multiple of the right one: replicas are compared with SGD
        ([DEEPSPEED, "grid.data=2", "system.zero_stage=1"], [SGD]),
        ([*GPIPE, "grid.data=2", "system.data_parallel=ddp"], [SGD]),
        ([ONE_F_ONE_B, "grid.data=2"], [SGD]),
        ([DEEPSPEED, "grid.inter=2"], [*BF16, "activation_checkpointing=1"]),
        ([ONE_F_ONE_B, "grid.inter=2"], ["model.shape.layers=3"]),
        ([DEEPSPEED, "grid.data=2"], [SGD]),
    ],
    4: [
        ([DEEPSPEED, "grid.inter=2", "grid.data=2", "system.zero_stage=1"], []),
        ([DEEPSPEED, "grid.inter=2", "grid.data=2", "system.zero_stage=1", *FLOAT32], BF16),
        ([DEEPSPEED, "grid.tensor=2", "grid.inter=2"], [SGD, CLIP, "activation_checkpointing=2"]),
        ([DEEPSPEED, "grid.tensor=2", "grid.inter=2", "system.partitioned=false"], []),
        ([DEEPSPEED, "grid.tensor=2", "grid.data=2", "system.zero_stage=1"], [SGD, CLIP]),
        ([*GPIPE, "grid.inter=2", "grid.data=2"], [SGD, CLIP]),
        (
            [ONE_F_ONE_B, "grid.inter=2", "grid.data=2", "system.data_parallel=ddp"],
            [*BF16, LOOSE, "activation_checkpointing=1"],
        ),
    ],
}


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "runs"),
    [
        (1, few(RUNS[1], 1)),
        pytest.param(2, RUNS[2], marks=pytest.mark.exhaustive),
        pytest.param(4, RUNS[4], marks=pytest.mark.exhaustive),
    ],
    ids=["1", "2", "4"],
)
def test_losses_are_those_of_one_process(ranks: int, runs: list[Run], tmp_path: Path) -> None:
    needs("mpiexec")
    needs("deepspeed")
    configs = [config_of([*system, SMALL, *more]) for system, more in runs]
    extensions = tmp_path / "extensions"
    extra = {"TORCH_EXTENSIONS_DIR": str(extensions)}
    curves = on_new_ranks(ranks, peer_curves, BATCHES, configs, deadline=180, extra=extra)
    for (system, more), config, every in zip(runs, configs, zip(*curves, strict=True), strict=True):
        check_run([*system, *more], config, list(every), one_process(BATCHES, SMALL, *more))
    assert not extensions.exists(), "nothing is compiled"


def check_run(overrides: list[str], config: RunConfig, every: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    tolerance = HALF_TOLERANCE if config.precision.half else TOLERANCE
    assert all(one["losses"] == every[0]["losses"] for one in every), "every rank is told the same losses"
    worst = max(map(apart, every[0]["losses"], expected["losses"]))
    assert worst <= tolerance, f"{overrides}: {worst:.2e}"
    assert apart(every[0]["held_out"], expected["held_out"]) <= tolerance, overrides
    assert min(every[0]["losses"]) < every[0]["losses"][0] - 0.3, "it learns"
    counted = passes_of(config)
    assert {name: sum(one["passes"].get(name, 0) for one in every) for name in counted} == counted, overrides
    check_memory(config, [one["memory"] for one in every])
    assert all(one["spans"] == 0 for one in every)


def check_memory(config: RunConfig, ranks: list[dict[str, int]]) -> None:
    half, zero = config.precision.half, config.system.more.get("zero_stage")
    deepspeed = zero is not None
    width = 2 if half else 4
    assert sorted(one["weights"] for one in ranks) == [width * entries for entries in weights_of(config)]
    adam = config.optimizer.target.endswith("AdamW")
    share = config.grid.data if zero or (half and deepspeed) else 1
    for one in ranks:
        full = one["weights"] * 4 // width  # bytes of float32 weights
        added = {True: full, False: one["weights"]}[config.system.more.get("accumulate") == "float32"]
        beside = added if half and deepspeed and (added == full or not zero) else 0  # BF16_Optimizer's buffer
        assert one["gradients"] == pytest.approx(one["weights"] + beside, abs=64)
        assert one["moments"] == pytest.approx((2 if adam else 1) * full / share, abs=64)  # ZeRO pads
        if zero or half:
            assert one["masters"] == pytest.approx(full / share, abs=64)
        else:
            assert "masters" not in one, "the weights are the only copy"
        assert 0 < one.get("activations", one.get("scratch", 0)) < 30e6


@pytest.mark.slow("a rank imports DeepSpeed")
@pytest.mark.ranks
@pytest.mark.parametrize("grid", [[], pytest.param(["grid.inter=2"], marks=pytest.mark.exhaustive)], ids=str)
def test_a_run_leaves_a_record(grid: list[str], tmp_path: Path) -> None:
    needs("mpiexec")
    needs("deepspeed")
    (record,) = run([*short(rounds=1), SMALL, "system=deepspeed_3d", *grid, f"reports={tmp_path}"])
    assert record.outcome is Outcome.OK, record.reason
    assert len(record.metrics["batch_time"].values) == 1
    assert record.trace is None
    assert record.memory["predicted"] == {}


def test_a_replica_takes_every_so_manieth_microbatch() -> None:
    plan = PeerPlan(config_of(["system=torch_pipelining", "grid.data=2", "batch.size=12", "batch.microbatch=2"]))
    assert plan.rows(np.arange(12), 0).tolist() == [[0, 1], [4, 5], [8, 9]]
    assert plan.rows(np.arange(12), 1).tolist() == [[2, 3], [6, 7], [10, 11]]


# -- what is refused ----------------------------------------------------------------------------------------------


REFUSED: list[tuple[list[str], type[InvalidRequest], str]] = [
    ([DEEPSPEED, "system.zero_stage=2"], Unsupported, "system.zero_stage=1"),
    ([DEEPSPEED, "system.zero_stage=3"], Unsupported, "system.zero_stage=1"),
    ([DEEPSPEED, "model.dtype=float16"], Unsupported, "model.dtype=float32"),
    ([*GPIPE, "model.dtype=float16"], Unsupported, "model.dtype=float32"),
    ([DEEPSPEED, "grid.tensor=3"], InvalidRequest, "grid.tensor=2"),
    ([DEEPSPEED, "grid.tensor=2", "model.dropout=0.1"], Unsupported, "model.dropout=0.0"),
    ([DEEPSPEED, "precision=bf16", "system.accumulate=float32"], Unsupported, "zero_stage=1"),
    ([DEEPSPEED, "system.reduce=bf16"], InvalidRequest, "system.reduce=half"),
    ([*GPIPE, "precision=bf16", "model.dtype=float64"], Unsupported, "model.dtype=float32"),
    ([DEEPSPEED, "optimizer._target_=somewhere.Lion"], Unsupported, "optimizer=adamw"),
    ([ONE_F_ONE_B, "system.data_parallel=dpp"], InvalidRequest, "system.data_parallel=ddp"),
]


def test_refusals_name_a_legal_value() -> None:
    for overrides, kind, legal in REFUSED:
        with pytest.raises(kind) as caught:
            (DeepSpeed3D if overrides[0] == DEEPSPEED else TorchPipelining).probe(config_of(overrides))
        assert legal in str(caught.value.legal), overrides


def test_float16_is_refused_where_deepspeed_would(monkeypatch: pytest.MonkeyPatch) -> None:
    half = ["system=deepspeed_3d", "precision=fp16"]
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    with refused(Unsupported, subject="precision.half=float16", rule="on CUDA", legal="precision=bf16"):
        DeepSpeed3D.probe(config_of(half))
    with refused(Unsupported, legal="system.zero_stage=1"):
        DeepSpeed3D.probe(config_of([*half, "launch.device=cuda"]))
    needs("deepspeed")
    assert DeepSpeed3D.probe(config_of([*half, "launch.device=cuda", "system.zero_stage=1"])) == Ready()


@pytest.mark.parametrize(
    "overrides",
    [["system=torch_pipelining", "schedule=gpipe", "batch.size=2", "grid.inter=4"], ["system=torch_pipelining"]],
)
def test_what_runs_is_ready(overrides: list[str]) -> None:
    assert TorchPipelining.probe(config_of(overrides)) == Ready()


def test_a_world_of_another_size_is_refused() -> None:
    config = config_of(["system=torch_pipelining", "grid.inter=2"])
    with refused(InvalidRequest, subject="grid of 2 ranks", rule="the world has one rank for each place of the grid"):
        TorchPipelining(threads.LoopbackWorld(threads.Hub(1), 0), config)
    with refused(
        InvalidRequest,
        subject="without torch.distributed",
        rule="the ranks of a compared system form one default process",
    ):
        TorchPipelining(threads.LoopbackWorld(threads.Hub(2), 0), config)
    assert not dist.is_initialized()


def test_deepspeed_that_is_not_here_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.deepspeed_3d.find_spec", lambda name: None)
    probed = DeepSpeed3D.probe(config_of(["system=deepspeed_3d"]))
    assert isinstance(probed, Missing)
    assert "pip install deepspeed" in probed.reason
