"""Program of each of two MPI ranks for test_samo.py: masked training bit for bit, and the counted bytes of reductions.

With the argument `mpi` two replicas reduce by exchanging bytes, which are counted at the calls of MPI. With `gloo` they
are counted at the calls of torch's process group.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from suite.comm.world import init_world
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import AdamW
from suite.engine.process_setup import prepare
from suite.memory.layout import compressed
from tests.support.cases import gpt_case
from tests.support.masked import MaskedTrainingCheck

OVERLAPPED = {"bucket_numel": 500, "buckets_per_reduction": 2}


class Sent:
    """A communicator that counts the bytes of its sends."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.bytes = comm, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def Isend(self, buffer: Any, **more: Any) -> Any:
        self.bytes += buffer[1]  # address, bytes, type
        return self.comm.Isend(buffer, **more)


class Reduced(TorchDispatchMode):
    """Counts the bytes of every all-reduce of a process group."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "allreduce_":
            (tensors, *_) = args
            self.bytes += sum(
                t.numel() * t.element_size() for t in tensors if str(t.dtype) != "torch.float64"
            )  # numbers are no gradients
        return func(*args, **(kwargs or {}))


def counted(engine: Engine, batch: Any, over: str) -> int:
    """Bytes that this rank sends to reduce the gradients of one batch."""
    if over == "gloo":
        with Reduced() as reduced:
            engine.train_batch(batch)
        return reduced.bytes
    group: Any = engine.state.comm.data_parallel_group
    before, group.comm = group.comm, Sent(group.comm)
    engine.train_batch(batch)
    sent, group.comm = group.comm.bytes, before
    return int(sent)


def main(over: str) -> None:
    prepare(1)
    world = init_world(pair_exchange=over == "mpi")
    case = gpt_case("dropout", "float32", dropout=0.3, layers=4)
    away = {
        "memory": partial(compressed, bucket=100, offloaded=True),
        "bucket_numel": 100,
        "buckets_per_reduction": 3,
        "activation_checkpointing": 1,
    }
    for grid in (Grid(inter=2), Grid(data=2)) if over == "mpi" else ():
        for half, more in ((None, {}), ("bfloat16", away)):
            MaskedTrainingCheck(case, grid, AdamW(0.01), 0.8, half=half, batches=(4, 1), **more).rank(world)
    rows = []
    for half in (None, "bfloat16"):
        for more in ({}, OVERLAPPED):
            for what, sparsity in (("all", 0.0), ("weights", 0.9), ("all", 0.9)):
                checked = MaskedTrainingCheck(
                    case, Grid(data=2), AdamW(0.01), sparsity, half=half, what=what, batches=(), **more
                )
                engine = checked.engine(world)
                kept_entries = sum(index.numel() for index in engine.state.model_states.kept.values())
                whole = sum(
                    p.numel()
                    for p in engine.state.model_states.parameters
                    if id(p) not in engine.state.model_states.kept
                )
                size = counted(engine, case.batch(0, 2, 2), over)
                rows.append((half, bool(more), what, sparsity, kept_entries, whole, size))
                engine.close()
    if world.rank == 0:
        print(json.dumps(rows))
    world.close()


if __name__ == "__main__":
    main(sys.argv[1])
