"""Program of each of two ranks for test_clock.py: the spans of a system's batches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from suite.comm.world import init_world
from suite.config.run import RunConfig
from suite.engine.process_setup import prepare
from suite.engine.system import EngineSystem


def main(batches: int, job: Path) -> None:
    prepare(1)
    world = init_world()
    config = RunConfig.model_validate(json.loads(job.read_text()))
    shape = config.model.shape.arguments
    tokens = np.random.default_rng(0).integers(0, shape["vocabulary"], (config.batch.size, shape["sequence"]))
    system = EngineSystem(world=world, config=config)
    traces = []
    for _ in range(batches + 1):
        system.train_batch((tokens, tokens))
        traces.append([span.row() for span in system.observe()])
    system.close()
    job.with_name(f"rank{world.rank}.json").write_text(json.dumps(traces[1:]))  # the first one is a warm-up
    world.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
