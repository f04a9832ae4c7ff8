"""Efficiency constants: never above the machine, each with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from suite.core.errors import InvalidRequest, UnknownName
from suite.papers.common import claims
from suite.simulate.cost.efficiency import Efficiency
from tests.support.modelled import conf, efficiency, names
from tests.support.refusals import refused

WORDS = {"name", "fitted", "chosen", "reasons", "ranges"}  # that are no constants


@pytest.fixture(scope="module")
def known() -> set[str]:
    return {claim.id for claim in claims.load()}


@pytest.mark.parametrize("name", names("efficiency"))
def test_every_efficiency_of_conf_builds_and_accounts_for_its_constants(name: str, known: set[str]) -> None:
    """Each constant that is not the default is fitted to claims, or has a reason; those that are fitted exist."""
    loaded = conf("efficiency", name)
    assert isinstance(loaded, Efficiency)
    assert loaded.name == name
    assert set(loaded.calibrated_on) <= known
    if name in ("ideal", "usual"):
        assert not loaded.calibrated_on
        return
    usual = Efficiency(name, 1.0)
    accounted = {*loaded.fitted, *loaded.chosen, *loaded.reasons}
    for constant in set(Efficiency.__slots__) - WORDS:
        if getattr(loaded, constant) != getattr(usual, constant):
            assert constant in accounted, f"{constant}={getattr(loaded, constant)}"


@pytest.mark.parametrize("name", names("efficiency"))
def test_what_was_fitted_or_chosen_lies_within_its_range(name: str) -> None:
    """The ranges are committed before anything is varied, and of a group of shares they are factors."""
    loaded = conf("efficiency", name)
    assert set(loaded.ranges) >= {*loaded.fitted, *loaded.chosen}  # what was taken over may have one too
    for constant, ends in loaded.ranges.items():
        value = getattr(loaded, constant)
        assert min(ends) <= (1.0 if isinstance(value, Mapping) else value) <= max(ends), constant
        assert len(set(ends)) > 1, constant


def test_efficiency_names_each_calibration_cell_once() -> None:
    fitted = {"products": ("a", "b"), "network": ("b", "c")}
    assert efficiency(fitted=fitted).calibrated_on == ("a", "b", "c")
    assert efficiency().calibrated_on == ()


SHARES = ("products", "network", "pairs", "within", "host", "sparse")
TIMES = ("launch", "message", "delay", "fabric", "collective", "hop", "compress")
BAD = [
    *((name, value) for name in SHARES for value in (0, -0.5, 1.0001, math.nan)),
    *((name, value) for name in TIMES for value in (-1e-9, math.inf, math.nan)),
    *(("traffic", value) for value in (-0.1, 1.5, math.nan)),
    *(("states", value) for value in (0, -0.1, 1.5, math.nan)),
    *(("lane", value) for value in (0, -2e9, math.nan)),
    *(("adapters", value) for value in (0, -1, 1.5)),
]


@pytest.mark.parametrize(("constant", "value"), BAD)
def test_what_cannot_be_reached_is_refused_with_a_legal_value(constant: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        efficiency(**{constant: value})
    what, rule, legal = str(caught.value).split("; ")
    assert what == f"efficiency.{constant}={value}"
    assert rule.startswith("rule: ")
    name, _, number = legal.removeprefix("legal: efficiency.").partition("=")
    assert name == constant
    efficiency(**{constant: int(number) if number.isdecimal() else float(number)})  # it is legal


def test_every_constant_has_its_bounds() -> None:
    """A constant that is added later must be refused too where it cannot be."""
    assert {name for name, _ in BAD} == set(Efficiency.__slots__) - WORDS - {
        "hierarchical",
        "relative",
        "kernels",
        "generation",
    }


@pytest.mark.parametrize("share", [0, -1, 2.5, math.nan])
def test_a_networks_own_share_is_bounded(share: float) -> None:
    with refused(InvalidRequest, "efficiency.kernels.ResNet", str(share), rule="above 0 and at most 2", legal="1.0"):
        efficiency(kernels={"ResNet": share})


@pytest.mark.parametrize("share", [0, -1, 2.5, math.nan])
def test_a_systems_own_share_is_bounded(share: float) -> None:
    with refused(InvalidRequest, "efficiency.relative.sputnik", str(share), rule="above 0 and at most 2", legal="1.0"):
        efficiency(relative={"deepspeed_3d": 1.0, "sputnik": share})


@pytest.mark.parametrize("field", ["fitted", "chosen", "reasons", "ranges"])
def test_an_unknown_constant_is_told_the_nearest(field: str) -> None:
    with refused(UnknownName, "constant of an efficiency", "product", legal="did you mean 'products'?"):
        efficiency(**{field: {"product": ("samo.table2.axonn.gpus_256",)}})
