"""Decides how values travel over gloo: one receiving thread per lane, which feeds one mailbox.

gloo has no wait for the first of several messages, and its test for one is false until somebody waits. So a thread
waits on every lane, and the rank itself waits on the mailbox. Because the other side always receives, a send is soon
done, and nothing has to be moved in between. Messages are those of MPI: a header with the values inside or after it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from suite.comm.message import CAPACITY, pack, receiver, unpack
from suite.core.errors import RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Value

if TYPE_CHECKING:
    from suite.comm.process_group import TorchWorld

_UNDER_WAY = 2  # values being sent per lane before the oldest is waited for
_CLOSING = Op(0, Kind.UPDATE, 0)  # an op that no lane carries: the last message of a transport


class GlooTransport:
    """Lanes to the stage before and the stage after, on host memory; values on a device are copied on the way."""

    def __init__(self, world: TorchWorld, before: int | None, after: int | None, stages: int) -> None:
        self.any_order = world.order == "any"
        self.world, self.before, self.after, self.stages = world, before, after, stages
        self.head, self.body = world.tags()
        neighbours = [rank for rank in (before, after) if rank is not None]
        self.sending: dict[int, deque[tuple[list[Any], Any]]] = {rank: deque() for rank in neighbours}
        self.mailbox: dict[Op, Value] = {}
        self.changed = threading.Condition()
        self.failure: BaseException | None = None
        self.closed = False
        self.listeners = [
            threading.Thread(target=self._listen, args=(rank,), name=f"lane from rank {rank}", daemon=True)
            for rank in neighbours
        ]
        for listener in self.listeners:
            listener.start()

    # -- the receiving threads ----------------------------------------------------------------------------------------

    def _listen(self, source: int) -> None:
        try:
            buffer = torch.empty(self.world.inline, dtype=torch.uint8)
            view, host = memoryview(buffer.numpy()), torch.device("cpu")
            while True:
                dist.recv(buffer, source, group=self.world.lanes, tag=self.head)
                op, value, follow = unpack(buffer, view, host)
                if op == _CLOSING:
                    return
                for tensor in follow:
                    dist.recv(tensor, source, group=self.world.lanes, tag=self.body)
                with self.changed:
                    if op.kind is Kind.EVALUATE:  # the sender is held up by what is not received here
                        self.changed.wait_for(lambda: self.closed or self._held() < CAPACITY)
                    self.mailbox[op] = value
                    self.changed.notify_all()
        except BaseException as error:
            with self.changed:
                self.failure = error
                self.changed.notify_all()

    def _held(self) -> int:
        return sum(op.kind is Kind.EVALUATE for op in self.mailbox)

    # -- the rank -----------------------------------------------------------------------------------------------------

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.stages, before=self.before, after=self.after)
        if rank is not None:
            self._post(rank, op, tuple(tensor.detach().contiguous().cpu() for tensor in value))

    def _post(self, rank: int, op: Op, value: Value) -> None:
        buffer = torch.empty(self.world.inline, dtype=torch.uint8)
        size, follow = pack(op, value, buffer)
        lanes, sending = self.world.lanes, self.sending[rank]
        works = [dist.isend(buffer[:size], rank, group=lanes, tag=self.head)]
        works += [dist.isend(tensor, rank, group=lanes, tag=self.body) for tensor in follow]
        sending.append((works, (buffer, value)))
        while len(sending) > _UNDER_WAY:
            for work in sending.popleft()[0]:
                work.wait()

    def arrived(self, wish: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        with self.changed:
            if timeout != 0:
                come = self.mailbox.keys()
                self.changed.wait_for(lambda: self.failure is not None or not come.isdisjoint(wish), timeout)
            for op in wish:
                if op in self.mailbox:
                    value = self.mailbox.pop(op)
                    self.changed.notify_all()
                    return op, tuple(tensor.to(self.world.device) for tensor in value)
        self.progress()
        return None

    def progress(self) -> None:
        """The threads move messages; what went wrong there is raised here."""
        if self.failure is not None:
            raise RankError(f"a lane of rank {self.world.rank} broke: {self.failure}") from self.failure

    def close(self) -> None:
        """Every neighbour closes too: its last word ends the thread that listens to it."""
        if self.closed:
            return
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for rank in self.sending:
            self._post(rank, _CLOSING, ())
        for sending in self.sending.values():
            for works, _ in sending:
                for work in works:
                    work.wait()
        for listener in self.listeners:
            listener.join()
        if self.mailbox and self.failure is None:
            left = ", ".join(map(str, self.mailbox))
            raise RankError(f"rank {self.world.rank} closes with values unreceived: {left}")
