"""The Triton kernels, which no CPU runs but Triton's interpreter does: against dense products with explicit zeros."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from baselines.sputnik.linear import kernels_of
from suite.core.errors import MissingDependency
from tests.support.sparse_products import ALLOWED, INTERPRETED

ROOT = Path(__file__).resolve().parents[3]
HERE = importlib.util.find_spec("triton") is not None


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    """By case and type, then by product: relative to the largest value."""
    if not HERE:
        pytest.skip("triton is not installed")
    paths = os.pathsep.join(str(path) for path in (ROOT,))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("program_sputnik.py"))],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    errors_of: dict[str, dict[str, float]] = json.loads(done.stdout)
    return errors_of


@pytest.mark.parametrize(("name", "dtype"), INTERPRETED, ids=str)
def test_interpreted_kernels_are_dense_products_with_explicit_zeros(
    errors: dict[str, dict[str, float]], name: str, dtype: torch.dtype
) -> None:
    error_of = errors[f"{name}, {dtype}"]
    # the interpreter cuts a bfloat16's last bits off, where a device rounds
    allowed = 2 * ALLOWED[dtype] if dtype == torch.bfloat16 else ALLOWED[dtype]
    assert set(error_of) == {"forward", "input", "weight"}
    for product, error in error_of.items():
        assert error <= allowed, product


def test_a_layer_trains_by_them(errors: dict[str, dict[str, float]]) -> None:
    assert max(errors["layer"].values()) <= ALLOWED[torch.float32]


def test_cuda_without_triton_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "baselines.sputnik.cuda", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    _forget(monkeypatch)
    with pytest.raises(MissingDependency, match="triton is not on this machine"):
        kernels_of(torch.device("cuda"))


def test_cuda_is_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    if not HERE:
        pytest.skip("triton is not installed")
    assert kernels_of(torch.device("cuda")).__name__ == "baselines.sputnik.cuda"


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own name for the module goes too."""
    import baselines.sputnik as package

    if hasattr(package, "cuda"):
        monkeypatch.delattr(package, "cuda")


def compiled(kernel: Any, kind: str, *, even: bool) -> str:
    """A kernel in NVIDIA's assembly for an H200, which takes no GPU; even: rows are multiples of 16 entries."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kinds = dict.fromkeys(("offsets", "columns", "swizzle"), "*i32") | {"width": "i32"}
    fixed = {"SUM": triton.language.float32, "VALUES": 32, "TILE": 64}
    names = kernel.arg_names
    signature = {name: kinds.get(name, "constexpr" if name in fixed else f"*{kind}") for name in names}
    whole = [at for at, name in enumerate(names) if name not in fixed and (even or name != "width")]
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in fixed.items()},
        attrs={(at,): [["tt.divisibility", 16]] for at in whole},
    )
    assembly: str = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    return assembly


@pytest.mark.parametrize("name", ["_spmm", "_sddmm"])
def test_kernels_compile_with_16_byte_loads_per_thread(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not HERE:
        pytest.skip("triton is not installed")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(kernels_of(torch.device("cuda")), name)
    assert [p.name for p in kernel.params if p.is_constexpr] == ["SUM", "VALUES", "TILE"]
    for kind in ("fp16", "fp32"):
        assert "ld.global.v4.b32" in compiled(kernel, kind, even=True)
        assert "ld.global.v4.b32" not in compiled(kernel, kind, even=False)


def test_the_tile_divides_what_it_can() -> None:
    if not HERE:
        pytest.skip("triton is not installed")
    cuda: Any = kernels_of(torch.device("cuda"))
    assert [cuda._tile(count) for count in (576, 96, 48, 16, 17, 1)] == [64, 32, 16, 16, 64, 64]
