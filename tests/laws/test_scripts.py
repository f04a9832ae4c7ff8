"""The engine is the plain script: it gives the same losses, weights and names, or refuses in one sentence.

Every script runs as a plain loop over microbatches and on four grids in one process, in float64. Statistics of a
microbatch, and buffers that the forwards of each replica write, differ by design (docs/training.md).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

import suite
from suite import Grid
from tests.support.drawn import drawn, seed
from tests.support.plain import GRIDS, mean_square, rows
from tests.support.user_scripts import KINDS, random_script, two

PROGRAMS = 15
MOST_REFUSED = 0.5


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("kind", drawn(list(KINDS), n=12))
def test_each_kind_is_the_plain_script_or_is_refused(kind: str) -> None:
    script, refusing, words = KINDS[kind]
    for grid in GRIDS:
        verdict = script.verdict(grid)
        if f"{grid.inter}x{grid.data}" in refusing:
            assert verdict.startswith("refused: "), f"{kind} on {grid}: {verdict}"
            assert words in verdict
            assert "rule: " in verdict
        elif kind == "buffer of two stages" and grid.data > 1:
            continue  # each replica has means of its own rows
        else:
            assert verdict == "equal", f"{kind} on {grid}: {verdict}"


def compared(number: int) -> list[tuple[Grid, str, str]]:
    script, description = random_script(number)
    found = []
    for grid in GRIDS:
        if grid.data > 1 and ("running blocks" in description or "batch norm" in description):
            continue
        found.append((grid, script.verdict(grid), description))
    return found


def check(numbers: Iterable[int]) -> None:
    verdicts: Counter[str] = Counter()
    for number in numbers:
        for grid, verdict, description in compared(number):
            assert not verdict.startswith("different"), f"random_script({number}) on {grid}: {verdict}; {description}"
            verdicts[verdict.partition(":")[0]] += 1
    assert verdicts["equal"] > (1 - MOST_REFUSED) * verdicts.total()


def test_random_scripts_are_the_plain_scripts_or_are_refused() -> None:
    first = 1000 * seed()
    check(range(first, first + PROGRAMS))


@pytest.mark.parametrize("options", [{}, {"update_interval": 1}], ids=str)
def test_a_loader_may_use_its_tensors_again(options: dict[str, Any]) -> None:
    batches = rows(size=2)

    def reusing() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        inputs, targets = (tensor.clone() for tensor in batches[0])
        for one, other in batches:
            inputs.copy_(one)
            targets.copy_(other)
            yield inputs, targets

    def trained(source: Any) -> list[float]:
        arguments = {"loss": mean_square, "optimizer": suite.SGD(0.1), "microbatch": 2, "grid": Grid(inter=2)}
        with suite.Engine(two(), **arguments, **options) as engine:
            return list(engine.train(source))

    assert trained(reusing()) == trained(batches)
