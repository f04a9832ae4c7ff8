"""The Triton kernels, which no CPU runs but Triton's interpreter does: against dense products with explicit zeros."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import baselines.sputnik
from baselines.sputnik.linear import kernels_of
from suite.core.errors import MissingDependency
from tests.support.drawn import drawn
from tests.support.scripts import printed
from tests.support.sparse_products import ALLOWED, CASES

ROOT = Path(__file__).resolve().parents[3]
HERE = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HERE, reason="triton is not installed")
# the interpreter takes milliseconds per program; the first case has a row over a strip and a width over a tile
ALWAYS = [("uneven rows", "float32"), ("odd", "float16")]
CELLS = drawn(
    [*((name, "float32") for name in CASES), ("odd", "float16"), ("odd", "bfloat16"), ("odd", "float64")], 2, ALWAYS
)


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    """By case and type, then by product: relative to the largest value."""
    program = str(Path(__file__).with_name("program_sputnik.py"))
    output = printed(program, *(str(value) for cell in CELLS for value in cell.values), TRITON_INTERPRET="1")
    errors_of: dict[str, dict[str, float]] = json.loads(output)
    return errors_of


@pytest.mark.slow("kernels of Sputnik are interpreted")
@needs_triton
@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_interpreted_kernels_are_dense_products(errors: dict[str, dict[str, float]], name: str, kind: str) -> None:
    # the interpreter cuts a bfloat16's last bits off, where a device rounds
    allowed = ALLOWED[getattr(torch, kind)] * (2 if kind == "bfloat16" else 1)
    for product, error in errors[f"{name} {kind}"].items():
        assert error <= allowed, product


def test_cuda_requires_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    if HERE:
        assert kernels_of(torch.device("cuda")).__name__ == "baselines.sputnik.cuda"
    monkeypatch.delitem(sys.modules, "baselines.sputnik.cuda", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delattr(baselines.sputnik, "cuda", raising=False)
    with pytest.raises(MissingDependency, match="triton is not on this machine"):
        kernels_of(torch.device("cuda"))


@needs_triton
def test_the_tile_divides_the_columns_where_it_can() -> None:
    cuda: Any = kernels_of(torch.device("cuda"))
    assert [cuda._tile(count) for count in (576, 96, 48, 16, 17, 1)] == [64, 32, 16, 16, 64, 64]
