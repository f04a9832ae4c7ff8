"""Laws 2 and 4 for recurrent networks: tuples with integers, swapped weights, bytes of plain kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suite.comm.p2p.threads import run
from suite.config.compose import resolve
from suite.conformance.memory import count_memory
from suite.core.grid import Grid
from suite.models import gnmt, recurrent
from suite.runner.estimate import budgets
from suite.schedule import MessageDriven, OneFOneB
from suite.weights import Latest
from suite.workload import GNMT, ResidualLSTM
from tests.support.cases import Case
from tests.support.drawn import drawn
from tests.support.laws import check_gradients

TEXTS, PAIRS = ResidualLSTM(3, 5, 6, sequence=4, vocabulary=9, classes=3), GNMT(3, 2, 4, sequence=5, vocabulary=9)


def texts(generator: torch.Generator, samples: int) -> tuple[Any, Any]:
    tokens = torch.randint(0, 9, (samples, 4), generator=generator)
    return tokens, torch.randint(0, 3, (samples,), generator=generator)


def pairs(generator: torch.Generator, samples: int) -> tuple[Any, Any]:
    """Sources and targets of one to four words."""
    rows = torch.randint(4, 9, (3, samples, 5), generator=generator)
    rows[:, :, 4] = 0
    rows[:, ::2, 2:] = 0
    return (rows[0], rows[1]), rows[2]


def case(kind: str, dtype: str, dropout: float = 0.0) -> Case:
    if kind == "gnmt":
        layers = gnmt.layers(PAIRS, dropout=dropout, dtype=dtype)
        return Case(f"gnmt-{dtype}", layers, gnmt.loss, pairs)
    return Case(f"lstm-{dtype}", recurrent.layers(TEXTS, dropout=dropout, dtype=dtype), recurrent.loss, texts)


@pytest.mark.parametrize(
    ("kind", "dtype", "grid"),
    drawn(
        [
            ("lstm", "float32", Grid(inter=2, data=2)),
            ("lstm", "float64", Grid(inter=4)),
            ("gnmt", "float32", Grid(inter=4)),
            ("gnmt", "float64", Grid(inter=2, data=2)),
        ],
        n=2,
    ),
    ids=str,
)
def test_every_split_matches_one_process_gradients(kind: str, dtype: str, grid: Grid) -> None:
    tried, again = case(kind, dtype, dropout=0.3), Latest("recompute")
    assert sum(run(grid.size, lambda world: check_gradients(tried, grid, OneFOneB(), world))) > 0
    compared = run(grid.size, lambda world: check_gradients(tried, grid, MessageDriven(), world, weights=again))
    assert sum(compared) > 0


@pytest.mark.parametrize(
    "overrides",
    drawn(
        [
            ["model=residual_lstm_narrow", "data=snippets", "model.shape.embedding=48"],
            ["model=residual_lstm_narrow", "data=snippets", "model.shape.sequence=64", "model.shape.layers=2"],
            ["model=gnmt_narrow", "data=number_names"],
            ["model=gnmt_narrow", "data=number_names", "model.shape.sequence=40", "model.shape.hidden=16"],
        ],
        n=1,
    ),
    ids=" ".join,
)
def test_predicted_bytes_match_counted_bytes(overrides: list[str]) -> None:
    """In float64, for which torch has plain kernels."""
    common = ["system=axonn_no_memopt", "model.dtype=float64", "batch.size=32", "batch.microbatch=32"]
    config = resolve([*common, *overrides])
    (counts,), (budget,) = run(1, lambda world: count_memory(world, config)), budgets(config)
    measured = counts["peak"]
    off = budget.by_kind()["activations"] / measured["activations"] - 1
    assert abs(off) <= 0.05, f"predicted {budget.by_kind()}, counted {measured}: {off:+.1%}"
