"""Half-precision dtypes without kernels, and the measured peak rate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suite import SGD, Engine
from suite.core.errors import Unsupported
from suite.engine import build_state, process_setup
from suite.engine.process_setup import check_half, gemm_rate
from tests.support.refusals import refused


def test_unsupported_half_dtype_is_rejected() -> None:
    check_half("bfloat16", "cpu")
    with refused(Unsupported, "half", "'float8_e4m3fn'"):
        check_half("float8_e4m3fn", "cpu")


def test_engine_checks_half_dtype_before_making_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[int] = []

    def layer() -> nn.Module:
        created.append(1)
        return nn.Linear(1, 1)

    def missing(half: str, device: torch.device) -> None:
        raise Unsupported(half)

    monkeypatch.setattr(build_state, "check_half", missing)
    with refused(Unsupported, subject="float16"):
        Engine([layer], loss=lambda y, t: y.mean(), optimizer=SGD(0.1), microbatch=1, half="float16")
    assert not created


@pytest.mark.parametrize(("device", "size"), [("cpu", 4), ("meta", 768)])
def test_gemm_rate_measures_products_on_device(monkeypatch: pytest.MonkeyPatch, device: str, size: int) -> None:
    """The meta device replaces a GPU; its default size is that of a CPU, 768."""
    seen = set()
    product = torch.mm

    def recorded_mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        seen.update((tensor.device.type, tuple(tensor.shape), tensor.dtype) for tensor in (a, b, out))
        return product(a, b, out=out)

    monkeypatch.setattr(torch, "mm", recorded_mm)
    assert gemm_rate(size if device == "cpu" else None, 0.01, "bfloat16", device) > 0
    assert seen == {(device, (size, size), torch.bfloat16)}


def test_gemm_rate_ignores_slow_first_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of 2 x 2 matrices (16 flop): the first takes 10 s, longer than the requested time, the others 1 s."""
    clock = [0.0]

    def slow(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
        clock[0] += 1.0 if clock[0] else 10.0

    monkeypatch.setattr(torch, "mm", slow)
    monkeypatch.setattr(process_setup, "now", lambda: clock[0])
    assert gemm_rate(2, 0.3) == 16.0
