"""What each rank runs for test_peers.py: some systems, one after the other, in this world; their losses and bytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from curves import curve

from suite.comm import here
from suite.core.build import locate

torch.set_num_threads(1)


def main(batches: int, configs: list[dict[str, Any]]) -> None:
    world = here()
    for config in configs:
        kind = locate(config["system"]["_target_"])
        kind.probe(config)
        system = kind(world=world, config=config)
        mine = curve(system, config, batches)
        every = [mine] * world.size
        if world.size > 1:
            dist.all_gather_object(every, mine)
        system.close()
        assert dist.is_initialized() == (world.size > 1), "a group of one's own is ended"
        if world.rank == 0:
            print(json.dumps(every), flush=True)
    world.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
