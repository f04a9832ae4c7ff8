"""What each MPI rank runs for tests/laws/test_memory.py: systems built from frozen configs, one counted batch each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from suite.comm import here
from suite.core.build import build
from suite.data.text import batch_at
from suite.engine.host import prepare
from suite.engine.system import EngineSystem


def main(job: Path) -> None:
    prepare(1)
    world = here()
    found = []
    for config in json.loads(job.read_text()):
        text = build(config["data"]["source"])
        system = EngineSystem(world=world, config=config)
        size, sequence = config["batch"]["size"], config["model"]["shape"]["sequence"]
        for number in range(2):
            _, held = system.memory(batch_at(text.train, number, batch=size, sequence=sequence, seed=0))
        found.append({"held": held, "allocated": system.engine.state.allocated(), "in_flight": system.engine.peak})
        system.close()
    assert "torch._dynamo" not in sys.modules, "counting loads a compiler: seconds per rank"
    job.with_name(f"rank{world.rank}.json").write_text(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
