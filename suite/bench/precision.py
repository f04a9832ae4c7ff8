"""Decides what `precision=auto` means: bfloat16 where the device multiplies it quickly, else one precision."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_QUICK = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # what x86 and Arm call products of bfloat16 in hardware


@cache
def flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The features of this processor, as Linux names them; none elsewhere."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return frozenset()
    told = (line.partition(":") for line in lines)
    return frozenset(flag for key, _, value in told if key.strip() in ("flags", "Features") for flag in value.split())


def resolved(precision: Mapping[str, Any], device: str) -> dict[str, Any]:
    """`precision` with auto replaced: bfloat16 on CUDA and on processors that multiply it, else one precision."""
    if precision["half"] != "auto":
        return dict(precision)
    quick = device == "cuda" or bool(_QUICK & flags())
    return {**precision, "half": "bfloat16" if quick else None}
