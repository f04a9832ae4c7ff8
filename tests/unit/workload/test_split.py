"""Split of stages against every possible cut: by cost, evenly, and by PipeDream's rule.

An uneven split is the commonest reason for a slow pipeline, and a dynamic programme is easily almost right. The brute
force below shares nothing with the programmes but the cost of a stage and of a cut, written out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest, UnknownName
from suite.workload import Transformer, by_cost, evenly
from suite.workload.split import cut_seconds, divide, layer_seconds
from tests.support.refusals import refused


def cuts(layers: int, stages: int) -> Iterator[tuple[range, ...]]:
    for inner in combinations(range(1, layers), stages - 1):
        ends = (*inner, layers)
        yield tuple(range(a, b) for a, b in zip((0, *ends), ends, strict=False))


def best_of_all(costs: Sequence[int], stages: int) -> tuple[range, ...]:
    """Every split tried: the quickest slowest stage, then the least squares, then the longer early stages."""

    def merit(split: tuple[range, ...]) -> tuple[int, int, list[int]]:
        sums = [sum(costs[layer] for layer in stage) for stage in split]
        return max(sums), sum(each * each for each in sums), [-stage.stop for stage in split]

    return min(cuts(len(costs), stages), key=merit)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 8))
# in these the slowest stage is a late one, and the early stages are free to be more alike
@example([1, 8, 6, 2, 0, 8, 1, 8], 4)
@example([3, 3, 7, 1, 9, 2, 0], 4)
@example([2, 5, 2, 4, 6, 1, 9, 3], 6)
@example([3, 5, 2, 1, 1, 5, 8, 2, 7], 4)
def test_by_cost_finds_the_best_of_all_splits(costs: list[int], number: int) -> None:
    stages = 1 + number % len(costs)
    assert by_cost(costs, stages) == best_of_all(costs, stages)


@pytest.mark.parametrize(
    ("blocks", "stages", "lengths"),
    [
        # ends do not count as layers: 48 blocks, an embedding and a head on 6 stages are 8 blocks each
        (48, 6, [9, 8, 8, 8, 8, 9]),
        (10, 4, [4, 3, 2, 3]),
        (1, 1, [3]),
        # they count where blocks are too few
        (2, 3, [2, 1, 1]),
    ],
)
def test_evenly_gives_the_longer_stages_first(blocks: int, stages: int, lengths: list[int]) -> None:
    shape = Transformer(blocks, 8, 2, sequence=4, vocabulary=16)
    assert [len(stage) for stage in divide(shape, stages, "even")] == lengths
    assert [len(stage) for stage in evenly(10, 4)] == [3, 3, 2, 2]


def test_impossible_splits_are_refused() -> None:
    for stages in (0, -1, 4):
        with refused(InvalidRequest, "stages", str(stages), legal="stages=3"):
            by_cost([1.0, 2.0, 3.0], stages)
    with refused(InvalidRequest, subject="a layer cost of -2"):
        by_cost([1, -2], 1)
    with refused(InvalidRequest, subject="2000 layers on 64 stages", rule="here 256000000", legal="1250 layers"):
        evenly(2000, 64)


# -- PipeDream's rule --------------------------------------------------------------------------------------------------

numbers = st.lists(st.integers(0, 12).map(float), min_size=6, max_size=6)


@settings(deadline=None, max_examples=30)
@given(numbers, numbers, st.integers(1, 6), st.integers(0, 5))
def test_no_split_is_quicker_than_the_one_that_is_found(
    seconds: list[float], sent: list[float], layers: int, number: int
) -> None:
    def slowest(split: Sequence[range]) -> float:
        stages = [sum(seconds[layer] for layer in stage) for stage in split]
        return max(stages + [sent[stage.stop - 1] for stage in split[:-1]])

    stages = 1 + number % layers
    found = by_cost(seconds[:layers], stages, sent[:layers])
    assert slowest(found) == min(map(slowest, cuts(layers, stages)))


def test_splits_by_hand() -> None:
    # two equal halves would send 40 bytes both ways, 8 s; one layer more sends 2 in 0.4 s, and takes 6
    assert by_cost((4.0, 2.0, 2.0, 1.0), 2, (0.2, 4.0, 0.2, 0.2)) == (range(1), range(1, 4))
    # a block of 24 s h^2 + 4 s^2 h flops: three passes of products, and three of its saved and output bytes
    shape = Transformer(layers=2, hidden=8, heads=2, sequence=4, vocabulary=16)
    block = shape.shapes()[1]
    assert block.flops == 24 * 4 * 64 + 4 * 16 * 8
    assert layer_seconds(shape)[1] == pytest.approx(3 * (block.flops / 5e12 + 2 * (block.saved + block.output) / 5e11))
    assert cut_seconds(shape)[1] == 2 * block.output / 1e10


def test_unknown_rule_is_refused() -> None:
    with refused(UnknownName, "split", "pipdream"):
        divide(Transformer(2, 8, 2, 4, 16), 2, "pipdream")
