"""Choice of precision=auto by processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suite.config.compose import composed
from suite.runner import precision
from suite.runner.runs import freeze


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("flags\t\t: fpu avx2 avx512_bf16 f16c\n", {"fpu", "avx2", "avx512_bf16", "f16c"}),
        (
            "processor : 0\nFeatures\t: fp asimd bf16\nprocessor : 1\nFeatures : fp i8mm\n",
            {"fp", "asimd", "bf16", "i8mm"},
        ),
        ("", set()),
    ],
)
def test_cpu_flags_of_x86_and_arm(tmp_path: Path, text: str, flags: set[str]) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert precision.cpu_flags(file) == flags


def test_missing_cpuinfo_means_no_flags(tmp_path: Path) -> None:
    assert precision.cpu_flags(tmp_path / "nothing") == frozenset()


@pytest.mark.parametrize(
    ("has", "device", "half"),
    [
        ({"avx2"}, "cpu", None),
        ({"avx2", "avx512_bf16"}, "cpu", "bfloat16"),
        ({"amx_bf16"}, "cpu", "bfloat16"),
        ({"bf16"}, "cpu", "bfloat16"),
        (set(), "cuda", "bfloat16"),
    ],
)
def test_auto_precision_depends_on_the_device(
    monkeypatch: pytest.MonkeyPatch, has: set[str], device: str, half: str | None
) -> None:
    monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset(has))
    assert precision.resolve_half("auto", device) == half


@pytest.mark.parametrize("half", [None, "float16"])
def test_explicit_precision_stays(half: str | None) -> None:
    assert precision.resolve_half(half, "cuda") == half


def test_run_resolves_automatic_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(flags: set[str]) -> Any:
        monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset(flags))
        return freeze(composed(["precision=auto"]), "").config.precision.half

    assert of({"avx512_bf16"}) == "bfloat16"
    assert of({"avx2"}) is None
