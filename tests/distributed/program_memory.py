"""Program of each MPI rank for tests/laws/test_memory.py: systems built from frozen configs, one counted batch each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from suite.comm.world import init_world
from suite.config.run import RunConfig
from suite.conformance.memory import count_memory
from suite.engine.process_setup import prepare


def main(job: Path) -> None:
    prepare(1)
    world = init_world()
    before = "torch._dynamo" in sys.modules  # loaded by an earlier program of these ranks
    counted = [count_memory(world, RunConfig.model_validate(data)) for data in json.loads(job.read_text())]
    assert before or "torch._dynamo" not in sys.modules, "counting loads a compiler: seconds per rank"
    job.with_name(f"rank{world.rank}.json").write_text(json.dumps(counted))
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
