"""Measurement of this machine for the simulator: matrix products, copies, messages and sums of two ranks.

The measurement runs after all other checks, because concurrent programs slow every operation down. Its file describes
the machine of `machine=local`. If other programs took CPU time during a measurement, the measurement is repeated. The
measurement with the least disturbance is kept."""

from __future__ import annotations

import json
import sys
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import TypedDict

from suite.core import load
from suite.core.files import write_atomically
from suite.core.units import si
from suite.core.values import Json
from suite.doctor.check import AGAIN, UNKNOWN, CheckFailed, two_ranks
from suite.runner.provenance import MachineFacts, machine

FILE = "machine.json"
TRIES = 3  # measurements of a busy machine
PROGRAM = "from suite.doctor.measure import measure_on_rank; measure_on_rank()"
MESSAGE = "MPI Isend/Irecv"  # of suite.microbench.communication: a message that MPI alone moves


class MachineMeasurement(TypedDict):
    """Output of two ranks: flop/s per core, bytes/s copied, and latency (s) and bandwidth (bytes/s) of messages and
    all-reduces by backend.
    """

    rate: float
    copied: float
    backends: dict[str, dict[str, dict[str, float]]]


def measure_on_rank() -> None:
    """Measure on one of two ranks, at once as in a batch, and print the numbers on rank 0."""
    import torch

    from suite.comm.world import init_world
    from suite.engine.process_setup import gemm_rate, prepare
    from suite.runner.executors.message_sizes import links

    prepare(1)
    world = init_world(transport="mpi")
    world.all_reduce_numbers([0.0], "sum", lambda: None)  # both ranks are here
    rate = gemm_rate()
    source, times = torch.ones(1 << 23), list[float]()
    target = torch.ones_like(source)
    for _ in range(5):
        begin = perf_counter()
        target.copy_(source)
        times.append(perf_counter() - begin)
    backends = links(world, ["mpi", "gloo"])
    if world.rank == 0:
        numbers = {"rate": rate, "copied": 2 * source.nbytes / min(times), "backends": backends}
        sys.stdout.write(json.dumps(numbers) + "\n")
    world.close()


Description = dict[str, Json]  # what suite.simulate.network.machine.measured reads


def measure(folder: Path) -> str:
    """Measure this machine and write `folder`/machine.json, unless the file holds a less disturbed measurement.

    Returns a line about the measurement. Raises CheckFailed if this machine cannot be measured.
    """
    measurement, foreign = _least_disturbed()
    here, path = machine(), folder / FILE
    timed, new = sum(map(len, measurement["backends"].values())), describe(measurement, here, foreign)
    link = measurement["backends"]["point_to_point"][MESSAGE]
    summary = (
        f"{si(measurement['rate'], 'flop/s')} a core, messages in {si(link['latency'], 's')} and at "
        f"{si(link['bandwidth'], 'B/s')}, {timed} messages and all-reduces timed"
    )
    busy = f"; busy: other programs used {foreign:.1f} of {here['cores']} cores" if foreign > load.BUSY else ""
    if busy and _less_disturbed(path, new):
        return f"{summary}{busy}; {path} was measured on a quieter machine and stays (rm {path} to replace it)"
    write_atomically(path, json.dumps(new, indent=1).encode())
    again = ", make doctor again when the machine is idle" if busy else ""
    return f"{summary}{busy}{again}; machine=local reads {path}"


def _least_disturbed() -> tuple[MachineMeasurement, float]:
    """The least disturbed of at most TRIES measurements, and the cores that other programs used during it.

    Raises CheckFailed.
    """
    tries: list[tuple[MachineMeasurement, float]] = []
    while not tries or (len(tries) < TRIES and tries[-1][1] > load.BUSY):
        before = load.cpu_time()
        measurement = _measure_once()
        tries.append((measurement, load.foreign_cores(before, load.cpu_time())))
    return min(tries, key=itemgetter(1))


def _measure_once() -> MachineMeasurement:
    """What the two ranks print. Raises CheckFailed."""
    measurement: MachineMeasurement = json.loads(two_ranks(PROGRAM).splitlines()[-1])
    if MESSAGE not in measurement["backends"]["point_to_point"]:
        raise CheckFailed("large messages took no longer than small ones", AGAIN, UNKNOWN)
    return measurement


def _less_disturbed(path: Path, new: Description) -> bool:
    """Whether the file holds a measurement of this machine under less foreign load."""
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        same = all(old[name] == new[name] for name in ("source", "devices_per_node"))
        return bool(same and old["foreign_cores"] < new["foreign_cores"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def describe(measurement: MachineMeasurement, here: MachineFacts, foreign: float = 0.0) -> Description:
    """The machine description that suite.simulate.network.machine.measured reads: one node with a device per core.

    Args:
        measurement: What the ranks measured.
        here: Facts about this machine.
        foreign: Cores that other programs used during the measurement.
    """
    rate, copied = measurement["rate"], measurement["copied"]
    link = measurement["backends"]["point_to_point"][MESSAGE]
    return {
        "devices_per_node": here["cores"],
        "memory": here["memory_bytes"] / here["cores"],
        "peak": {"float32": rate, "float16": rate},  # a processor without half-precision units widens
        "memory_bandwidth": copied,
        "within": link,
        "between": link,
        "adapters": 1,
        "host": {"latency": 0.0, "bandwidth": copied},
        "backends": measurement["backends"],
        "foreign_cores": round(foreign, 3),
        "source": f"make doctor on {here['processor']}: two ranks at once, one thread each",
    }
