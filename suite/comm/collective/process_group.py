"""Collectives through torch.distributed with gloo (CPU) or NCCL (CUDA), and a world without MPI.

MPI sums bfloat16 as bytes, without an error; gloo and NCCL support the dtype. A gloo wait without MPI progress can
deadlock with a pending rendezvous send. So a handle is polled with `done`, and every poll drives message progress.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from suite import accelerator
from suite.comm.p2p.gloo import TAGS, UNLIMITED, GlooTransport, abort_group
from suite.comm.p2p.message import EAGER_BYTES
from suite.comm.p2p.nccl import NcclTransport, lanes
from suite.comm.p2p.polling import check_departures, wait_until
from suite.comm.rendezvous.launcher_env import LaunchInfo
from suite.comm.rendezvous.peer_exit import Departures, exception_raised
from suite.comm.rendezvous.rank_rendezvous import Rendezvous, use_loopback_interface
from suite.core.errors import PeerEnded
from suite.core.protocols import Group, Handle, Transport

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Pending:
    """Operations in flight; none are done from the start.

    messages: Whether they are messages, of which gloo's completion test is false until a wait: so `done` waits
    """

    def __init__(self, *works: Any, messages: bool = False) -> None:
        self.works, self.messages = works, messages

    def done(self) -> bool:
        if not (self.messages or all(work.is_completed() for work in self.works)):
            return False
        self.wait()  # raises the error of a broken collective
        return True

    def wait(self) -> None:
        """Raises PeerEnded for a broken operation, naming the departed rank if it left a note."""
        try:
            for work in self.works:
                work.wait()
        except RuntimeError as error:
            check_departures()
            raise PeerEnded(f"a collective broke, as another rank may have ended: {error}") from error


class TorchGroup:
    """A group of ranks of the default process group. A group of one rank sends no messages."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.group: Any = dist.new_group(list(ranks)) if len(self.ranks) > 1 else None

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        if self.group is None:
            return Pending()
        return Pending(dist.all_reduce(tensor, _OPS[op], group=self.group, async_op=True))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        if self.group is None:
            return Pending()
        return Pending(dist.broadcast(tensor, root, group=self.group, async_op=True))

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
            return Pending()
        return Pending(
            dist.all_to_all_single(
                recv_buffer, send_buffer, list(recv_counts), list(send_counts), group=self.group, async_op=True
            )
        )

    def pairwise(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> Handle:
        # empty tensors are skipped: NCCL has no empty messages
        ops = [dist.P2POp(dist.isend, tensor, rank, self.group) for rank, tensor in sends if tensor.numel()]
        ops += [dist.P2POp(dist.irecv, tensor, rank, self.group) for rank, tensor in receives if tensor.numel()]
        return Pending(*dist.batch_isend_irecv(ops), messages=True) if ops else Pending()


class ProcessGroups:
    """The process groups of one world. A process creates one such object."""

    def __init__(self, rank: int, size: int, *, rendezvous: Rendezvous, device: torch.device) -> None:
        if rendezvous.one_host:
            use_loopback_interface()
        self.rendezvous = rendezvous  # its server lives as long as the groups
        backend = "gloo" if accelerator.on_host(device) else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=rendezvous.store, rank=rank, world_size=size)
        self.rank, self.groups = rank, dict[tuple[int, ...], TorchGroup]()
        self.departures = Departures(rank, size, rendezvous.store, at_exit=True)
        self.open = True
        atexit.register(self._at_exit)

    def group(self, ranks: Sequence[int]) -> Group:
        """The group of these ranks. Every rank requests the same groups in the same order."""
        key = tuple(ranks)
        if key not in self.groups:
            self.groups[key] = TorchGroup(key)
        return self.groups[key]

    def close(self) -> None:
        """Destroy the groups, unless they are closed or a script has destroyed them."""
        atexit.unregister(self._at_exit)
        self.departures.stop()
        if self.open and dist.is_initialized():
            dist.destroy_process_group()
        self.open = False

    def _at_exit(self) -> None:
        """Close, or abort after an exception: gloo's threads would wait for a rank that waits for this one."""
        if exception_raised():
            for group in self.groups.values():
                if group.group is not None and self.rank in group.ranks:
                    abort_group(group.group, int(self.rank == group.ranks[0]))
            return
        self.close()


class TorchWorld:
    """Ranks without MPI: gloo or NCCL runs point-to-point messages and collectives.

    Args:
        transport: "gloo" or "nccl".
        order: "any", or "static". NCCL is always static.
        eager_bytes: Size of the first part of a message, in bytes.
        suspended: Whether a parent suspends the ranks at times. Otherwise torch's limit of a message ends the ranks
            whose peer is stuck: 10 minutes with NCCL, 30 with gloo.
    """

    def __init__(
        self,
        launch: LaunchInfo,
        rendezvous: Rendezvous,
        *,
        device: str = "cpu",
        transport: str = "gloo",
        order: str = "any",
        eager_bytes: int = EAGER_BYTES,
        suspended: bool = False,
    ) -> None:
        self.timeout = UNLIMITED if suspended else None
        self.rank, self.size, self.device = launch.rank, launch.size, torch.device(device)
        self.backend, self.order = transport, "static" if transport == "nccl" else order
        self.eager_bytes = eager_bytes
        self.staged = transport == "gloo" and not accelerator.on_host(self.device)
        self.collectives = ProcessGroups(self.rank, self.size, rendezvous=rendezvous, device=self.device)
        self.departures = self.collectives.departures
        # a group of its own, so that ranks in different calls do not add their numbers to gradients
        self.everyone = self.collectives.groups[()] = TorchGroup(range(self.size))
        self.open_channels()

    def open_channels(self) -> None:
        """Create the process group of the channels. Collective over the world."""
        self.channel_group = dist.new_group(list(range(self.size)), backend="gloo", timeout=self.timeout)
        self.transport_count = 0

    def transport(self, homes: Sequence[int]) -> Transport:
        transport = NcclTransport if self.backend == "nccl" else GlooTransport
        return transport(self, homes)

    def first_tag(self) -> int:
        """The first of TAGS tags of one more transport. They separate two engines in one process."""
        self.transport_count += 1
        return TAGS * self.transport_count

    def lane_groups(self, homes: Sequence[int]) -> dict[tuple[int, int], Any]:
        """One process group per lane of this rank's pipeline, by (source stage, target stage).

        Collective: every rank passes the rank of each stage of its pipeline.
        """
        pipelines: list[Any] = [None] * self.size
        dist.all_gather_object(pipelines, tuple(homes), group=self.channel_group)
        groups = {
            pipeline: {
                lane: dist.new_group(sorted({pipeline[stage] for stage in lane}), timeout=self.timeout)
                for lane in lanes(pipeline)
            }
            for pipeline in dict.fromkeys(pipelines)
        }
        return groups[tuple(homes)]

    def group(self, ranks: Sequence[int]) -> Group:
        return self.collectives.group(ranks)

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def all_reduce_numbers(self, numbers: Sequence[float], op: str, progress: Callable[[], None]) -> list[float]:
        reduced = torch.tensor(numbers, dtype=torch.float64)
        wait_until(self.everyone.all_reduce(reduced, op).done, progress, yields=False)
        return list(map(float, reduced))

    def close(self) -> None:
        dist.barrier(group=self.channel_group)
        self.collectives.close()
