"""The device of a rank: random state, pinned memory, memory statistics, and the times of its work.

No other module distinguishes kinds of devices, or times their work. `torch.accelerator` does most of the work here. On
a CPU the same calls have no effect, so a CPU, a GPU and the device of tests/cuda run the same lines.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from time import perf_counter
from types import ModuleType
from typing import Any

import torch

Device = torch.device | str
host_time = perf_counter  # seconds; for work of the host alone, and after `synchronize`
_modules: dict[str, ModuleType] = {}  # torch's modules of the devices in use, by type


def on_host(device: Device) -> bool:
    """Whether the host computes: on the CPU, or the shapes of meta tensors."""
    return torch.device(device).type in ("cpu", "meta")


def count() -> int:
    """Number of GPUs that torch finds; CUDA is not initialized."""
    return torch.cuda.device_count()


def names() -> list[str]:
    """Names of the GPUs that torch finds."""
    return [torch.cuda.get_device_name(number) for number in range(count())]


def select(device: Device) -> None:
    """Use `device` from now on in this thread."""
    device = torch.device(device)
    if not on_host(device):
        _modules[device.type] = torch.get_device_module(device)
        if device.index is not None:
            torch.accelerator.set_device_index(device.index)


def synchronize(device: Device) -> None:
    """Wait until the device has done all work that is queued."""
    if not on_host(device):
        torch.accelerator.synchronize(device)


# -- random state ----------------------------------------------------------------------------------------------------


def seed(number: int) -> None:
    """Seed the default generators of the CPU and of the devices in use."""
    torch.default_generator.manual_seed(number)
    for module in _modules.values():
        module.manual_seed(number)


def random_states() -> dict[str, torch.Tensor]:
    """States of the default generators, by type of device."""
    states = {name: module.get_rng_state() for name, module in _modules.items()}
    return {"cpu": torch.default_generator.get_state(), **states}


def set_random_states(states: Mapping[str, torch.Tensor]) -> None:
    """Restore `random_states`; the state of a device that is not in use is left."""
    torch.default_generator.set_state(states["cpu"])
    for name, module in _modules.items():
        if name in states:
            module.set_rng_state(states[name])


# -- memory ----------------------------------------------------------------------------------------------------------


class HostStream:
    """Stands for a stream on a CPU, whose work is done when a call returns."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def record_event(self) -> Any: ...

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...


def copy_streams(device: Device) -> tuple[torch.Stream, torch.Stream, torch.Stream] | tuple[HostStream, ...]:
    """The stream of a device's work, and new ones for copies to it and from it, which begin after this work."""
    if on_host(device):
        return HostStream(), HostStream(), HostStream()
    work, to_device, from_device = torch.accelerator.current_stream(device), torch.Stream(device), torch.Stream(device)
    to_device.wait_stream(work)  # their buffers are new, and earlier copies may be under way
    return work, to_device, from_device


def to(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """The tensor on `device`. The host does not wait for the copy, which reads pinned memory."""
    if on_host(device) or not on_host(tensor.device):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def host_zeros(count: int, dtype: torch.dtype, device: Device) -> torch.Tensor:
    """A flat tensor of `count` zeros in host memory, which copies from and to `device` read without a wait.

    CUDA pins exactly these pages until the tensor is freed: torch's own pinned allocations grow to powers of two.
    """
    tensor = torch.zeros(count, dtype=dtype)
    if torch.device(device).type == "cuda" and count:
        address, runtime = tensor.data_ptr(), torch.cuda.cudart()
        if code := int(runtime.cudaHostRegister(address, tensor.nbytes, 0)):
            raise RuntimeError(f"CUDA pins no {tensor.nbytes} bytes of host memory: error {code}, out of memory")
        weakref.finalize(tensor.untyped_storage(), runtime.cudaHostUnregister, address).atexit = False
    return tensor


def reset_peaks(device: Device) -> None:
    """Begin to count the largest number of bytes that the allocator of a device holds."""
    if not on_host(device):
        torch.accelerator.reset_peak_memory_stats(device)


def peaks(device: Device) -> dict[str, int]:
    """Largest numbers of bytes since `reset_peaks`, in tensors and in all that the allocator holds; empty on a CPU."""
    if on_host(device):
        return {}
    memory = torch.accelerator
    return {"allocated": memory.max_memory_allocated(device), "reserved": memory.max_memory_reserved(device)}


# -- times -----------------------------------------------------------------------------------------------------------


class Clock:
    """Times of a rank's work, in seconds of perf_counter.

    On a CPU a mark is such a time. A device runs behind the host, so there a mark is the number of an event in its
    queue, and `times` waits for the device once for all marks: a batch is timed without a wait in between.

        clock = Clock(device)
        begin = clock.mark(); work(); end = clock.mark()
        time_of = clock.times()
        seconds = time_of(end) - time_of(begin)
    """

    def __init__(self, device: Device) -> None:
        self.device = torch.device(device)
        self.events: list[torch.Event] = []
        self.zero = 0.0  # time of the first event, at which the device is idle
        self.mark: Callable[[], float] = perf_counter if on_host(device) else self._record

    def _record(self) -> float:
        if not self.events:
            self.zero = perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.device))
        self.events.append(event)
        return float(len(self.events) - 1)

    def times(self) -> Callable[[float], float]:
        """Function from the marks so far to their times."""
        if not self.events:
            return float
        if not self.events[-1].query():  # a read of the loss has waited already
            self.events[-1].synchronize()
        times = [self.zero + self.events[0].elapsed_time(event) / 1000 for event in self.events]
        return lambda mark: times[int(mark)]

    def restart(self) -> None:
        """Forget the marks so far."""
        self.events.clear()
