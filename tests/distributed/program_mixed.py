"""Program of each MPI rank for test_mixed.py: mixed precision with all options, against a plain loop, bit for bit."""

from __future__ import annotations

from suite.comm.world import init_world
from suite.core.grid import Grid
from suite.engine.optim.optimizer import AdamW
from suite.engine.process_setup import prepare
from tests.support.cases import gpt_case
from tests.support.mixed import EVERYTHING, MixedPrecisionCheck


def main() -> None:
    prepare(1)
    world = init_world()
    case = gpt_case("dropout", "float32", dropout=0.3, layers=4)
    grids = [Grid(inter=2), Grid(data=2)] if world.size == 2 else [Grid(inter=4), Grid(inter=2, data=2)]
    for grid in grids:
        MixedPrecisionCheck(case, grid, "bfloat16", AdamW(0.01), 64.0).rank(world, **EVERYTHING)
        overflowing = MixedPrecisionCheck(case, grid, "float16", AdamW(0.01), 2.0**19)
        assert overflowing.rank(world, **EVERYTHING) >= 1
    world.close()


if __name__ == "__main__":
    main()
