"""Export of a mask from one training run to another."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from suite.cli.export_mask import main
from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.engine.optim.optimizer import AdamW
from suite.engine.pruning.settings import Pruning
from suite.pruning.from_file import Saved
from suite.pruning.mask import load
from tests.support.cases import gpt_case
from tests.support.drawn import drawn
from tests.support.masked import FixedMask, random_mask
from tests.support.resuming import trained

CASE = gpt_case("tied", "float32", layers=2)


@pytest.mark.parametrize("half", drawn([None, "bfloat16"], n=1))
def test_mask_moves_from_two_stages_to_one(
    half: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indices = random_mask(CASE, 0.75)
    run = partial(trained, CASE, grid=Grid(inter=2), batches=range(1), optimizer=AdamW(0.01), half=half)
    threads.run(2, lambda world: run(world=world, save=tmp_path, pruning=Pruning(FixedMask(indices), 0.75)))
    file = tmp_path / "own" / "ticket.safetensors"
    assert main([str(tmp_path), str(file)]) == 0
    remaining = sum(index.numel() for index in indices.values())
    assert f"{remaining} entries of 8 weights remain, sparsity 0.75" in capsys.readouterr().out
    loaded, entries = load(file)
    assert loaded.keys() == indices.keys()
    assert all(torch.equal(loaded[key], index) for key, index in indices.items())
    assert set(entries.values()) == {16 * 48, 16 * 16, 16 * 64}
    one_stage = partial(trained, CASE, grid=Grid(), batches=range(1), optimizer=AdamW(0.01), half=half)
    threads.run(1, lambda world: one_stage(world=world, pruning=Pruning(Saved(str(file)), 0.75)))


def test_checkpoint_without_a_mask_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense = partial(trained, CASE, grid=Grid(), batches=range(1), optimizer=AdamW(0.01))
    threads.run(1, lambda world: dense(world=world, save=tmp_path / "dense"))
    (tmp_path / "broken" / "step-000001").mkdir(parents=True)
    for folder in ("dense", "nothing", "broken"):
        assert main([str(tmp_path / folder), str(tmp_path / "ticket")]) == 2
        assert capsys.readouterr().err.startswith("refused: ")
    assert main([]) == 2
    assert not (tmp_path / "ticket").exists()
