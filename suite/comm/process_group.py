"""Decides how collectives run: through torch.distributed's gloo (CPU) or NCCL (CUDA), never through MPI.

MPI sums bfloat16 as bytes, silently; gloo and NCCL know the type. A gloo wait that does not move MPI's messages can
deadlock with a pending rendezvous send, so a handle is polled (`done`), and whoever waits keeps messages moving.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from suite.core.errors import Refused
from suite.core.protocols import Group, Handle

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Done:
    """A collective with nothing to do."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """It is done."""


class _Work:
    def __init__(self, work: Any) -> None:
        self.work = work

    def done(self) -> bool:
        if not self.work.is_completed():
            return False
        self.work.wait()  # raises what went wrong
        return True

    def wait(self) -> None:
        self.work.wait()


class TorchGroup:
    """Some ranks of the default process group; one rank alone needs no messages."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.group: Any = dist.new_group(list(ranks)) if len(self.ranks) > 1 else None

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        if op not in _OPS:
            raise Refused(f"all_reduce {op!r}", rule="sum or max", legal="sum")
        if self.group is None:
            return Done()
        return _Work(dist.all_reduce(tensor, _OPS[op], group=self.group, async_op=True))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        if self.group is None:
            return Done()
        return _Work(dist.broadcast(tensor, root, group=self.group, async_op=True))


class ProcessGroups:
    """The collectives of one world. `store` is how the ranks meet; made once per process."""

    def __init__(self, rank: int, size: int, *, host: str, port: int, local: bool, backend: str = "gloo") -> None:
        if local:
            # all ranks on one host: the loopback interface always works, a host name may not resolve
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        self.store = dist.TCPStore(host, port, size, is_master=False)
        dist.init_process_group(backend, store=self.store, rank=rank, world_size=size)
        self.known: dict[tuple[int, ...], TorchGroup] = {}

    def group(self, ranks: Sequence[int]) -> Group:
        """Every rank asks for the same groups in the same order."""
        key = tuple(ranks)
        if key not in self.known:
            self.known[key] = TorchGroup(key)
        return self.known[key]

    def close(self) -> None:
        dist.destroy_process_group()
