"""Program of two MPI ranks for tests/laws/test_memory.py: rank 1 polls for messages before it counts a batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

from suite.comm.world import init_world
from suite.config.run import RunConfig
from suite.engine.process_setup import prepare
from suite.engine.system import EngineSystem

DELAY = 0.3  # seconds in which the first rank could send all microbatches of its next batch


def main(job: Path) -> None:
    prepare(1)
    world = init_world()
    config = RunConfig.model_validate(json.loads(job.read_text()))
    system = EngineSystem(world=world, config=config)
    batch = config.data.source.build().batch(0, size=config.batch.size, seed=0, shape=config.model.shape.build())
    _, prompt = system.memory(batch)
    until = perf_counter() + DELAY * world.rank
    while perf_counter() < until:
        system.engine.state.comm.transport.progress()
    _, late = system.memory(batch)
    system.close()
    job.with_name(f"rank{world.rank}.json").write_text(json.dumps([prompt, late]))
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
