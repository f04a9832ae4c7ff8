"""Decides how this machine is measured for the simulator: matrix products, copies, messages and sums of two ranks.

Asked last and alone, as each number would suffer beside another program. What it writes is machine=local.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from suite.doctor.finding import INSTALL, UNKNOWN, Ill
from suite.doctor.probe import attempt

FILE = "machine.json"
_PROGRAM = """
import json, time
from mpi4py import MPI
import torch
from suite.bench.messages import links
from suite.comm import here
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
world = here(transport="mpi")
carriers = links(world, ["mpi", "gloo"])
if comm.rank == 0:
    print(json.dumps(dict(carriers=carriers)), flush=True)
world.close()
"""


def measure(folder: Path) -> str:
    """Measures, writes `folder`/machine.json, and says what was found in a line. Raises Ill where it cannot."""
    from suite.bench.provenance import machine
    from suite.bench.starter import environment, find_mpiexec, placing
    from suite.core.files import write_atomically
    from suite.core.units import si

    mpiexec = find_mpiexec(None)
    if mpiexec is None:
        raise Ill("there is no mpiexec to start two ranks", INSTALL)
    line = [mpiexec, "-n", "2", *placing(None), sys.executable, "-m", "mpi4py", "-c", _PROGRAM]
    said = attempt(line, environment=environment({"threads": 1, "python_path": []}))
    found = said.facts
    if not {"rate", "copied", "latency", "bandwidth"} <= set(found):
        raise Ill(said.why or "two ranks said nothing", "make doctor again, when the machine is idle", UNKNOWN)
    here = machine()
    write_atomically(folder / FILE, json.dumps(described(found, here), indent=1).encode())
    timed = sum(map(len, found.get("carriers", {}).values())) or "no"
    return (
        f"{si(found['rate'], 'flop/s')} a core, messages in {si(found['latency'], 's')} and at "
        f"{si(found['bandwidth'], 'B/s')}, {timed} ways of sending and adding timed; "
        f"machine=local reads {folder / FILE}"
    )


def described(found: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """The measured numbers as suite.simulate.machine.measured reads them: one node, a device per core. `found` may hold
    `carriers`: by operation, each way of suite.comm.ways with its latency and bandwidth."""
    link = {"latency": found["latency"], "bandwidth": found["bandwidth"]}
    rate = found["rate"]
    return {
        "devices_per_node": here["cores"],
        "memory": here["memory_bytes"] / here["cores"],
        "peak": {"float32": rate, "float16": rate},  # a processor without half-precision units widens
        "memory_bandwidth": found["copied"],
        "within": link,
        "between": link,
        "adapters": 1,
        "host": {"latency": 0.0, "bandwidth": found["copied"]},
        "carriers": found.get("carriers", {}),
        "source": f"make doctor on {here['processor']}: two ranks at once, one thread each",
    }
