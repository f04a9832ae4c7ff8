"""Choice of precision=auto by processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.config.compose import composed
from suite.runner import precision
from suite.runner.runs import freeze


def test_cpu_flags_of_x86_and_arm(tmp_path: Path) -> None:
    for text, flags in (
        ("flags\t\t: fpu avx2 avx512_bf16 f16c\n", {"fpu", "avx2", "avx512_bf16", "f16c"}),
        ("processor : 0\nFeatures\t: fp bf16\nprocessor : 1\nFeatures : i8mm\n", {"fp", "bf16", "i8mm"}),
        ("", set()),
    ):
        file = tmp_path / f"{len(flags)} flags"
        file.write_text(text)
        assert precision.cpu_flags(file) == flags
    assert precision.cpu_flags(tmp_path / "nothing") == frozenset()


def test_auto_precision_depends_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag, device, half in (
        ("avx2", "cpu", None),
        ("avx512_bf16", "cpu", "bfloat16"),
        ("amx_bf16", "cpu", "bfloat16"),
        ("bf16", "cpu", "bfloat16"),
        ("", "cuda", "bfloat16"),
    ):
        monkeypatch.setattr(precision, "cpu_flags", lambda flag=flag: frozenset([flag]))
        assert precision.resolve_half("auto", device) == half, flag
        if device == "cpu":
            assert freeze(composed(["precision=auto"]), "").config.precision.half == half
    assert [precision.resolve_half(half, "cuda") for half in (None, "float16")] == [None, "float16"]
