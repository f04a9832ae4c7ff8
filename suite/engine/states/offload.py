"""Offloading: fetch states from the host for an optimizer step, bucket by bucket, and write them back (AxoNN V-B).

On CUDA a bucket is fetched, stepped and written back on three streams, and the host's states are pinned. With two sets
of buffers the next bucket is fetched while one is stepped; with one set it is fetched after the write-back. On a CPU
the same copies run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
        stepping, fetching, writing = accelerator.copy_streams(self.device)
        fetched, written = list[Any](), list[Any]()  # events, by bucket

        def fetch(number: int) -> dict[str, torch.Tensor]:
            span = buckets[number]
            start, size = (number % self.buffer_sets) * self.bucket_numel, span.stop - span.start
            copies = {name: buffer[start : start + size] for name, buffer in buffers.items()}
            if number >= self.buffer_sets:
                fetching.wait_event(written[number - self.buffer_sets])
            with fetching:
                for name, state in host_states.items():
                    copies[name].copy_(state[span], non_blocking=True)
            fetched.append(fetching.record_event())
            return copies

        try:
            next_copies = fetch(0)
            for number, span in enumerate(buckets):
                copies, last = next_copies, number + 1 == len(buckets)
                if self.buffer_sets > 1 and not last:
                    next_copies = fetch(number + 1)
                stepping.wait_event(fetched[number])
                yield span, copies
                writing.wait_event(stepping.record_event())
                with writing:
                    for name, state in host_states.items():
                        state[span].copy_(copies[name], non_blocking=True)
                written.append(writing.record_event())
                if self.buffer_sets == 1 and not last:
                    next_copies = fetch(number + 1)
        finally:
            writing.synchronize()  # buffers must not be freed while copies are under way
