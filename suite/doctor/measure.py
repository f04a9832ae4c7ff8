"""Measurement of this machine for the simulator: matrix products, copies, messages and sums of two ranks.

The measurement runs after all other checks, because concurrent programs slow every operation down. Its file describes
the machine of `machine=local`. If other programs took CPU time during a measurement, the measurement is repeated. The
measurement with the least disturbance is kept."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import NotRequired, TypedDict

from suite.core import load
from suite.core.files import write_atomically
from suite.core.units import si
from suite.core.values import Json
from suite.doctor.check import two_ranks
from suite.runner.provenance import MachineFacts, machine

FILE = "machine.json"
TRIES = 3  # measurements of a busy machine
_PROGRAM = """
import json, time
from mpi4py import MPI
import torch
from suite.runner.executors.message_sizes import links
from suite.comm.world import init_world
torch.set_num_threads(1)
comm = MPI.COMM_WORLD
other = 1 - comm.rank

def products(size=768, seconds=0.4):  # both ranks at once, as in a batch
    a, b = torch.rand(2, size, size)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best

def one_way(size, times):
    data, seen = bytearray(size), []
    for _ in range(times):
        comm.Barrier()
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(data, 1); comm.Recv(data, 1)
        else:
            comm.Recv(data, 0); comm.Send(data, 0)
        seen.append((time.perf_counter() - start) / 2)
    return min(seen)

comm.Barrier()
rate = products()
source = torch.ones(1 << 23)
target, took = torch.ones_like(source), []
for _ in range(5):
    begin = time.perf_counter()
    target.copy_(source)
    took.append(time.perf_counter() - begin)
copied = 2 * source.nbytes / min(took)
small, large, size = one_way(8, 200), one_way(1 << 22, 20), 1 << 22
world = init_world(transport="mpi")
backends = links(world, ["mpi", "gloo"])
if comm.rank == 0:
    print(json.dumps(dict(rate=rate, copied=copied, latency=small, bandwidth=size / max(large - small, 1e-9),
                          backends=backends)), flush=True)
world.close()
"""


class MachineMeasurement(TypedDict):
    """Output of two ranks: flop/s per core, bytes/s copied, messages, and the backends by operation."""

    rate: float
    copied: float
    latency: float
    bandwidth: float
    backends: NotRequired[dict[str, dict[str, dict[str, float]]]]


Description = dict[str, Json]  # what suite.simulate.network.machine.measured reads


def measure(folder: Path) -> str:
    """Measure this machine and write `folder`/machine.json, unless the file holds a less disturbed measurement.

    Returns a line about the measurement. Raises CheckFailed if this machine cannot be measured.
    """
    measurement, foreign = _least_disturbed()
    here, path = machine(), folder / FILE
    timed = sum(map(len, measurement.get("backends", {}).values())) or "no"
    summary = (
        f"{si(measurement['rate'], 'flop/s')} a core, messages in {si(measurement['latency'], 's')} and at "
        f"{si(measurement['bandwidth'], 'B/s')}, {timed} messages and all-reduces timed"
    )
    new = describe(measurement, here, foreign)
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
    measurement: MachineMeasurement = json.loads(two_ranks(_PROGRAM).splitlines()[-1])
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
    link = {"latency": measurement["latency"], "bandwidth": measurement["bandwidth"]}
    return {
        "devices_per_node": here["cores"],
        "memory": here["memory_bytes"] / here["cores"],
        "peak": {"float32": rate, "float16": rate},  # a processor without half-precision units widens
        "memory_bandwidth": copied,
        "within": link,
        "between": link,
        "adapters": 1,
        "host": {"latency": 0.0, "bandwidth": copied},
        "backends": measurement.get("backends", {}),
        "foreign_cores": round(foreign, 3),
        "source": f"make doctor on {here['processor']}: two ranks at once, one thread each",
    }
