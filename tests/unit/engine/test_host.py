"""Decides whether a type without kernels is refused before anything is made of it."""

from __future__ import annotations

import pytest
from torch import nn

from suite.core.errors import Unsupported
from suite.engine.host import check_half
from suite.engine.optimizer import SGD
from suite.engine.train import Engine


def test_a_type_that_this_processor_multiplies_passes() -> None:
    check_half("bfloat16", "cpu")


def test_a_type_without_kernels_is_refused_by_name() -> None:
    with pytest.raises(
        Unsupported, match=r"float8_e4m3fn on cpu: .*; rule: torch has kernels for it; legal: precision="
    ):
        check_half("float8_e4m3fn", "cpu")


def test_an_engine_asks_first() -> None:
    made: list[int] = []

    def layer() -> nn.Module:
        made.append(1)
        return nn.Linear(1, 1)

    with pytest.raises(Unsupported, match="float8_e5m2 on cpu"):
        Engine([layer], loss=lambda y, t: y.sum(), optimizer=SGD(0.1), microbatch=1, half="float8_e5m2")
    assert not made
