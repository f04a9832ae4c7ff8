"""Names, units and numbers as people write them: GPT-3 2.7B for gpt3_2_7b, and 125 million for 124439808."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

NONE = "–"  # a missing value
SYMBOLS = {"percent": "%", "gigabyte": "GB", "day": "days", "byte": "bytes", "count": ""}  # of units, on an axis
_THIN = "\u202f"  # groups the digits of a count without a line break
_NAMES = {
    "axonn": "AxoNN",
    "axonn_samo": "AxoNN with SAMO",
    "axonn_no_memopt": "AxoNN without offload",
    "cagnet": "CAGNET",
    "deepspeed_3d": "DeepSpeed-3D",
    "gpipe": "GPipe",
    "megatron_lm": "Megatron-LM",
    "interleaved_1f1b": "interleaved 1F1B",
    "one_f_one_b": "1F1B",
    "pipedream": "PipeDream",
    "pipedream_2bw": "PipeDream-2BW",
    "pipeoptim": "PipeOptim",
    "pytorch": "PyTorch",
    "sparsity_aware": "sparsity-aware",
    "sparsity_aware_gvb": "sparsity-aware with GVB",
    "spectrain": "SpecTrain",
    "sputnik": "Sputnik",
    "torch_gpipe": "PyTorch GPipe",
    "torch_one_f_one_b": "PyTorch 1F1B",
    "v_half": "V-Half",
    "v_min": "V-Min",
    "zb_h1": "ZB-H1",
    "zb_h2": "ZB-H2",
    "zb_1p": "ZB-1p",
    "zb_2p": "ZB-2p",
    "zb_v": "ZB-V",
    "gpt3_xl": "GPT-3 XL",
    "gnmt_8": "GNMT-8",
    "gnmt_16": "GNMT-16",
    "resnet_101": "ResNet-101",
    "wideresnet_101": "WideResnet-101",
    "inception_v3": "Inception-V3",
    "vgg_19": "VGG-19",
    "alexnet": "AlexNet",
}
_WORD = re.compile(r"(?<![\w.=/])[a-z][a-z0-9_]*(?![\w.=/])")
_GPT3 = re.compile(r"gpt3_(\d+)(?:_(\d+))?b")
_LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def named(text: str) -> str:
    """`text` with the names of systems and networks as their authors write them: 'axonn 2x1' is 'AxoNN 2x1'."""
    return _WORD.sub(lambda word: _NAMES.get(word[0]) or _gpt3(word[0]), text)


def _gpt3(word: str) -> str:
    """'GPT-3 2.7B' for 'gpt3_2_7b'; any other word as it is."""
    found = _GPT3.fullmatch(word)
    return f"GPT-3 {found[1]}{f'.{found[2]}' if found[2] else ''}B" if found else word


def unit(name: str) -> str:
    """The unit behind a number: '%', 'GB', 'days'."""
    return {"ratio": "times", "none": ""}.get(name, SYMBOLS.get(name, name))


def plain(value: float) -> str:
    """A number with at most six digits, and a whole number below a million in full: 4, 49.4, 23 500, 124.44 million."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if math.isnan(value):
        return NONE
    for size, word in _LARGE:
        if size <= abs(value) < 1000 * size:
            return f"{value / size:.5g} {word}"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:,.0f}".replace(",", _THIN)
    return re.sub(r"e([+-])0*", lambda sign: "e" + sign[1].strip("+"), f"{value:.6g}")


def short(value: float) -> str:
    """A number with four digits; whole numbers below a million in full."""
    whole = math.isfinite(value) and float(value).is_integer()
    return plain(value if whole or not math.isfinite(value) else float(f"{value:.4g}"))


def interval(ends: tuple[float, float], number: Callable[[float], str] = plain) -> str:
    """A printed range, of which one end may be open: '22 to 37', 'at least 13', 'at most 3'."""
    low, high = ends
    if math.isinf(high):
        return f"at least {number(low)}"
    return f"at most {number(high)}" if math.isinf(low) else f"{number(low)} to {number(high)}"


def round_number(value: float) -> str:
    """A number with three digits: 26.2, 125."""
    return plain(float(f"{value:.3g}")) if math.isfinite(value) else plain(value)
