"""Precision of `precision=auto`: bfloat16 on devices with fast bfloat16 products, otherwise single precision."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from suite.core.cores import CPUINFO, cpuinfo
from suite.core.values import Json

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # of x86 and Arm processors with bfloat16 products


@cache
def cpu_flags(file: Path = CPUINFO) -> frozenset[str]:
    """Feature flags of this processor as Linux names them; none on other systems."""
    return frozenset(" ".join(cpuinfo("flags|Features", file)).split())


def resolve_half(half: Json, device: str) -> Json:
    """`precision.half` with `auto` replaced: bfloat16 on CUDA and on processors with bfloat16 products, else None."""
    if half != "auto":
        return half
    return "bfloat16" if device == "cuda" or _BF16_FLAGS & cpu_flags() else None
