"""Law 2 in mixed precision: every grid, bucket size, layout and checkpointing is bit-identical to a plain loop.

One replica sums like one process; two are compared with a loop that keeps two partial sums.
"""

from __future__ import annotations

from functools import partial
from itertools import product
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
from suite.memory.layout import offloaded
from suite.schedule import MessageDriven, OneFOneB
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.drawn import cells, drawn, few
from tests.support.mixed import BATCHES, EVERYTHING, OFFLOADED, PLAIN, MixedPrecisionCheck, mixed_engine, state_tensors

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2), Grid(inter=4)]
VARIANTS = {
    "plain": PLAIN,
    "overlap": {"bucket_numel": 333, "buckets_per_reduction": 2},
    "offload": OFFLOADED,
    "two sets": {"memory": partial(offloaded, bucket=77, sets=2), "bucket_numel": 77, "buckets_per_reduction": 1},
    "activation_checkpointing": {"activation_checkpointing": 1},
    "everything": EVERYTHING,
}


def check(case: Case, grid: Grid, half: str, rule: Any, scale: float, **more: Any) -> int:
    """Compare a grid of threads with the loop. Returns the number of skipped batches."""
    checked = MixedPrecisionCheck(case, grid, half, rule, scale)
    (skipped,) = set(threads.run(grid.size, partial(checked.rank, **more)))
    return skipped


ODD = {"bucket_numel": 11, "buckets_per_reduction": 2}
TIED, DROPOUT = (gpt_case(name, "float32", dropout=rate, layers=4) for name, rate in (("tied", 0.0), ("dropout", 0.3)))
RULES = (SGD(0.1, momentum=0.9, weight_decay=0.01), Adam(0.01, weight_decay=0.1))
SCHEDULES = (GPipe(), OneFOneB(), MessageDriven(pipeline_limit=1))
ROWS: list[tuple[Case, Grid, str, Any, float, dict[str, Any]]] = [
    *((TIED, grid, "bfloat16", AdamW(0.01), 256.0, more) for grid, more in product(GRIDS, VARIANTS.values())),
    *((TIED, grid, "float16", AdamW(0.01), 256.0, EVERYTHING) for grid in GRIDS[1:4]),
    *((DROPOUT, grid, "bfloat16", rule, 64.0, EVERYTHING) for rule, grid in product(RULES, GRIDS[1:4])),
    *((DROPOUT, GRIDS[3], "bfloat16", AdamW(0.01), 1.0, {"schedule": one, **EVERYTHING}) for one in SCHEDULES),
    *(
        (odd_case(torch.float32), grid, half, SGD(0.1, momentum=0.9), 1.0, {**ODD})
        for grid, half in product(GRIDS[:3], ["bfloat16", "float16"])
    ),
]


@pytest.mark.parametrize("row", drawn(range(len(ROWS)), n=8))
def test_mixed_precision_matches_reference(row: int) -> None:
    """Grids, buckets, layouts, checkpointing, update rules, schedules, dropout and odd shapes."""
    case, grid, half, rule, scale, more = ROWS[row]
    assert check(case, grid, half, rule, scale, **more) == 0


@pytest.mark.parametrize(
    ("grid", "variant"), drawn([(Grid(), "plain"), *((grid, "everything") for grid in GRIDS[1:4])], n=2), ids=str
)
def test_overflowing_batches_are_skipped_on_every_rank(grid: Grid, variant: str) -> None:
    """The initial scale is far too large: gradients overflow within passes, on some ranks only."""
    case = gpt_case("tied", "float32", layers=4)
    assert check(case, grid, "float16", AdamW(0.01), 2.0**19, **VARIANTS[variant]) >= 1


# -- one precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grid", "dtype"), cells([GRIDS[0], *GRIDS[2:4]], ["float32", "float64"], n=1), ids=str)
def test_variants_are_bit_identical_in_one_precision(grid: Grid, dtype: str) -> None:
    case = gpt_case("dropout", dtype, dropout=0.3, layers=4)
    batches = [case.batch(number, count, grid.data) for number, count in enumerate(BATCHES)]

    def trained(world: Any, **more: Any) -> tuple[list[float], list[list[float]]]:
        engine = mixed_engine(case, world, grid, AdamW(0.01), None, 1.0, **more)
        losses = list(engine.train(batches))
        engine.close()
        return losses, [t.tolist() for t in state_tensors(engine)]

    plain = threads.run(grid.size, trained)
    for name, variant in few(VARIANTS.items(), 3):
        assert threads.run(grid.size, partial(trained, **variant)) == plain, name


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


def test_loss_is_divided_before_gradients_are_summed() -> None:
    """The sum of eight gradients of 16384 overflows float16; the sum of eight of 2048 is 16384."""
    assert torch.isinf(torch.full((8,), 16384.0, dtype=torch.float16).sum())
    engine = Engine([Scaled()], loss=mean_only, optimizer=SGD(2.0**-15), microbatch=1, half="float16")
    engine.train_batch((torch.full((8, 1), 16384.0), torch.zeros(8, 1)))
    assert engine.state.update.skipped == 0
    assert float(engine.state.model_states.rule.weights[0]) == 1.0 - 16384.0 * 2.0**-15


def test_master_weights_are_initial_full_precision_weights() -> None:
    value = 1.0 + 2.0**-20
    engine = Engine([Scaled(value)], loss=mean_only, optimizer=SGD(1.0), microbatch=1, half="bfloat16")
    assert float(engine.state.model_states.rule.weights[0]) == value
    (weight,) = engine.state.model_states.parameters
    assert weight.dtype == torch.bfloat16
    assert float(weight.detach()) == 1.0
    engine.train_batch((torch.zeros(2, 1), torch.zeros(2, 1)))
    assert float(engine.state.model_states.rule.weights[0]) == value


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
