"""Law 2 for updates: on every grid, training equals plain training in one process, bit for bit.

One product of settings has mixed precision, SAMO's masks, buckets, layouts, checkpointing, update rules and schedules.
The reference (tests/support/masked.py) has no indices, buckets or stages: it multiplies by masks. One replica sums like
one process; two are compared with a loop that keeps two partial sums.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from baselines.gpipe import GPipe
from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.memory.layout import compressed, offloaded
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.message_driven_split import MessageDrivenSplit
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.drawn import drawn, generator
from tests.support.masked import TrainingCheck

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2), Grid(inter=4)]
RULES = [SGD(0.1, momentum=0.9, weight_decay=0.01), Adam(0.01, weight_decay=0.1), AdamW(0.01)]
SCHEDULES = [MessageDriven(), MessageDriven(pipeline_limit=1), MessageDrivenSplit(cap=3, late=1), GPipe(), OneFOneB()]
BUCKETS: list[dict[str, Any]] = [
    {},
    {"bucket_numel": 333, "buckets_per_reduction": 2},
    {"bucket_numel": 11, "buckets_per_reduction": 2},
]
OFFLOADS: list[dict[str, Any]] = [  # bucket and buffers of offloaded states
    {"bucket": 77, "sets": 1, "buckets_per_reduction": 1},
    {"bucket": 77, "sets": 2, "buckets_per_reduction": 1},
    {"bucket": 100, "sets": 1, "buckets_per_reduction": 3},
]
TIED, DROPOUT = (gpt_case(name, "float32", dropout=rate, layers=4) for name, rate in (("tied", 0.0), ("dropout", 0.3)))
DOUBLE = gpt_case("tied", "float64", layers=4)


def draw(choice: random.Random) -> tuple[Case, Grid, Any, dict[str, Any]]:
    """Model, grid, update rule and settings of one training."""
    pick = choice.choice
    half, sparsity = pick([None, "bfloat16", "float16"]), pick([None, None, 0.0, 0.25, 0.5, 0.9])
    case = pick([TIED, TIED, DROPOUT, odd_case(torch.float32)] + ([DOUBLE] if half is None else []))
    options: dict[str, Any] = {"half": half, "sparsity": sparsity, "schedule": pick(SCHEDULES)}
    if sparsity is not None:
        options["what"] = pick(["weights", "all"])
    elif half:
        options["scale"] = pick([1.0, 256.0, *([2.0**19] if half == "float16" else [])])  # the last overflows
    if pick([True, False]) and case is not DOUBLE:
        options |= pick(OFFLOADS)
        layout = offloaded if sparsity is None else partial(compressed, offloaded=True)
        bucket = options["bucket_numel"] = options.pop("bucket")
        options["memory"] = partial(layout, bucket=bucket, sets=options.pop("sets"), half=half)
    else:
        options |= pick(BUCKETS)
    if pick([True, False]):
        options["activation_checkpointing"] = 1
    return case, pick(GRIDS), pick(RULES), options


def check(case: Case, grid: Grid, rule: Any, **options: Any) -> int:
    """Compare a grid of threads with one process. Returns the number of skipped batches."""
    (skipped,) = set(threads.run(grid.size, TrainingCheck(case, grid, rule, **options).rank))
    return skipped


@pytest.mark.parametrize("number", drawn(range(200), n=8))
def test_training_equals_one_process(number: int) -> None:
    case, grid, rule, options = draw(generator("training", number))
    print(case.name, grid, rule, options)  # of a failed test
    check(case, grid, rule, **options)


@pytest.mark.parametrize("grid", drawn(GRIDS, n=1), ids=str)
def test_overflowing_batches_are_skipped_on_every_rank(grid: Grid) -> None:
    """The initial scale is far too large: gradients overflow within passes, on some ranks only."""
    assert check(TIED, grid, AdamW(0.01), half="float16", scale=2.0**19) >= 1


@pytest.mark.parametrize("grid", drawn([GRIDS[0], GRIDS[3]], n=1), ids=str)
def test_clipping_uses_norm_of_kept_entries(grid: Grid) -> None:
    """The norm has fewer zeros to add, in another order, so equality holds to 1e-6 only."""
    check(TIED, grid, SGD(0.1, momentum=0.9), sparsity=0.8, clip_norm=0.05, close=1e-6)


# -- faults of the original ------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """x times one weight, so the gradient is the input."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def mean_only(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return output.float().mean(0).sum()


def test_frozen_weight_does_not_shift_buckets() -> None:
    def layers() -> list[nn.Module]:
        torch.manual_seed(0)
        layers = [nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(2, 1)]
        layers[0].bias.requires_grad_(False)
        layers[1].weight.requires_grad_(False)
        return layers

    def after(**more: Any) -> list[torch.Tensor]:
        engine = Engine(
            layers(),
            loss=mean_only,
            optimizer=Adam(0.1),
            microbatch=2,
            half="bfloat16",
            **({"bucket_numel": None} | more),
        )
        engine.train_batch((torch.ones(4, 3), torch.zeros(4, 1)))
        return [p.detach().clone() for p in engine.state.stage.layers.parameters()]

    before = [p.detach().bfloat16() for layer in layers() for p in layer.parameters()]
    plain = after()
    for bucket in (1, 2, 4, 100):
        weights = after(memory=partial(offloaded, bucket=bucket), bucket_numel=bucket, buckets_per_reduction=2)
        assert all(torch.equal(a, b) for a, b in zip(weights, plain, strict=True)), bucket
    moved = [not torch.equal(a, b) for a, b in zip(plain, before, strict=True)]
    assert moved == [True, False, False, True, True, True]


def test_evaluation_does_not_change_loss_scale() -> None:
    engine = Engine(
        [Scaled()],
        loss=mean_only,
        optimizer=SGD(0.0),
        microbatch=1,
        half="float16",
        loss_scaler=DynamicLossScaler(4.0, patience=2),
    )
    batch = torch.ones(1, 1), torch.zeros(1, 1)
    engine.train_batch(batch)
    for _ in range(3):
        engine.evaluate([batch])
    assert engine.state.loss_scaler is not None
    assert (engine.state.loss_scaler.clean, engine.state.loss_scaler.scale) == (1, 4.0)
    engine.train_batch(batch)
    assert engine.state.loss_scaler.scale == 8.0
