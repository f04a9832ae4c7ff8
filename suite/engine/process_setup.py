"""Set up the process of a rank before it computes, and measure its rate of matrix products."""

from __future__ import annotations

from time import perf_counter

import torch

from suite.comm.p2p.polling import set_timer_slack
from suite.core.errors import MissingDependency, Unsupported

now = perf_counter
LEAST = 3  # products of a measured peak: the first may have waited for memory


def prepare(threads: int) -> None:
    """One thread count for torch, and short sleeps that are short."""
    torch.set_num_threads(threads)
    set_timer_slack()


def device_of(kind: str, local_rank: int) -> str:
    """The device of one rank: 'cpu', or its own CUDA device, made current. Raises MissingDependency without one."""
    if kind == "cpu":
        return kind
    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        raise MissingDependency(f"CUDA device {local_rank}", f"{torch.cuda.device_count()} are here; launch.device=cpu")
    torch.cuda.set_device(local_rank)
    return f"cuda:{local_rank}"


def check_half(half: str, device: torch.device | str) -> None:
    """Raises Unsupported where this processor's torch cannot multiply matrices of type `half`."""
    try:
        one = torch.ones(2, 2, dtype=getattr(torch, half), device=device, requires_grad=True)
        (one @ one).sum().backward()
    except RuntimeError as error:
        raise Unsupported(
            f"{half} on {device}: {str(error).splitlines()[0]}", rule="torch has kernels for it", legal="half=None"
        ) from error


def gemm_rate(
    size: int | None = None, seconds: float = 0.3, dtype: str = "float32", device: torch.device | str = "cpu"
) -> float:
    """Flop/s of the quickest of several size x size products on a device, and on a processor on the threads that are
    set: a measured peak. size: 768, or 8192 on CUDA, which smaller ones do not fill."""
    cuda = torch.device(device).type == "cuda"
    size = size or (8192 if cuda else 768)
    a, b = torch.rand(2, size, size, dtype=getattr(torch, dtype), device=device)
    out = torch.empty_like(a)
    best, begin, repeats = float("inf"), now(), 0
    while repeats < LEAST or now() - begin < seconds:
        start, repeats = now(), repeats + 1
        torch.mm(a, b, out=out)
        if cuda:
            torch.cuda.synchronize(device)
        best = min(best, now() - start)
    return 2 * size**3 / best
