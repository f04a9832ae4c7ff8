"""Program of each of two ranks for test_clock.py: several systems one after the other, and the spans of their
batches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from suite.comm.world import init_world
from suite.config.run import RunConfig
from suite.engine.process_setup import prepare
from suite.engine.system import EngineSystem


def main(batches: int, job: Path) -> None:
    prepare(1)
    world = init_world()
    traces_of_config: list[list[list[Any]]] = []
    for config in map(RunConfig.model_validate, json.loads(job.read_text())):
        shape = config.model.shape.arguments
        tokens = np.random.default_rng(0).integers(0, shape["vocabulary"], (config.batch.size, shape["sequence"]))
        system = EngineSystem(world=world, config=config)
        traces = []
        for _ in range(batches + 1):
            system.train_batch((tokens, tokens))
            traces.append([span.row() for span in system.observe()])
        system.close()
        traces_of_config.append(traces[1:])  # the first one is a warm-up
    job.with_name(f"rank{world.rank}.json").write_text(json.dumps(traces_of_config))
    world.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
