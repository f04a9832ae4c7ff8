"""Training over MPI and gloo: scripts equal plain PyTorch; mixed precision, SAMO and resumed runs are bit-identical."""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from suite.core.grid import Grid
from suite.core.protocols import World
from suite.engine.engine import Engine
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import SGD, AdamW
from suite.memory.layout import compressed, offloaded
from tests.support.cases import gpt_case, odd_case
from tests.support.drawn import drawn, few
from tests.support.masked import TrainingCheck
from tests.support.ranks import on_ranks
from tests.support.resuming import trained
from tests.support.scripts import example
from tests.support.user_scripts import KINDS

pytestmark = pytest.mark.ranks
TWO = (Grid(inter=2), Grid(data=2))
OFFLOADED = {
    "memory": partial(offloaded, bucket=100),
    "bucket_numel": 100,
    "buckets_per_reduction": 3,
    "activation_checkpointing": 1,
}
GRIDS = drawn([*TWO, Grid(inter=4), Grid(inter=2, data=2)], n=2)


def mixed_precision(world: World, grid: Grid) -> int:
    """Compare mixed precision with all options with a plain loop. Returns the number of skipped batches."""
    case = gpt_case("dropout", "float32", dropout=0.3, layers=4)
    TrainingCheck(case, grid, AdamW(0.01), half="bfloat16", scale=64.0, **OFFLOADED).rank(world)
    return TrainingCheck(case, grid, AdamW(0.01), half="float16", scale=2.0**19, **OFFLOADED).rank(world)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_mixed_precision_is_bit_identical(grid: Grid) -> None:
    assert min(on_ranks(grid.size, mixed_precision, grid)) >= 1


def resume(world: World, grid: Grid, folder: Path) -> int:
    """Law 8. Returns the number of compared tensors."""
    tied, odd = gpt_case("tied", "float32", dropout=0.3, layers=2), odd_case(torch.float64)

    def scaled() -> dict[str, Any]:
        scaler = DynamicLossScaler(2.0**19, patience=2)
        return {"optimizer": AdamW(0.01), "half": "float16", "loss_scaler": scaler, "bucket_numel": 400}

    compared = 0
    for case, options in ((tied, scaled), (odd, lambda: {"optimizer": SGD(0.1, momentum=0.9)})):
        at = folder / case.name
        whole = trained(case, world, grid, range(4), **options())
        trained(case, world, grid, range(2), save=at, **options())
        again = trained(case, world, grid, range(2, 4), load=at, **options())
        assert again.losses == whole.losses[2:], f"{at}: {again.losses} {whole.losses}"
        whole.compare(again, f"{at} rank {world.rank}")
        compared += len(whole.tensors)
    return compared


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_ranks_resume_bit_identically(grid: Grid, tmp_path: Path) -> None:
    assert min(on_ranks(grid.size, resume, grid, tmp_path)) > 0


# -- scripts of users --------------------------------------------------------------------------------------------------


def kinds(world: World, names: list[str]) -> list[tuple[str, str, str]]:
    """Verdict of each kind of script on two stages and on two replicas, unless refused there: the other rank ends."""
    warnings.simplefilter("ignore")
    grids = [(name, f"{grid.inter}x{grid.data}", grid) for name in names for grid in TWO]
    return [(name, on, KINDS[name][0].verdict(grid)) for name, on, grid in grids if on not in KINDS[name][1]]


def test_kinds_of_scripts_equal_the_plain_script() -> None:
    """See tests/laws/test_scripts.py."""
    for verdicts in on_ranks(2, kinds, few([kind for kind in KINDS if kind != "buffer of two stages"], 8)):
        assert verdicts
        assert [row for row in verdicts if row[2] != "equal"] == []


def split_model(world: World, grid: Grid, folder: Path) -> None:
    """Train, predict with, gather, save and load a split model with torch's optimizer."""
    train, plain = example("train_gpt"), example("plain_gpt")
    expected, validation, text = plain.main(steps=8, dtype=torch.float64, folder=folder / f"plain-{os.getpid()}")
    losses, ours, written = train.main(steps=8, dtype=torch.float64, folder=folder / "ours", grid=grid)
    assert max(abs(a - b) / b for a, b in zip(losses, expected, strict=True)) < 1e-11
    assert abs(ours - validation) < 1e-11
    assert written == text
    torch.manual_seed(0)
    model = train.GPT().double()
    arguments = {"loss": train.loss_of, "optimizer": train.make_optimizer, "microbatch": 4, "clip_norm": 1.0}
    engine = Engine(model, grid=grid, world=world, **arguments)
    for step in range(3):
        engine.train_batch(train.batch_of(step))
    weights = engine.state_dict()
    assert bool(weights) == (engine.rank == 0)
    for sharded in (False, True):
        engine.save_model(folder / f"model-{sharded}", sharded=sharded)
        outputs = engine.predict(train.batch_of(9)[0])
        engine.train_batch(train.batch_of(4))
        engine.load_model(folder / f"model-{sharded}")
        assert torch.equal(engine.predict(train.batch_of(9)[0]), outputs)
    if engine.rank == 0:
        torch.manual_seed(1)
        other = train.GPT().double()
        other.load_state_dict(weights)
        with torch.no_grad():
            torch.testing.assert_close(other.eval()(train.batch_of(9)[0]), outputs, rtol=1e-11, atol=1e-11)
    engine.close()


@pytest.mark.parametrize("grid", drawn(TWO, n=1), ids=str)
def test_split_model_trains_and_gathers(grid: Grid, tmp_path: Path) -> None:
    on_ranks(2, split_model, grid, tmp_path)


# -- SAMO --------------------------------------------------------------------------------------------------------------

AWAY = OFFLOADED | {"memory": partial(compressed, bucket=100, offloaded=True)}
OVERLAPPED = {"bucket_numel": 500, "buckets_per_reduction": 2}


def masked_training(world: World, grid: Grid) -> None:
    case = gpt_case("dropout", "float32", dropout=0.3, layers=4)
    for half, more in ((None, {}), ("bfloat16", AWAY)):
        TrainingCheck(case, grid, AdamW(0.01), sparsity=0.8, half=half, batches=(4, 1), **more).rank(world)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_samo_is_masked_training(grid: Grid) -> None:
    on_ranks(grid.size, masked_training, grid)


class Sent:
    """A communicator that counts the bytes of its sends."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.bytes = comm, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def Isend(self, buffer: Any, **more: Any) -> Any:
        self.bytes += buffer[1]  # address, bytes, type
        return self.comm.Isend(buffer, **more)


class Reduced(TorchDispatchMode):
    """Counts the bytes of every all-reduce of a process group, except numbers in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "allreduce_":
            self.bytes += sum(t.numel() * t.element_size() for t in args[0] if t.dtype != torch.float64)
        return func(*args, **(kwargs or {}))


def reduced_bytes(
    world: World, pair_exchange: bool, half: str | None, overlapped: bool, what: str, sparsity: float
) -> list[int]:
    """Entries kept and entries of unpruned weights, and the bytes that this rank sends to reduce a batch's gradients.

    Two replicas over MPI reduce by exchanging bytes, which are counted at the calls of MPI; others at torch's calls.
    """
    case, more = gpt_case("dropout", "float32", dropout=0.3, layers=4), OVERLAPPED if overlapped else {}
    options = {"sparsity": sparsity, "what": what, "half": half, "batches": (), **more}
    engine, batch = TrainingCheck(case, TWO[1], AdamW(0.01), **options).engine(world), case.batch(0, 2, 2)
    states, group = engine.state.model_states, engine.state.comm.data_parallel_group
    kept_entries = sum(index.numel() for index in states.kept.values())
    whole = sum(p.numel() for p in states.parameters if id(p) not in states.kept)
    if pair_exchange:
        before, group.comm = group.comm, Sent(group.comm)
        engine.train_batch(batch)
        sent, group.comm = group.comm.bytes, before
    else:
        with Reduced() as reduced:
            engine.train_batch(batch)
        sent = reduced.bytes
    engine.close()
    return [kept_entries, whole, sent]


@pytest.mark.parametrize("pair_exchange", [True, False])
def test_reduction_sends_only_kept_entries(pair_exchange: bool) -> None:
    """SAMO IV-A: 2 f phi bytes instead of 2 phi; unpruned weights send all bytes."""
    for half, overlapped in few([(half, each) for half in (None, "bfloat16") for each in (False, True)], 1):
        kinds = ("all", 0.0), ("weights", 0.9), ("all", 0.9)
        dense, weights, everything = (
            on_ranks(2, reduced_bytes, pair_exchange, half, overlapped, *kind, pair_exchange=pair_exchange)[0]
            for kind in kinds
        )
        for kept_entries, whole, sent in (dense, weights, everything):
            assert sent == (2 if half else 4) * (kept_entries + whole)
        assert weights[1] > 0 == everything[1] == dense[1]
        assert everything[2] / dense[2] == pytest.approx(0.1, abs=2e-3)
