"""Program of each rank for test_asynchronous.py: asynchronous systems over real messages, and their replay.

Arguments: the transport, and the stride over the systems on each grid (1 runs all). Two epochs, so that the second
starts with state. The models have dropout, tuples, integers and running statistics.
"""

from __future__ import annotations

import sys
from typing import Any

from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.comm.p2p.message import EAGER_BYTES
from suite.conformance.replays import compare_with_replay
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.engine.process_setup import prepare
from suite.engine.replay.replay import Replay
from suite.weights.policy import Predict
from tests.distributed.program_laws import world_of
from tests.support.cases import all_cases, gpt_case
from tests.support.reference import SEED

SYSTEMS: list[tuple[Any, Any]] = [
    (Stash(), Adam(0.01)),
    (Stash("keep"), SGD(0.05, momentum=0.9)),
    (DoubleBuffer(), AdamW(0.01)),
    (SpecTrain(), SGD(0.05, momentum=0.9)),
    (Predict(), Adam(0.01)),
    (Predict("inflight", "swap"), AdamW(0.01)),
    (Predict("authors", "keep"), SGD(0.05, momentum=0.9)),
]


def main(transport: str, every: int) -> None:
    prepare(1)
    world = world_of(transport, "any", EAGER_BYTES)
    grids = [Grid(inter=2)] if world.size == 2 else [Grid(inter=4), Grid(inter=2, data=2)]
    compared = 0
    for number, grid in enumerate(grids):
        cases = [gpt_case("dropout", "float32", tied=False, dropout=0.2, layers=2)]
        cases += [all_cases()[5]] if grid.size == 2 else []
        for case in cases:
            for policy, rule in SYSTEMS[(number + 1) % every :: every]:
                arguments = {
                    "loss": case.loss,
                    "optimizer": rule,
                    "microbatch": case.microbatch,
                    "weights": policy,
                    "update_interval": grid.inter if isinstance(policy, DoubleBuffer) else 1,
                    "seed": SEED,
                    "grid": grid,
                }
                engine, replay = Engine(case.layers, world=world, **arguments), Replay(case.layers, **arguments)
                for first, count in ((0, 9), (50, 5)):
                    batches = [case.batch(first + i, 1, grid.data) for i in range(count)]
                    losses, right = list(engine.train(batches)), list(replay.train(batches))
                    assert losses == right, (grid, policy, rule, losses, right)
                compared += compare_with_replay(engine, replay, f"{grid} {policy} {rule}")
                engine.close()
    world.close()
    if world.rank == 0:
        print(f"{transport}: {compared} weights compared")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
