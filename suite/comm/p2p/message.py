"""Wire format of a message: a header with op, dtypes and shapes, then the payload; and the rank that receives it.

Nothing is pickled and no shape is remembered: a message says all there is to know. Payload starts at multiples of 64
bytes: a float64 product changes its last bits when its input lies elsewhere. A message holds torch tensors or plain
memory (suite/comm/p2p/host_memory.py), depending on its buffer; torch is loaded for tensors only."""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op, feeds
from suite.core.protocols import Tensor, Value

if TYPE_CHECKING:
    import torch

ALIGN = 64
INLINE = 16 * 1024  # bytes: the cheapest correct size, a second message costs nothing beyond it
CAPACITY = 8  # values of an evaluation that may be unreceived in a channel
_FIXED = struct.Struct("<qBBHI")  # index, kind, inline, number of tensors, stage
_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128"),
)
CLOSING = Op(0, Kind.UPDATE, 0)  # an op that no channel carries: the last message of a transport
PLAIN = "bytes"  # the type of plain memory
_PLAIN = len(_DTYPES)  # its code
_KINDS = tuple(Kind)


@cache
def dtypes() -> tuple[torch.dtype, ...]:
    """The types of tensors that channels carry; a type's place is its code."""
    import torch

    return tuple(getattr(torch, name) for name in _DTYPES)


@cache
def _codes() -> dict[Any, int]:
    return {dtype: code for code, dtype in enumerate(dtypes())}


def check_inline(inline: int) -> None:
    """Raises InvalidRequest where a header would not fit."""
    if not isinstance(inline, int) or isinstance(inline, bool) or inline < 4 * ALIGN:
        rule = f"a whole number of bytes, at least {4 * ALIGN}"
        raise InvalidRequest(f"inline={inline!r}", rule=rule, legal=f"inline={INLINE}")


def too_long(header: int, inline: int) -> InvalidRequest:
    """The error for a header of so many bytes that does not fit into the first part of a message."""
    legal = f"inline={aligned(header)}"
    return InvalidRequest(f"a header of {header} bytes", rule=f"at most inline={inline} bytes", legal=legal)


def aligned(size: int) -> int:
    """The next multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


def encode(op: Op, value: Value, inline: bool) -> bytes:
    """The header: op, and each tensor's dtype and shape."""
    parts = [_FIXED.pack(op.index, _KINDS.index(op.kind), inline, len(value), op.stage)]
    for tensor in value:
        code = _PLAIN if tensor.dtype is PLAIN else _codes().get(tensor.dtype)
        if code is None:
            raise InvalidRequest(
                f"a tensor of {tensor.dtype} in a channel", rule=f"one of {', '.join(map(str, dtypes()))}"
            )
        parts.append(struct.pack(f"<BB{tensor.dim()}q", code, tensor.dim(), *tensor.shape))
    return b"".join(parts)


def decode(data: bytes | memoryview) -> tuple[Op, bool, list[tuple[Any, tuple[int, ...]]], int]:
    """The inverse of `encode`, and the header's length."""
    index, kind, inline, count, stage = _FIXED.unpack_from(data)
    at, tensors = _FIXED.size, []
    for _ in range(count):
        code, dims = struct.unpack_from("<BB", data, at)
        dtype = PLAIN if code == _PLAIN else dtypes()[code]
        tensors.append((dtype, struct.unpack_from(f"<{dims}q", data, at + 2)))
        at += 2 + 8 * dims
    return Op(stage, _KINDS[kind], index), bool(inline), tensors, at


def pack(op: Op, value: Value, buffer: Tensor) -> tuple[int, Value]:
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
            raise too_long(len(head), room)
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


def unpack(buffer: Tensor, view: memoryview, device: Any) -> tuple[Op, Value, Value]:
    """The op and tensors of a message in `buffer`, whose bytes `view` shows, and the tensors still to be received.

    Tensors are new, of the buffer's kind and on `device`; the ones to come have their exact size."""
    op, inline, described, at = decode(view)
    tensors = []
    for dtype, shape in described:
        tensor = buffer.new_empty(shape, dtype=dtype, device=device)
        if inline:
            at = aligned(at)
            host = tensor if tensor.device.type == "cpu" else buffer.new_empty(shape, dtype=dtype)
            ctypes.memmove(host.data_ptr(), buffer.data_ptr() + at, tensor.nbytes)
            if host is not tensor:
                tensor.copy_(host)
            at += tensor.nbytes
        tensors.append(tensor)
    return op, tuple(tensors), () if inline else tuple(tensor for tensor in tensors if tensor.numel())


def receiver(op: Op, stages: int, *, before: int | None, after: int | None) -> int | None:
    """The neighbouring rank whose op consumes the output of `op`; None where no rank does."""
    target = feeds(op, stages)
    if target is None:
        return None
    rank = after if target.stage > op.stage else before
    assert rank is not None, f"{op} has no neighbour on this rank"
    return rank


def sender(op: Op, *, before: int | None, after: int | None) -> int | None:
    """The neighbour that `op` comes from: gradients come from the stage after, everything else from the one before."""
    return after if op.kind is Kind.BACKWARD else before
