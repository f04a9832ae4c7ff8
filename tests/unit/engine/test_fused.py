"""The fused optimizer step: Triton's interpreter against the rules' own steps, and its refusals."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from suite import SGD, Engine
from suite.core.errors import Unsupported
from tests.support.refusals import refused
from tests.support.scripts import printed
from tests.support.small_engines import alone, linears, mse_loss


@pytest.mark.slow("kernels are interpreted")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_fused_steps_are_those_of_the_rules() -> None:
    output = printed(str(Path(__file__).with_name("program_fused.py")), TRITON_INTERPRET="1")
    differences, (fused, separate) = json.loads(output)
    assert len(differences) == 7
    assert max(differences.values()) < 1e-6, differences
    assert fused == pytest.approx(separate, rel=1e-4)
    assert len(set(fused)) == len(fused)


@pytest.mark.parametrize("more", [{}, {"half": "bfloat16"}])
def test_a_step_without_a_kernel_is_refused(more: dict[str, Any]) -> None:
    """In one precision the weights are not flat; a CPU has no Triton."""
    with refused(Unsupported, "fused", True, legal="fused=False"):
        Engine(linears(4, 4), loss=mse_loss, optimizer=SGD(0.1), microbatch=2, fused=True, world=alone(), **more)
