"""Offloading: fetch states from the host for an optimizer step, bucket by bucket, and write them back (AxoNN V-B).

On CUDA a bucket is fetched, stepped and written back on three streams, and the host's states are pinned. With two sets
of buffers the next bucket is fetched while one is stepped; with one set it is fetched after the write-back. On a CPU
the same copies run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from suite import accelerator
from suite.core.errors import InvalidRequest
from suite.memory.layout import ModelStateSpec

_SUFFIX = "_bucket"


class HostOffloader:
    """Device buffers for states that are fetched per bucket. They exist while an update runs.

    Attributes:
        fetched: States with buffers; a state without a home on the host is scratch.
        bucket_numel: Entries of a bucket.
        buffer_sets: Buckets that the buffers hold at once.
    """

    def __init__(self, fetched: Sequence[ModelStateSpec], bucket_numel: int, device: torch.device) -> None:
        self.fetched, self.bucket_numel, self.device = tuple(fetched), bucket_numel, device
        sets = {divmod(state.entries, bucket_numel) for state in fetched} if bucket_numel else {(1, 0)}
        if len(sets) > 1 or any(quotient < 1 or remainder for quotient, remainder in sets):
            raise InvalidRequest(
                f"bucket_numel={bucket_numel} with a layout that fetches "
                f"{', '.join(str(state.entries) for state in fetched)} entries at a time",
                rule="an optimizer step takes the entries that the layout fetches at a time",
                legal="memory=partial(offloaded, bucket=bucket_numel)",
            )
        self.buffer_sets = next(iter(sets))[0]

    def fetch_buckets(
        self, host_states: Mapping[str, torch.Tensor], buckets: Sequence[slice]
    ) -> Iterator[tuple[slice, dict[str, torch.Tensor]]]:
        """Fetch buckets in order. Yields each with device copies of `host_states` there, and scratch of that size.

        The content of the copies is written back when the next bucket is requested."""
        if not buckets:
            return
        buffers = {
            state.name.removesuffix(_SUFFIX): torch.empty(
                state.entries, dtype=getattr(torch, state.dtype), device=self.device
            )
            for state in self.fetched
        }
        streams = CopyStreams(self.device, self.buffer_sets)

        def fetch(number: int) -> dict[str, torch.Tensor]:
            span = buckets[number]
            start, size = (number % self.buffer_sets) * self.bucket_numel, span.stop - span.start
            copies = {name: buffer[start : start + size] for name, buffer in buffers.items()}
            with streams.fetching(number):
                for name, state in host_states.items():
                    copies[name].copy_(state[span], non_blocking=True)
            return copies

        try:
            next_copies = fetch(0)
            for number, span in enumerate(buckets):
                copies, last = next_copies, number + 1 == len(buckets)
                if self.buffer_sets > 1 and not last:
                    next_copies = fetch(number + 1)
                streams.wait_for_fetch(number)
                yield span, copies
                streams.mark_stepped(number)
                with streams.writing_back(number):
                    for name, state in host_states.items():
                        state[span].copy_(copies[name], non_blocking=True)
                if self.buffer_sets == 1 and not last:
                    next_copies = fetch(number + 1)
        finally:
            streams.close()  # buffers must not be freed while copies are under way


class CopyStreams:
    """Order of fetch, step and write-back of buckets: by streams and events on CUDA, by program order on a CPU."""

    def __init__(self, device: torch.device, buffer_sets: int) -> None:
        self.buffer_sets, self.on_host = buffer_sets, accelerator.on_host(device)
        if not self.on_host:
            self.step = torch.accelerator.current_stream(device)
            self.fetch, self.write_back = torch.Stream(device), torch.Stream(device)
            self.fetch.wait_stream(self.step)  # the buffers are new, and earlier write-backs may be under way
            self.events: dict[tuple[str, int], torch.Event] = {}

    def _record(self, event_name: str, number: int, stream: torch.Stream) -> None:
        self.events[event_name, number] = stream.record_event()

    @contextmanager
    def fetching(self, number: int) -> Iterator[None]:
        """Context for copies to the buffers of bucket `number`, after their previous bucket is written back."""
        if self.on_host:
            yield
            return
        if number >= self.buffer_sets:
            self.fetch.wait_event(self.events["written back", number - self.buffer_sets])
        with self.fetch:
            yield
        self._record("fetched", number, self.fetch)

    def wait_for_fetch(self, number: int) -> None:
        """Let the step's stream wait until bucket `number` is fetched."""
        if not self.on_host:
            self.step.wait_event(self.events["fetched", number])

    def mark_stepped(self, number: int) -> None:
        """Record that bucket `number` is stepped."""
        if not self.on_host:
            self._record("stepped", number, self.step)

    @contextmanager
    def writing_back(self, number: int) -> Iterator[None]:
        """Context for copies of bucket `number` to the host, after its step."""
        if self.on_host:
            yield
            return
        self.write_back.wait_event(self.events["stepped", number])
        with self.write_back:
            yield
        self._record("written back", number, self.write_back)

    def close(self) -> None:
        """Wait until all write-backs are complete."""
        if not self.on_host:
            self.write_back.synchronize()
