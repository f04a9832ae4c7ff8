"""Products in half precision on processors without instructions for them.

Such instructions multiply numbers in half precision, add the products in float32 and round the sum. torch's kernels for
other processors do the same one element at a time: with AVX2 alone, the product of two 256 x 256 matrices in bfloat16
takes 100 ms, and 0.6 ms in float32. `RoundedProducts` multiplies in float32 and rounds the result, which is as exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from suite.accelerator import host_time

SIZE, REPEATS = 128, 3  # rows of the matrices of a comparison, and products of each kind
SLOW = 2.0  # torch's products are slow if they take this many times as long as rounded products of float32
_aten = torch.ops.aten
_PRODUCTS = {
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default),
    *(_aten.mv.default, _aten.addmv.default, _aten.dot.default),
    *(_aten.convolution.default, _aten.convolution_backward.default),
}


class RoundedProducts(TorchDispatchMode):
    """Computes products and convolutions of numbers in `half` precision in float32, and rounds the results."""

    def __init__(self, half: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.half: torch.dtype = getattr(torch, half)

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func not in _PRODUCTS or args[0] is None or args[0].dtype is not self.half:
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.float, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.half), func(*args, **kwargs))


def are_slow(half: str, clock: Callable[[], float] = host_time) -> bool:
    """Whether torch's products in `half` precision are slow on this processor, by the time of a small one."""

    def quickest(multiply: Callable[[], object]) -> float:
        times = []
        for _ in range(REPEATS):
            begin = clock()
            multiply()
            times.append(clock() - begin)
        return min(times)

    a, b = torch.randn(2, SIZE, SIZE).to(getattr(torch, half))
    plain = quickest(lambda: a @ b)
    with RoundedProducts(half):
        return plain > SLOW * quickest(lambda: a @ b)
