"""Precision of `precision=auto`: bfloat16 on devices with fast bfloat16 products, otherwise single precision."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from suite.core.values import Json

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # of x86 and Arm processors with bfloat16 products


@cache
def cpu_flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of this processor as Linux names them; none on other systems."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return frozenset()
    fields_of_line = (line.partition(":") for line in lines)
    return frozenset(
        flag for key, _, value in fields_of_line if key.strip() in ("flags", "Features") for flag in value.split()
    )


def resolve_half(half: Json, device: str) -> Json:
    """`precision.half` with `auto` replaced: bfloat16 on CUDA and on processors with bfloat16 products, else None."""
    if half != "auto":
        return half
    return "bfloat16" if device == "cuda" or _BF16_FLAGS & cpu_flags() else None
