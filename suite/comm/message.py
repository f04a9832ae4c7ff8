"""Decides who receives a value and how it is described on the wire: a header with op, dtypes and shapes.

Nothing is pickled and no shape is remembered: a message says all there is to know. Payload starts at multiples of 64
bytes: a float64 product changes its last bits when its input lies elsewhere.
"""

from __future__ import annotations

import ctypes
import struct

import torch

from suite.core.errors import Refused
from suite.core.op import Kind, Op, feeds
from suite.core.protocols import Value

ALIGN = 64
INLINE = 16 * 1024  # bytes: the cheapest correct size, a second message costs nothing beyond it
CAPACITY = 8  # values of an evaluation that may be unreceived in a lane
_FIXED = struct.Struct("<qBBHI")  # index, kind, inline, number of tensors, stage
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
_CODE = {dtype: code for code, dtype in enumerate(_DTYPES)}
_KINDS = tuple(Kind)


def check_inline(inline: int) -> None:
    """Raises Refused where a header would not fit."""
    if inline < 4 * ALIGN:
        raise Refused(f"comm.inline={inline}", rule=f"at least {4 * ALIGN} bytes", legal=str(INLINE))


def aligned(size: int) -> int:
    """The next multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


def encode(op: Op, value: Value, inline: bool) -> bytes:
    """The header: op, and each tensor's dtype and shape."""
    parts = [_FIXED.pack(op.index, _KINDS.index(op.kind), inline, len(value), op.stage)]
    for tensor in value:
        if tensor.dtype not in _CODE:
            raise Refused(f"a tensor of {tensor.dtype} in a lane", rule=f"one of {', '.join(map(str, _DTYPES))}")
        parts.append(struct.pack(f"<BB{tensor.dim()}q", _CODE[tensor.dtype], tensor.dim(), *tensor.shape))
    return b"".join(parts)


def decode(data: bytes | memoryview) -> tuple[Op, bool, list[tuple[torch.dtype, tuple[int, ...]]], int]:
    """The inverse of `encode`, and the header's length."""
    index, kind, inline, count, stage = _FIXED.unpack_from(data)
    at, tensors = _FIXED.size, []
    for _ in range(count):
        code, dims = struct.unpack_from("<BB", data, at)
        tensors.append((_DTYPES[code], struct.unpack_from(f"<{dims}q", data, at + 2)))
        at += 2 + 8 * dims
    return Op(stage, _KINDS[kind], index), bool(inline), tensors, at


def pack(op: Op, value: Value, buffer: torch.Tensor) -> tuple[int, Value]:
    """Write a value's message into `buffer` (bytes on the host): the header, and the tensors too where all fits.

    Returns the bytes used and the tensors that must follow, none where they are inside."""
    head = encode(op, value, inline=True)
    size = len(head)
    for tensor in value:
        size = aligned(size) + tensor.nbytes
    start, room = buffer.data_ptr(), buffer.numel()
    if size > room:
        head = encode(op, value, inline=False)
        if len(head) > room:
            raise Refused(f"a header of {len(head)} bytes", rule=f"at most comm.inline = {room} bytes")
        ctypes.memmove(start, head, len(head))
        return len(head), tuple(tensor for tensor in value if tensor.numel())
    ctypes.memmove(start, head, len(head))
    at = len(head)
    for tensor in value:
        at = aligned(at)
        host = tensor.cpu()  # itself, where it is there already
        ctypes.memmove(start + at, host.data_ptr(), tensor.nbytes)
        at += tensor.nbytes
    return size, ()


def unpack(buffer: torch.Tensor, view: memoryview, device: torch.device) -> tuple[Op, Value, Value]:
    """The op and tensors of a message in `buffer`, whose bytes `view` shows, and those of them that are still to come.

    Tensors are new and on `device`; the ones to come have their exact size."""
    op, inline, described, at = decode(view)
    tensors = []
    for dtype, shape in described:
        tensor = torch.empty(shape, dtype=dtype, device=device)
        if inline:
            at = aligned(at)
            host = tensor if tensor.device.type == "cpu" else torch.empty(shape, dtype=dtype)
            ctypes.memmove(host.data_ptr(), buffer.data_ptr() + at, tensor.nbytes)
            if host is not tensor:
                tensor.copy_(host)
            at += tensor.nbytes
        tensors.append(tensor)
    return op, tuple(tensors), () if inline else tuple(tensor for tensor in tensors if tensor.numel())


def receiver(op: Op, stages: int, *, before: int | None, after: int | None) -> int | None:
    """The neighbouring rank whose op consumes the output of `op`; None where nobody does."""
    target = feeds(op, stages)
    if target is None:
        return None
    rank = after if target.stage > op.stage else before
    assert rank is not None, f"{op} has no neighbour on this rank"
    return rank
