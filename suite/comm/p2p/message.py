"""Wire format of a message: a header with op, dtypes and shapes, then the payload.

Nothing is pickled, and neither side remembers shapes: a message describes itself. The payload starts at multiples of
64 bytes, because a float64 product changes its last bits when its input is aligned otherwise. A message holds torch
tensors or plain memory (comm.p2p.host_memory), depending on its buffer. torch is loaded for tensors only.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from suite.core.errors import InvalidRequest
from suite.core.op import EVALUATION_CAPACITY, Kind, Op, feeds
from suite.core.protocols import Tensor, Value

ALIGN = 64  # bytes
EAGER_BYTES = 16 * 1024  # a larger first part saves no time: beyond it a second message costs nothing
_FIXED = struct.Struct("<qIIBB")  # op index, op stage, bytes of the header, op kind, whether the payload is inline
RAW_BYTES = "bytes"  # dtype of plain memory
CLOSE = Op(0, Kind.UPDATE, 0)  # the last message of a transport; no channel sends an update op otherwise
_KINDS = tuple(Kind)
_KIND_CODES = {kind: code for code, kind in enumerate(_KINDS)}
_CACHED_LAYOUTS = 1024  # a pipeline sends values of few shapes, again and again


def align(size: int) -> int:
    """The next multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


class _Layout(NamedTuple):
    """Message of tensors with these dtypes and shapes.

    Attributes:
        tensors: Dtype and shape of each tensor.
        encoded: Its part of the header.
        offsets: Position of each inline tensor in the message, and the size of the message.
    """

    tensors: tuple[tuple[Any, tuple[int, ...]], ...]
    encoded: bytes
    offsets: tuple[int, ...]


@lru_cache(_CACHED_LAYOUTS)
def _layout(tensors: tuple[tuple[Any, tuple[int, ...]], ...]) -> _Layout:
    encoded = json.dumps([(str(dtype).removeprefix("torch."), shape) for dtype, shape in tensors]).encode()
    sizes = [prod(shape) * (1 if dtype is RAW_BYTES else dtype.itemsize) for dtype, shape in tensors]
    offsets, end = [], _FIXED.size + len(encoded)
    for size in sizes:
        offsets.append(align(end))
        end = offsets[-1] + size
    return _Layout(tensors, encoded, (*offsets, end))


@lru_cache(_CACHED_LAYOUTS)
def _decode_layout(encoded: bytes) -> _Layout:
    return _layout(tuple((_dtype(name), tuple(shape)) for name, shape in json.loads(encoded)))


def _dtype(name: str) -> Any:
    if name == RAW_BYTES:
        return RAW_BYTES
    import torch

    return getattr(torch, name)


def pack(op: Op, value: Value, buffer: Tensor, *, inline: bool = True) -> tuple[int, Value]:
    """Write the message of a value into `buffer` (bytes on the host).

    The tensors are written behind the header where all of them fit, unless `inline` is false. Returns the number of
    bytes written and the tensors that must follow in messages of their own.
    """
    layout = _layout(tuple([(tensor.dtype, tuple(tensor.shape)) for tensor in value]))
    start, room, size = buffer.data_ptr(), buffer.nbytes, _FIXED.size + len(layout.encoded)
    inline = inline and layout.offsets[-1] <= room
    header = _FIXED.pack(op.index, op.stage, size, _KIND_CODES[op.kind], inline) + layout.encoded
    if size > room:
        raise InvalidRequest(
            f"a header of {size} bytes", rule=f"at most eager_bytes={room} bytes", legal=f"eager_bytes={align(size)}"
        )
    ctypes.memmove(start, header, size)
    if not inline:
        return size, tuple(tensor for tensor in value if tensor.nbytes)
    for tensor, offset in zip(value, layout.offsets, strict=False):  # the last offset is the end
        ctypes.memmove(start + offset, tensor.cpu().data_ptr(), tensor.nbytes)  # .cpu() copies nothing on a CPU
    return layout.offsets[-1], ()


def unpack(buffer: Tensor, view: memoryview, device: Any, later: Any = None) -> tuple[Op, Value, Value]:
    """Read the message in `buffer`.

    Args:
        buffer: Bytes of the message on the host; new tensors are of the same class.
        view: The same bytes.
        device: Device of the new tensors.
        later: Device of tensors whose payload is still to be received; None for `device`.

    Returns:
        The op, its tensors, and those tensors whose payload is still to be received, allocated in their exact size.
    """
    index, stage, size, kind, inline = _FIXED.unpack_from(view)
    op, layout = Op(stage, _KINDS[kind], index), _decode_layout(bytes(view[_FIXED.size : size]))
    on_host, start, tensors = device == buffer.device, buffer.data_ptr(), []
    device = device if inline else later or device
    for (dtype, shape), offset in zip(layout.tensors, layout.offsets, strict=False):  # the last offset is the end
        tensor = buffer.new_empty(shape, dtype=dtype, device=device)
        if inline:
            host = tensor if on_host else buffer.new_empty(shape, dtype=dtype)
            ctypes.memmove(host.data_ptr(), start + offset, tensor.nbytes)
            if not on_host:
                tensor.copy_(host)
        tensors.append(tensor)
    return op, tuple(tensors), () if inline else tuple(tensor for tensor in tensors if tensor.nbytes)


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
    return EVALUATION_CAPACITY * max(1, sum(pair == (source, target) for pair in pairwise(homes)))
