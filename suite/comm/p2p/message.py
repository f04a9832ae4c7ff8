"""Wire format of a message: a header with op, dtypes and shapes, then the payload.

Nothing is pickled, and neither side remembers shapes: a message describes itself. The payload starts at multiples of
64 bytes, because a float64 product changes its last bits when its input is aligned otherwise. A message holds torch
tensors or plain memory (comm.p2p.host_memory), depending on its buffer. torch is loaded for tensors only.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from suite.core.errors import InvalidRequest
from suite.core.op import EVALUATION_CAPACITY, Kind, Op, feeds
from suite.core.protocols import Tensor, Value

if TYPE_CHECKING:
    import torch

ALIGN = 64  # bytes
EAGER_BYTES = 16 * 1024  # a larger first part saves no time: beyond it a second message costs nothing
_FIXED = struct.Struct("<qBBHI")  # op index, op kind, whether the payload follows inline, number of tensors, op stage
_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128"),
)
CLOSE = Op(0, Kind.UPDATE, 0)  # the last message of a transport; no channel sends an update op otherwise
RAW_BYTES = "bytes"  # dtype of plain memory
_RAW_CODE = len(_DTYPES)
_KINDS = tuple(Kind)


@cache
def dtypes() -> tuple[torch.dtype, ...]:
    """The dtypes that channels send; the index of a dtype is its code."""
    import torch

    return tuple(getattr(torch, name) for name in _DTYPES)


@cache
def _codes() -> dict[Any, int]:
    return {dtype: code for code, dtype in enumerate(dtypes())}


def check_eager_bytes(eager_bytes: int) -> None:
    """Raise InvalidRequest where a header would not fit."""
    if not isinstance(eager_bytes, int) or isinstance(eager_bytes, bool) or eager_bytes < 4 * ALIGN:
        rule = f"a whole number of bytes, at least {4 * ALIGN}"
        raise InvalidRequest(f"eager_bytes={eager_bytes!r}", rule=rule, legal=f"eager_bytes={EAGER_BYTES}")


def header_too_long(header_bytes: int, eager_bytes: int) -> InvalidRequest:
    """The error for a header that does not fit into the first part of a message."""
    return InvalidRequest(
        f"a header of {header_bytes} bytes",
        rule=f"at most eager_bytes={eager_bytes} bytes",
        legal=f"eager_bytes={align(header_bytes)}",
    )


def align(size: int) -> int:
    """The next multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


def encode(op: Op, value: Value, inline: bool) -> bytes:
    """The header: op, and dtype and shape of each tensor. inline: whether the payload is in the same message."""
    fields = [_FIXED.pack(op.index, _KINDS.index(op.kind), inline, len(value), op.stage)]
    for tensor in value:
        code = _RAW_CODE if tensor.dtype is RAW_BYTES else _codes().get(tensor.dtype)
        if code is None:
            raise InvalidRequest(
                f"a tensor of {tensor.dtype} in a channel", rule=f"one of {', '.join(map(str, dtypes()))}"
            )
        fields.append(struct.pack(f"<BB{tensor.dim()}q", code, tensor.dim(), *tensor.shape))
    return b"".join(fields)


def decode(header: bytes | memoryview) -> tuple[Op, bool, list[tuple[Any, tuple[int, ...]]], int]:
    """Inverse of `encode`: op, `inline`, dtype and shape of each tensor, and the header's length in bytes."""
    index, kind, inline, count, stage = _FIXED.unpack_from(header)
    offset, tensors = _FIXED.size, []
    for _ in range(count):
        code, dims = struct.unpack_from("<BB", header, offset)
        dtype = RAW_BYTES if code == _RAW_CODE else dtypes()[code]
        tensors.append((dtype, struct.unpack_from(f"<{dims}q", header, offset + 2)))
        offset += 2 + 8 * dims
    return Op(stage, _KINDS[kind], index), bool(inline), tensors, offset


def pack(op: Op, value: Value, buffer: Tensor) -> tuple[int, Value]:
    """Write the message of a value into `buffer` (bytes on the host).

    The tensors are written behind the header where all of them fit. Returns the number of bytes written and the
    tensors that must follow in messages of their own.
    """
    header = encode(op, value, inline=True)
    size = len(header)
    for tensor in value:
        size = align(size) + tensor.nbytes
    start, room = buffer.data_ptr(), buffer.numel()
    if size > room:
        header = encode(op, value, inline=False)
        if len(header) > room:
            raise header_too_long(len(header), room)
        ctypes.memmove(start, header, len(header))
        return len(header), tuple(tensor for tensor in value if tensor.numel())
    ctypes.memmove(start, header, len(header))
    offset = len(header)
    for tensor in value:
        offset = align(offset)
        host = tensor.cpu()  # no copy on a CPU
        ctypes.memmove(start + offset, host.data_ptr(), tensor.nbytes)
        offset += tensor.nbytes
    return size, ()


def unpack(buffer: Tensor, view: memoryview, device: Any) -> tuple[Op, Value, Value]:
    """Read the message in `buffer`.

    Args:
        buffer: Bytes of the message on the host; new tensors are of the same class.
        view: The same bytes.
        device: Device of the new tensors.

    Returns:
        The op, its tensors, and those tensors whose payload is still to be received, allocated in their exact size.
    """
    op, inline, described, offset = decode(view)
    tensors = []
    for dtype, shape in described:
        tensor = buffer.new_empty(shape, dtype=dtype, device=device)
        if inline:
            offset = align(offset)
            host = tensor if tensor.device.type == "cpu" else buffer.new_empty(shape, dtype=dtype)
            ctypes.memmove(host.data_ptr(), buffer.data_ptr() + offset, tensor.nbytes)
            if host is not tensor:
                tensor.copy_(host)
            offset += tensor.nbytes
        tensors.append(tensor)
    return op, tuple(tensors), () if inline else tuple(tensor for tensor in tensors if tensor.numel())


def receiver(message: Op, homes: Sequence[int]) -> int | None:
    """The rank whose op consumes `message`; None where no rank does. homes: rank of each stage."""
    target = feeds(message, len(homes))
    return None if target is None else homes[target.stage]


def neighbours(homes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The other ranks that hold a stage next to one of `rank`, in the order of the stages."""
    pairs = [pair for first, second in pairwise(homes) for pair in ((first, second), (second, first))]
    return tuple(dict.fromkeys(other for other, own in pairs if own == rank and other != rank))


def evaluation_capacity(homes: Sequence[int], source: int, target: int) -> int:
    """Evaluation values that may wait between two ranks: EVALUATION_CAPACITY for each stage that they go to."""
    return EVALUATION_CAPACITY * sum(pair == (source, target) for pair in pairwise(homes))
