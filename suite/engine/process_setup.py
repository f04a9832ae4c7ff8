"""Set up the process of a rank, and measure its rate of matrix products."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import torch
from torch import nn

from suite import accelerator
from suite.comm.p2p.polling import set_timer_slack
from suite.comm.rendezvous.launcher_env import launch_info
from suite.comm.world import check_device
from suite.core.errors import InvalidRequest, MissingDependency

now = accelerator.host_time
MIN_REPEATS = 3  # products of a measured peak; the first may wait for memory


def prepare(threads: int) -> None:
    """Set the number of torch's threads, and let short sleeps end in time."""
    torch.set_num_threads(threads)
    set_timer_slack()


def device_of(layers: Iterable[object], device: torch.device | str | None) -> str:
    """The device of this rank: `device`, or that of the modules among the layers; the CPU without either.

    A CUDA device becomes current.

    Raises:
        InvalidRequest: For weights on several devices, and on a GPU that is not this device.
        MissingDependency: For a GPU that this machine does not have.
    """
    weights = (weight for layer in layers if isinstance(layer, nn.Module) for weight in layer.parameters())
    found = sorted({str(weight.device) for weight in weights} - {"meta"})
    chosen = str(device if device is not None else found[0] if found else "cpu")
    check_device(chosen)
    if chosen == "cuda":
        chosen = f"cuda:{launch_info().local_rank}"
    if found not in ([], ["cpu"], [chosen]):
        raise InvalidRequest(
            f"weights on {' and '.join(found)} for the device {chosen}",
            rule="a rank has one device, and the weights of a model on a GPU stay there",
            legal=f'model.to("{chosen}")',
        )
    if chosen.startswith("cuda:") and int(chosen.removeprefix("cuda:")) >= (count := accelerator.count()):
        remedy = f"torch finds {count} GPUs, one per rank; a replay needs one GPU, the device cpu none"
        raise MissingDependency(f"the device {chosen}", remedy)
    accelerator.select(chosen)
    return chosen


def gemm_rate(
    size: int | None = None, seconds: float = 0.3, dtype: str = "float32", device: torch.device | str = "cpu"
) -> float:
    """Measured peak in flop/s, of several size x size products of normal numbers.

    On a CPU, with torch's threads, it is that of the fastest, as other programs slow the rest. A GPU lowers its clock
    under load, which depends on the numbers, and the peak is that of the median.

    Args:
        size: Rows of the matrices; by default 768, or 8192 on CUDA, which smaller matrices do not occupy.
        seconds: Least duration of the measurement.
    """
    on_host = accelerator.on_host(device)
    size = size or (768 if on_host else 8192)
    a, b = torch.randn(2, size, size, dtype=getattr(torch, dtype), device=device)
    out = torch.empty_like(a)
    times: list[float] = []
    begin = now()
    while len(times) < MIN_REPEATS or now() - begin < seconds:
        accelerator.synchronize(device)
        start = now()
        torch.mm(a, b, out=out)
        accelerator.synchronize(device)
        times.append(now() - start)
    return 2 * size**3 / (min(times) if on_host else median(times))
