"""What each MPI rank runs for tests/laws/test_memory.py: systems built from frozen configs, one counted batch each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from suite.comm import here
from suite.core.build import build
from suite.engine.host import prepare
from suite.engine.system import EngineSystem


def main(job: Path) -> None:
    prepare(1)
    world = here()
    found = []
    for config in json.loads(job.read_text()):
        data, shape = build(config["data"]["source"]), build(config["model"]["shape"])
        system = EngineSystem(world=world, config=config)
        for number in range(2):
            _, held = system.memory(data.batch(number, size=config["batch"]["size"], seed=0, shape=shape))
        found.append({"held": held, "allocated": system.engine.state.allocated(), "in_flight": system.engine.peak})
        system.close()
    assert "torch._dynamo" not in sys.modules, "counting loads a compiler: seconds per rank"
    job.with_name(f"rank{world.rank}.json").write_text(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
