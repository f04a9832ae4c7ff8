"""Settings that a config gives every peer, recomputed pieces, and batches that DeepSpeed skips."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from baselines.common import PeerPlan, TrainOptions, train_options
from baselines.deepspeed_3d import DeepSpeed3D
from baselines.pytorch import PyTorch
from baselines.tensor_parallel import check_heads
from baselines.torch_pipelining import TorchPipelining
from suite.config.compose import resolve
from suite.core.errors import InvalidRequest, Unsupported
from tests.support.curves import config_of
from tests.support.refusals import refused


def test_options_are_those_of_the_config() -> None:
    assert train_options(config_of([])) == TrainOptions(half=None, loss_scale=None, clip=None, checkpoints=None)
    config = config_of(["precision=fp16", "optimizer.clip_norm=0.5", "activation_checkpointing=3"])
    assert train_options(config) == TrainOptions(torch.float16, config.precision.loss_scale, 0.5, 3)
    with refused(InvalidRequest, "precision.half", "float61", legal="precision.half=float16"):
        train_options(config_of(["precision.half=float61"]))


def test_a_peer_scales_by_its_own_rule() -> None:
    assert train_options(config_of(["precision=fp16", "precision.loss_scale.start=1024.0"])).scale().start == 1024.0
    assert train_options(config_of([])).scale().most == 1.0
    other = config_of([]).changed({"precision.loss_scale": {"_target_": "suite.core.grid.Grid"}})
    with refused(InvalidRequest, "precision.loss_scale"):
        train_options(other).scale()


def test_networks_that_a_peer_cannot_split_are_refused() -> None:
    overrides = ["system=deepspeed_3d", "grid.tensor=2", "model=vgg_narrow", "data=digits", "optimizer=sgd"]
    with refused(Unsupported, subject="deepspeed_3d with model=vgg_narrow and grid.tensor=2"):
        DeepSpeed3D.probe(resolve(overrides))
    translator = config_of(["system=deepspeed_3d", "model=gnmt_narrow"])
    for system in (DeepSpeed3D, TorchPipelining, PyTorch):
        with refused(Unsupported, subject="with model=gnmt_narrow"):
            system.probe(translator)
    check_heads(24, 3)
    with refused(InvalidRequest, "grid.tensor", "5", subject="with model.shape.heads=24", legal="grid.tensor=4"):
        check_heads(24, 5)


@pytest.mark.parametrize(
    ("overrides", "pieces"),
    [
        ([], [[(0,), (1,), (2,)], [(3,), (4,), (5,)]]),
        (["activation_checkpointing=auto"], [[(0,), (1, 2)], [(3, 4), (5,)]]),  # sqrt(4)
        (["activation_checkpointing=2", "model.shape.layers=6"], [[(0,), (1, 2), (3,)], [(4, 5), (6,), (7,)]]),
        (["activation_checkpointing=9"], [[(0,), (1, 2)], [(3, 4), (5,)]]),
    ],
)
def test_pieces_begin_at_a_stage_s_first_block(overrides: list[str], pieces: list[list[tuple[int, ...]]]) -> None:
    plan = PeerPlan(config_of(["grid.inter=2", *overrides]))
    assert [plan.pieces(part) for part in plan.split] == pieces
    again = [piece for stage in pieces for piece in stage if plan.recomputed(piece)]
    blocks = range(1, plan.split[-1].stop - 1)
    assert [number for piece in again for number in piece] == (list(blocks) if overrides else [])


def test_skipped_batches_do_not_change_the_learning_rate() -> None:
    """DeepSpeed counts every batch as a step; the first two of these overflow."""
    system = object.__new__(DeepSpeed3D)
    system.plan, system.replica = PeerPlan(config_of(["batch.size=4", "batch.microbatch=2"])), 0
    group, rates = {"lr": 0.0}, []
    optimizer, system.rate = SimpleNamespace(param_groups=[group]), lambda update: float(update + 1)
    for steps, skipped in enumerate((0, 1, 2, 2, 2)):
        system.engine = SimpleNamespace(
            optimizer=optimizer, global_steps=steps, skipped_steps=skipped, train_batch=lambda rows: 1.0
        )
        system.train_batch((np.zeros((4, 8)), np.zeros((4, 8))))
        rates.append(group["lr"])
    assert rates == [1.0, 1.0, 1.0, 2.0, 3.0]
