"""Measurement of this machine for the simulator: matrix products, copies, messages and sums of two ranks.

The measurement runs after all other checks, because concurrent programs slow every operation down. Its file describes
the machine of `machine=local`. If other programs took CPU time during a measurement, the measurement is repeated. The
measurement with the least disturbance is kept."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

from suite.core import load
from suite.doctor import probe
from suite.doctor.finding import INSTALL, UNKNOWN, CheckFailed
from suite.doctor.probe import attempt

if TYPE_CHECKING:  # the doctor looks for what this module imports
    from suite.runner.provenance import MachineFacts

FILE = "machine.json"
TRIES = 3  # measurements of a busy machine, as far as probe.PATIENCE allows
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
if comm.rank == 0:
    facts = dict(rate=rate, copied=copied, latency=small, bandwidth=size / max(large - small, 1e-9))
    print(json.dumps(facts), flush=True)  # these stand, should the rest be late
world = init_world(transport="mpi")
backends = links(world, ["mpi", "gloo"])
if comm.rank == 0:
    print(json.dumps(dict(backends=backends)), flush=True)
world.close()
"""


class MeasuredLink(TypedDict):
    """Latency (s) and bandwidth (bytes/s) of messages."""

    latency: float
    bandwidth: float


class MachineMeasurement(TypedDict):
    """Output of two ranks: flop/s per core, bytes/s copied, messages, and the backends by operation."""

    rate: float
    copied: float
    latency: float
    bandwidth: float
    backends: NotRequired[dict[str, dict[str, MeasuredLink]]]


class Description(TypedDict):
    """The file that `suite.simulate.network.machine.measured` reads: bytes, flop/s, bytes/s and seconds."""

    devices_per_node: int
    memory: float
    peak: dict[str, float]
    memory_bandwidth: float
    within: MeasuredLink
    between: MeasuredLink
    adapters: int
    host: MeasuredLink
    backends: dict[str, dict[str, MeasuredLink]]
    foreign_cores: float
    source: str


def measure(folder: Path) -> str:
    """Measure this machine and write `folder`/machine.json, unless the file holds a less disturbed measurement.

    Returns a line about the measurement. Raises CheckFailed if this machine cannot be measured.
    """
    from suite.core.files import write_atomically
    from suite.core.units import si
    from suite.runner.provenance import machine

    measurement, foreign = _least_disturbed()
    here, path = machine(), folder / FILE
    timed = sum(map(len, measurement.get("backends", {}).values())) or "no"
    summary = (
        f"{si(measurement['rate'], 'flop/s')} a core, messages in {si(measurement['latency'], 's')} and at "
        f"{si(measurement['bandwidth'], 'B/s')}, {timed} messages and all-reduces timed"
    )
    new = describe(measurement, here, foreign)
    busy = f"; busy: other programs used {foreign:.1f} of {here['cores']} cores" if foreign > load.BUSY else ""
    if busy and _disturbed_less(path, new):
        return f"{summary}{busy}; {path} was measured on a quieter machine and stays (rm {path} to replace it)"
    write_atomically(path, json.dumps(new, indent=1).encode())
    again = ", make doctor again when the machine is idle" if busy else ""
    return f"{summary}{busy}{again}; machine=local reads {path}"


def _least_disturbed() -> tuple[MachineMeasurement, float]:
    """The least disturbed of at most TRIES measurements, and the cores that other programs used during it.

    Raises CheckFailed.
    """
    begin, best = time.monotonic(), None
    for _ in range(TRIES):
        before, started = load.cpu_time(), time.monotonic()
        measurement = _measure_once()
        foreign = load.foreign_cores(before, load.cpu_time())
        if best is None or foreign < best[1]:
            best = measurement, foreign
        now = time.monotonic()
        if foreign <= load.BUSY or now - begin + (now - started) > probe.PATIENCE:
            break
    assert best is not None
    return best


def _measure_once() -> MachineMeasurement:
    """Measure once. Raises CheckFailed."""
    from suite.comm.rendezvous.mpiexec_flags import find_mpiexec
    from suite.runner.launch.launch_command import binding_options, rank_environment

    mpiexec = find_mpiexec(None)
    if mpiexec is None:
        raise CheckFailed("there is no mpiexec to start two ranks", INSTALL)
    line = [mpiexec, "-n", "2", *binding_options(None), sys.executable, "-m", "mpi4py", "-c", _PROGRAM]
    output = attempt(line, environment=rank_environment(threads=1))
    facts = output.facts
    if not {"rate", "copied", "latency", "bandwidth"} <= set(facts):
        raise CheckFailed(
            output.reason or "two ranks said nothing", "make doctor again, when the machine is idle", UNKNOWN
        )
    return {
        "rate": facts["rate"],
        "copied": facts["copied"],
        "latency": facts["latency"],
        "bandwidth": facts["bandwidth"],
        "backends": facts.get("backends", {}),
    }


def _disturbed_less(path: Path, new: Description) -> bool:
    """Whether the file holds a measurement of this machine under less foreign load.

    A file without a foreign load counts as less disturbed if none of its numbers is worse.
    """
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        same = all(old[name] == new[name] for name in ("source", "devices_per_node"))
        if (before := old.get("foreign_cores")) is not None:
            return bool(same and before < new["foreign_cores"])
        quicker = old["within"]["latency"] <= new["within"]["latency"]
        return bool(same and quicker and old["peak"]["float32"] >= new["peak"]["float32"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def describe(measurement: MachineMeasurement, here: MachineFacts, foreign: float = 0.0) -> Description:
    """The machine description that suite.simulate.network.machine.measured reads: one node with a device per core.

    Args:
        measurement: Measured numbers. `backends` holds latency and bandwidth by operation and backend.
        here: Facts about this machine.
        foreign: Cores that other programs used during the measurement.
    """
    link: MeasuredLink = {"latency": measurement["latency"], "bandwidth": measurement["bandwidth"]}
    rate = measurement["rate"]
    return {
        "devices_per_node": here["cores"],
        "memory": here["memory_bytes"] / here["cores"],
        "peak": {"float32": rate, "float16": rate},  # a processor without half-precision units widens
        "memory_bandwidth": measurement["copied"],
        "within": link,
        "between": link,
        "adapters": 1,
        "host": {"latency": 0.0, "bandwidth": measurement["copied"]},
        "backends": measurement.get("backends", {}),
        "foreign_cores": round(foreign, 3),
        "source": f"make doctor on {here['processor']}: two ranks at once, one thread each",
    }
