"""Two ranks: a split model with torch's optimizer trains, predicts, and gathers, saves and loads its weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from suite.comm.world import init_world
from suite.core.grid import Grid
from suite.engine.engine import Engine
from tests.support.scripts import example


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    train, plain = example("train_gpt"), example("plain_gpt")
    expected, validation, text = plain.main(steps=8, dtype=torch.float64, folder=folder / f"plain-{os.getpid()}")
    for number, grid in enumerate((Grid(inter=2), Grid(data=2))):
        losses, ours, written = train.main(steps=8, dtype=torch.float64, folder=folder / f"ours-{number}", grid=grid)
        assert max(abs(a - b) / b for a, b in zip(losses, expected, strict=True)) < 1e-11
        assert abs(ours - validation) < 1e-11
        assert written == text
        torch.manual_seed(0)
        model = train.GPT().double()
        engine = Engine(
            model, loss=train.loss_of, optimizer=train.make_optimizer, microbatch=4, grid=grid, clip_norm=1.0
        )
        losses = [engine.train_batch(train.batch_of(step)) for step in range(3)]
        weights = engine.state_dict()
        assert bool(weights) == (engine.rank == 0)
        for sharded in (False, True):
            place = folder / f"model-{number}-{sharded}"
            engine.save_model(place, sharded=sharded)
            outputs = engine.predict(train.batch_of(9)[0])
            engine.train_batch(train.batch_of(4))
            engine.load_model(place)
            assert torch.equal(engine.predict(train.batch_of(9)[0]), outputs)
        if engine.rank == 0:
            torch.manual_seed(1)
            other = train.GPT().double()
            other.load_state_dict(weights)
            with torch.no_grad():
                torch.testing.assert_close(other.eval()(train.batch_of(9)[0]), outputs, rtol=1e-11, atol=1e-11)
        engine.close()
        print(f"{grid}: equal")
    init_world().close()  # the engines share it


if __name__ == "__main__":
    main(Path(sys.argv[1]))
