"""Decides whether an argument of the wrong kind is refused by its annotation, and one of the right kind is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from suite.core.build import build
from suite.core.errors import Refused
from suite.core.fits import fits
from suite.core.grid import Grid

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [0, -3, 10**30], [True, 1.0, "1", None, [1]]),
        (float, [0, 1.5, -2], [True, NAN, INF, 10**400, "1", None]),
        (bool, [True, False], [0, "true", None]),
        (str, ["", "x"], [0, None, ["x"]]),
        (int | None, [None, 3], ["none", 1.5]),
        (Sequence[int], [[], [1, 2], (1,)], ["12", [1, "2"], {"a": 1}, 5]),
        (tuple[int, ...], [(1, 2), [1]], [["x"], 3]),
        (Mapping[str, float], [{}, {"a": 1}], [{"a": "1"}, [], 4]),
        (Callable[..., int], [len], [5]),
        (Grid, [Grid()], [{"data": 1}, 4, None]),
        (Any, [None, 5, "x"], []),
    ],
)
def test_kinds(hint: Any, good: Sequence[Any], bad: Sequence[Any]) -> None:
    assert [value for value in good if not fits(value, hint)] == []
    assert [value for value in bad if fits(value, hint)] == []


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"_target_": "suite.schedule.MessageDriven", "pipeline_limit": "x"},
            "suite.schedule.MessageDriven: pipeline_limit='x'; rule: pipeline_limit is a whole number or null; "
            "legal: pipeline_limit=null",
        ),
        (
            {"_target_": "suite.simulate.stack.Stack", "name": "mine", "products": NAN},
            "suite.simulate.stack.Stack: products=nan; rule: products is a number; legal: products=1.0",
        ),
        (
            {"_target_": "suite.memory.offloaded", "_partial_": True, "bucket": [5]},
            "suite.memory.offloaded: bucket=[5]; rule: bucket is a whole number; legal: bucket=1",
        ),
    ],
)
def test_what_a_config_gives_is_held_to_the_annotation(config: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused) as caught:
        build(config)
    assert str(caught.value) == told
