"""Wire format of a message: a header with op, dtypes and shapes, then the payload.

Nothing is pickled, and neither side remembers shapes: a message describes itself. The payload starts at multiples of
64 bytes, because a float64 product changes its last bits when its input is aligned otherwise. A message holds torch
tensors or plain memory (comm.p2p.host_memory), depending on its buffer. torch is loaded for tensors only.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from suite.core.errors import InvalidRequest
from suite.core.op import EVALUATION_CAPACITY, Kind, Op, feeds
from suite.core.protocols import Tensor, Value

if TYPE_CHECKING:
    import torch

ALIGN = 64  # bytes
EAGER_BYTES = 16 * 1024  # a larger first part saves no time: beyond it a second message costs nothing
_FIXED = struct.Struct("<qIIBB")  # op index, op stage, bytes of the header, op kind, whether the payload is inline
_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128"),
)
CLOSE = Op(0, Kind.UPDATE, 0)  # the last message of a transport; no channel sends an update op otherwise
RAW_BYTES = "bytes"  # dtype of plain memory
_RAW_CODE = len(_DTYPES)
_KINDS = tuple(Kind)
_KIND_CODES = {kind: code for code, kind in enumerate(_KINDS)}
_CACHED_LAYOUTS = 1024  # a pipeline sends values of few shapes, again and again


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

    @property
    def header_bytes(self) -> int:
        return _FIXED.size + len(self.encoded)


@lru_cache(_CACHED_LAYOUTS)
def _layout(tensors: tuple[tuple[Any, tuple[int, ...]], ...]) -> _Layout:
    fields = []
    for dtype, shape in tensors:
        code = _RAW_CODE if dtype is RAW_BYTES else _codes().get(dtype)
        if code is None:
            raise InvalidRequest(f"a tensor of {dtype} in a channel", rule=f"one of {', '.join(map(str, dtypes()))}")
        fields.append(struct.pack(f"<BB{len(shape)}q", code, len(shape), *shape))
    encoded, sizes = b"".join(fields), [prod(shape) * _item_bytes(dtype) for dtype, shape in tensors]
    offsets, end = [], _FIXED.size + len(encoded)
    for size in sizes:
        offsets.append(align(end))
        end = offsets[-1] + size
    return _Layout(tensors, encoded, (*offsets, end))


@lru_cache(_CACHED_LAYOUTS)
def _decode_layout(encoded: bytes) -> _Layout:
    offset, tensors = 0, []
    while offset < len(encoded):
        code, dims = encoded[offset], encoded[offset + 1]
        dtype = RAW_BYTES if code == _RAW_CODE else dtypes()[code]
        tensors.append((dtype, struct.unpack_from(f"<{dims}q", encoded, offset + 2)))
        offset += 2 + 8 * dims
    return _layout(tuple(tensors))


def _item_bytes(dtype: Any) -> int:
    return 1 if dtype is RAW_BYTES else int(dtype.itemsize)


def _layout_of(value: Value) -> _Layout:
    return _layout(tuple([(tensor.dtype, tuple(tensor.shape)) for tensor in value]))


def _header(op: Op, layout: _Layout, inline: bool) -> bytes:
    kind = _KIND_CODES[op.kind]
    return _FIXED.pack(op.index, op.stage, layout.header_bytes, kind, inline) + layout.encoded


def encode(op: Op, value: Value, inline: bool) -> bytes:
    """The header: op, and dtype and shape of each tensor. inline: whether the payload is in the same message."""
    return _header(op, _layout_of(value), inline)


def _decode(header: bytes | memoryview) -> tuple[Op, bool, _Layout]:
    index, stage, size, kind, inline = _FIXED.unpack_from(header)
    return Op(stage, _KINDS[kind], index), bool(inline), _decode_layout(bytes(header[_FIXED.size : size]))


def decode(header: bytes | memoryview) -> tuple[Op, bool, Sequence[tuple[Any, tuple[int, ...]]], int]:
    """Inverse of `encode`: op, `inline`, dtype and shape of each tensor, and the header's length in bytes."""
    op, inline, layout = _decode(header)
    return op, inline, layout.tensors, layout.header_bytes


def pack(op: Op, value: Value, buffer: Tensor) -> tuple[int, Value]:
    """Write the message of a value into `buffer` (bytes on the host).

    The tensors are written behind the header where all of them fit. Returns the number of bytes written and the
    tensors that must follow in messages of their own.
    """
    layout, start, room = _layout_of(value), buffer.data_ptr(), buffer.numel()
    inline = layout.offsets[-1] <= room
    header = _header(op, layout, inline)
    if len(header) > room:
        raise header_too_long(len(header), room)
    ctypes.memmove(start, header, len(header))
    if not inline:
        return len(header), tuple(tensor for tensor in value if tensor.numel())
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
    op, inline, layout = _decode(view)
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
