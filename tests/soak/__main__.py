"""Command of `make soak`: kill sweeps at random moments and try random configurations. Exits with 1 after a fault.

The seed is printed, and makes the same kills and configs again; moments are as exact as a machine's scheduler.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.soak.endings import report
from tests.soak.inputs import KILLS_OF_A_CHAIN, attempt

WORKERS = 2  # as many as a small machine has cores


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Kills sweeps and tries random configs.")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 10**9 % 10**6, help="of moments and configs")
    for name, description in (("configs", "without ranks"), ("real", "configs of real ranks"), ("kills", "of sweeps")):
        parser.add_argument(f"--{name}", type=int, default=0, help=description)
    parser.add_argument("--minutes", type=float, default=math.inf, help="shared by the three; nothing begins after it")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}: make soak SEED={options.seed}", flush=True)
    sweeps = math.ceil(options.kills / KILLS_OF_A_CHAIN)
    counts = {"configs": options.configs, "real": options.real, "kills": sweeps}
    wanted = {name: count for name, count in counts.items() if count}
    faults = 0
    with (
        tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as place,
        get_context("spawn").Pool(WORKERS) as pool,
    ):
        for name, count in wanted.items():
            begin = time.monotonic()
            until = begin + 60 * options.minutes / len(wanted)
            one = partial(attempt, name, options.seed, Path(place), until)
            endings = [ending for found in pool.imap_unordered(one, range(count)) for ending in found]
            print(f"{name}, {time.monotonic() - begin:.0f} s\n{report(endings)}", flush=True)
            faults += sum(bool(ending.fault) for ending in endings)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
