"""Precision of `precision=auto`: bfloat16 where the device multiplies it fast, otherwise single precision."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from suite.core.values import Json

_QUICK = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # what x86 and Arm call products of bfloat16 in hardware


@cache
def flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The features of this processor, as Linux names them; none elsewhere."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return frozenset()
    fields_of_line = (line.partition(":") for line in lines)
    return frozenset(
        flag for key, _, value in fields_of_line if key.strip() in ("flags", "Features") for flag in value.split()
    )


def resolved(half: Json, device: str) -> Json:
    """`precision.half` with auto replaced: bfloat16 on CUDA and on processors that multiply it, else one precision."""
    if half != "auto":
        return half
    quick = device == "cuda" or bool(_QUICK & flags())
    return "bfloat16" if quick else None
