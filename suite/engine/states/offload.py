"""Offloading: fetch states from the host for a step, bucket by bucket, and write them back (AxoNN V-B).

On CUDA a bucket is fetched, stepped and written back on three streams. With two sets of buffers the next bucket is on
its way while one is stepped, as the host's states are pinned; with one set a bucket waits for the one before. On a CPU
the same copies run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from suite.core.errors import InvalidRequest
from suite.memory.layout import ModelStateSpec

_SUFFIX = "_bucket"


class Shuttle:
    """Buffers for `fetched` states, which exist while an update runs; a state without a home on the host is scratch."""

    def __init__(self, fetched: Sequence[ModelStateSpec], bucket: int, device: torch.device) -> None:
        self.fetched, self.bucket, self.device = tuple(fetched), bucket, device
        sets = {divmod(state.entries, bucket) for state in fetched} if bucket else {(1, 0)}
        if len(sets) > 1 or any(whole < 1 or rest for whole, rest in sets):
            raise InvalidRequest(
                f"buckets of {bucket} entries in a layout with {', '.join(str(s.entries) for s in fetched)}",
                rule="a step takes what the layout fetches at a time",
                legal="memory=partial(offloaded, bucket=bucket)",
            )
        self.sets = next(iter(sets))[0]

    def carry(
        self, kept: Mapping[str, torch.Tensor], pieces: Sequence[slice]
    ) -> Iterator[tuple[slice, dict[str, torch.Tensor]]]:
        """For each of `pieces` (at most a bucket each), in order: the device's copies of `kept` there, and scratch of
        that size. Their content is written back when the next bucket is requested."""
        if not pieces:
            return
        buffers = {
            state.name.removesuffix(_SUFFIX): torch.empty(
                state.entries, dtype=getattr(torch, state.dtype), device=self.device
            )
            for state in self.fetched
        }
        streams = Streams(self.device, self.sets)
        try:
            coming = self._fetch(buffers, kept, pieces, 0, streams)
            for number, at in enumerate(pieces):
                here = coming
                if self.sets > 1 and number + 1 < len(pieces):
                    coming = self._fetch(buffers, kept, pieces, number + 1, streams)
                streams.arrived(number)
                yield at, here
                streams.stepped(number)
                with streams.leaving(number):
                    for name, state in kept.items():
                        state[at].copy_(here[name], non_blocking=True)
                if self.sets == 1 and number + 1 < len(pieces):
                    coming = self._fetch(buffers, kept, pieces, number + 1, streams)
        finally:
            streams.close()  # buffers must not go while copies are under way

    def _fetch(
        self,
        buffers: Mapping[str, torch.Tensor],
        kept: Mapping[str, torch.Tensor],
        pieces: Sequence[slice],
        number: int,
        streams: Streams,
    ) -> dict[str, torch.Tensor]:
        at = pieces[number]
        start, size = (number % self.sets) * self.bucket, at.stop - at.start
        here = {name: buffer[start : start + size] for name, buffer in buffers.items()}
        with streams.coming(number):
            for name, state in kept.items():
                here[name].copy_(state[at], non_blocking=True)
        return here


class Streams:
    """The order of fetch, step and write-back of buckets: by streams and events on CUDA, by itself on a CPU."""

    def __init__(self, device: torch.device, sets: int) -> None:
        self.cuda, self.sets = device.type == "cuda", sets
        if self.cuda:
            self.step = torch.cuda.current_stream(device)
            self.come, self.leave = torch.cuda.Stream(device), torch.cuda.Stream(device)
            self.come.wait_stream(self.step)  # the buffers are new, and earlier write-backs may be under way
            self.events: dict[tuple[str, int], torch.cuda.Event] = {}

    def mark(self, what: str, number: int, stream: Any) -> None:
        event = torch.cuda.Event()
        event.record(stream)
        self.events[what, number] = event

    def coming(self, number: int) -> Any:
        """Inside, copies to the set of bucket `number` go out, once the set's last bucket has left it."""
        if not self.cuda:
            return nullcontext()
        if number >= self.sets:
            self.come.wait_event(self.events["left", number - self.sets])
        return _Marked(self, "here", number, self.come)

    def arrived(self, number: int) -> None:
        """Later work on the step's stream finds bucket `number`."""
        if self.cuda:
            self.step.wait_event(self.events["here", number])

    def stepped(self, number: int) -> None:
        if self.cuda:
            self.mark("stepped", number, self.step)

    def leaving(self, number: int) -> Any:
        """Inside, copies from the set of bucket `number` to the host follow its step."""
        if not self.cuda:
            return nullcontext()
        self.leave.wait_event(self.events["stepped", number])
        return _Marked(self, "left", number, self.leave)

    def close(self) -> None:
        """Buffers may go, and the host may read what was written back."""
        if self.cuda:
            self.leave.synchronize()


class _Marked:
    """Work on a stream, with an event recorded behind it."""

    def __init__(self, streams: Streams, what: str, number: int, stream: Any) -> None:
        self.streams, self.what, self.number, self.stream = streams, what, number, stream
        self.entered = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self.entered.__enter__()

    def __exit__(self, *problem: object) -> None:
        self.entered.__exit__(*problem)
        self.streams.mark(self.what, self.number, self.stream)
