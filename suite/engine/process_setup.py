"""Set up the process of a rank, and measure its rate of matrix products."""

from __future__ import annotations

from time import perf_counter

import torch

from suite.comm.p2p.polling import set_timer_slack
from suite.core.errors import MissingDependency, Unsupported

now = perf_counter
MIN_REPEATS = 3  # products of a measured peak; the first may wait for memory


def prepare(threads: int) -> None:
    """Set the number of torch's threads, and let short sleeps end in time."""
    torch.set_num_threads(threads)
    set_timer_slack()


def device_of(kind: str, local_rank: int) -> str:
    """The device of one rank: 'cpu', or its CUDA device, which becomes current. Raises MissingDependency without it."""
    if kind == "cpu":
        return kind
    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise MissingDependency(f"CUDA device {local_rank}", f"this machine has {count}; use launch.device=cpu")
    torch.cuda.set_device(local_rank)
    return f"cuda:{local_rank}"


def check_half(half: str, device: torch.device | str) -> None:
    """Raises Unsupported where torch cannot multiply matrices of dtype `half` on this device."""
    try:
        matrix = torch.ones(2, 2, dtype=getattr(torch, half), device=device, requires_grad=True)
        (matrix @ matrix).sum().backward()
    except RuntimeError as error:
        raise Unsupported(
            f"half={half!r} on {device}: {str(error).splitlines()[0]}",
            rule="torch has kernels of this dtype for the device",
            legal="half=None",
        ) from error


def gemm_rate(
    size: int | None = None, seconds: float = 0.3, dtype: str = "float32", device: torch.device | str = "cpu"
) -> float:
    """Measured peak in flop/s: the fastest of several size x size products, on a CPU with torch's threads.

    Args:
        size: Rows of the matrices; by default 768, or 8192 on CUDA, which smaller matrices do not occupy.
        seconds: Least duration of the measurement.
    """
    cuda = torch.device(device).type == "cuda"
    size = size or (8192 if cuda else 768)
    a, b = torch.rand(2, size, size, dtype=getattr(torch, dtype), device=device)
    out = torch.empty_like(a)
    best, begin, repeats = float("inf"), now(), 0
    while repeats < MIN_REPEATS or now() - begin < seconds:
        start, repeats = now(), repeats + 1
        torch.mm(a, b, out=out)
        if cuda:
            torch.cuda.synchronize(device)
        best = min(best, now() - start)
    return 2 * size**3 / best
