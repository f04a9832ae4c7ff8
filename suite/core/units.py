"""Numbers with units for people: three significant digits and a decimal prefix."""

from __future__ import annotations

import math

_LARGE = ("", "k", "M", "G", "T", "P", "E")
_SMALL = ("", "m", "u", "n")


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """`value` with a decimal prefix: si(20.28e9, 'B') is '20.3 GB' (1 GB = 1e9 B, as in the papers)."""
    if not math.isfinite(value) or value == 0:
        return f"{value or 0:g} {unit}".strip()
    power = math.floor(math.log10(abs(float(f"{value:.{digits}g}"))) + 1e-12)  # of the rounded number
    step = max(1 - len(_SMALL), min(len(_LARGE) - 1, power // 3))
    scaled = value / 1000.0**step
    prefix = _LARGE[step] if step >= 0 else _SMALL[-step]
    text = f"{scaled:.{digits}g}"
    if "e" in text:
        text = f"{scaled:.0f}"
    return f"{text} {prefix}{unit}".rstrip()


def seconds(value: float) -> str:
    """A duration for a progress line: '8 s', '2 min 05 s', '1 h 03 min'."""
    whole = max(0, round(value))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def most_sparse(entries: int) -> str:
    """The largest sparsity of a weight with `entries` entries that keeps one entry, rounded down, as text."""
    digits = max(6, len(str(entries)) + 1)
    share = (entries - 1) * 10**digits // entries  # in units of the last digit
    return f"0.{share:0{digits}d}".rstrip("0").rstrip(".")
