"""Collectives through torch.distributed with gloo (CPU) or NCCL (CUDA), and a world without MPI.

MPI sums bfloat16 as bytes, silently; gloo and NCCL know the type. A gloo wait that makes no MPI progress can
deadlock with a pending rendezvous send. So a handle is polled (`done`), with message progress on every poll."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from suite.comm.p2p.gloo import GlooTransport, cut
from suite.comm.p2p.message import INLINE, check_inline
from suite.comm.p2p.nccl import NcclTransport
from suite.comm.p2p.polling import look_around, until
from suite.comm.rendezvous.departures import Departures, StoreBoard
from suite.comm.rendezvous.launcher_env import Start
from suite.comm.rendezvous.process_exit import raised
from suite.comm.rendezvous.rank_rendezvous import Meeting, of_a_step, stay_on_host
from suite.core.errors import InvalidRequest, PeerEnded
from suite.core.protocols import Group, Handle, Transport

PATIENCE = timedelta(days=30)  # a channel may be silent for as long as a rank sleeps between its turns

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
        self.wait()  # raises what went wrong
        return True

    def wait(self) -> None:
        _wait(self.work)


def _wait(work: Any) -> None:
    """Raises PeerEnded where it broke, with the rank that has ended if one has left a note."""
    try:
        work.wait()
    except RuntimeError as error:
        look_around()
        raise PeerEnded(f"a collective broke, as another rank may have ended: {error}") from error


class _Works:
    """Messages under way. gloo's test for one is false until somebody waits, so `done` waits."""

    def __init__(self, works: Sequence[Any]) -> None:
        self.works = list(works)

    def done(self) -> bool:
        self.wait()
        return True

    def wait(self) -> None:
        for work in self.works:
            _wait(work)


class TorchGroup:
    """Some ranks of the default process group; one rank alone needs no messages."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.group: Any = dist.new_group(list(ranks)) if len(self.ranks) > 1 else None

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        if op not in _OPS:
            raise InvalidRequest(f"all_reduce {op!r}", rule="sum or max", legal="sum")
        if self.group is None:
            return Done()
        return _Work(dist.all_reduce(tensor, _OPS[op], group=self.group, async_op=True))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        if self.group is None:
            return Done()
        return _Work(dist.broadcast(tensor, root, group=self.group, async_op=True))

    def all_to_all(
        self,
        recv_buffer: torch.Tensor,
        send_buffer: torch.Tensor,
        *,
        recv_counts: Sequence[int],
        send_counts: Sequence[int],
    ) -> Handle:
        if self.group is None:
            recv_buffer.copy_(send_buffer)
            return Done()
        return _Work(
            dist.all_to_all_single(
                recv_buffer, send_buffer, list(recv_counts), list(send_counts), group=self.group, async_op=True
            )
        )

    def pairwise(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> Handle:
        # an empty message is none: NCCL has no such thing
        ops = [dist.P2POp(dist.isend, tensor, rank, self.group) for rank, tensor in sends if tensor.numel()]
        ops += [dist.P2POp(dist.irecv, tensor, rank, self.group) for rank, tensor in receives if tensor.numel()]
        return _Works(dist.batch_isend_irecv(ops)) if ops else Done()

    def cut(self, rank: int) -> None:
        """Ends what is under way on this rank, over gloo."""
        cut(self.group, int(rank == self.ranks[0]))


class ProcessGroups:
    """The collectives of one world. `store` is how the ranks meet; made once per process."""

    def __init__(self, rank: int, size: int, *, store: Any, local: bool, device: torch.device) -> None:
        if local:
            stay_on_host()
        self.store = store
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        self.rank, self.known = rank, dict[tuple[int, ...], TorchGroup]()
        self.departures = Departures(rank, size, StoreBoard(store), ends=True)
        self.open = True
        atexit.register(self._at_exit)

    def group(self, ranks: Sequence[int]) -> Group:
        """Every rank requests the same groups in the same order."""
        key = tuple(ranks)
        if key not in self.known:
            self.known[key] = TorchGroup(key)
        return self.known[key]

    def close(self) -> None:
        """Once is enough; a script may have destroyed them itself."""
        atexit.unregister(self._at_exit)
        self.departures.stop()
        if self.open and dist.is_initialized():
            dist.destroy_process_group()
        self.open = False

    def _at_exit(self) -> None:
        """After an exception no collective is waited for: gloo's threads would wait for a rank that waits for this
        one."""
        if raised():
            for group in self.known.values():
                if group.group is not None and self.rank in group.ranks:
                    group.cut(self.rank)
            return
        self.close()


class TorchWorld:
    """Ranks that need no MPI: gloo or NCCL carries messages and collectives, under torchrun or mpiexec.

    order: any, or static: NCCL is always static
    """

    def __init__(
        self,
        start: Start,
        *,
        device: str = "cpu",
        transport: str = "gloo",
        order: str = "any",
        inline: int = INLINE,
        meeting: Meeting | None = None,
    ) -> None:
        check_inline(inline)
        self.rank, self.size, self.device = start.rank, start.size, torch.device(device)
        self.backend, self.order, self.inline = transport, "static" if transport == "nccl" else order, inline
        self.staged = self.device.type == "cuda" and transport == "gloo"
        self.listener, store, local = _met(start, meeting)
        self.collectives = ProcessGroups(self.rank, self.size, store=store, local=local, device=self.device)
        self.departures = self.collectives.departures
        self.everyone = self.collectives.group(range(self.size))
        self.channels = dist.new_group(list(range(self.size)), backend="gloo", timeout=PATIENCE)
        self.made = 0

    def transport(self, before: int | None, after: int | None, stages: int) -> Transport:
        channels = NcclTransport if self.backend == "nccl" else GlooTransport
        return channels(self, before, after, stages)

    def tags(self) -> tuple[int, int]:
        """Tags of one more transport: two engines in one process do not hear each other."""
        self.made += 1
        return 2 * self.made, 2 * self.made + 1

    def directed(self, after: int | None) -> dict[tuple[int, int], Any]:
        """One group per pair of neighbours and direction. Collective: every rank names the one after it, or None."""
        counts: list[int | None] = [None] * self.size
        dist.all_gather_object(counts, after, group=self.channels)
        pairs = [(rank, other) for rank, other in enumerate(counts) if other is not None]
        both = [pair for a, b in pairs for pair in ((a, b), (b, a))]
        return {pair: dist.new_group(sorted(pair), timeout=PATIENCE) for pair in both}

    def group(self, ranks: Sequence[int]) -> Group:
        return self.collectives.group(ranks)

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def all_reduce_scalar(self, value: float, op: str, progress: Callable[[], None]) -> float:
        reduced = torch.tensor([value], dtype=torch.float64)
        until(self.everyone.all_reduce(reduced, op).done, progress)
        return float(reduced)

    def close(self) -> None:
        dist.barrier(group=self.channels)
        self.collectives.close()


def _met(start: Start, meeting: Meeting | None) -> tuple[Any, Any, bool]:
    """A server to keep alive (on rank 0), the store where all ranks meet, and whether they are all on one host."""
    if start.launcher == "mpi":
        from suite.comm.p2p.mpi import meeting as by_mpi

        return by_mpi()
    if meeting is not None:
        return meeting.met(start)
    if start.launcher == "slurm":
        return of_a_step(start)
    store, _, _ = next(dist.rendezvous("env://", start.rank, start.size))
    return None, store, start.local_size == start.size
