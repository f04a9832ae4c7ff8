"""Split of stages against every possible cut.

An uneven split is the commonest reason for a slow pipeline, and a dynamic programme is easily almost right.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest
from suite.workload import Transformer, by_cost, evenly
from suite.workload.split import divide
from tests.support.refusals import refused


def best_of_all(costs: list[int], stages: int) -> tuple[range, ...]:
    """Every split tried: the quickest slowest stage, then the least squares, then the longer early stages."""

    def merit(ends: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        sums = [sum(costs[start:stop]) for start, stop in zip((0, *ends), ends, strict=False)]
        return max(sums), sum(each * each for each in sums), tuple(-end for end in ends)

    options = [(*cuts, len(costs)) for cuts in combinations(range(1, len(costs)), stages - 1)]
    ends = min(options, key=merit)
    return tuple(range(start, stop) for start, stop in zip((0, *ends), ends, strict=False))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_by_cost_finds_the_best_of_all_splits(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    assert by_cost(costs, stages) == best_of_all(costs, stages)


@pytest.mark.parametrize(
    ("costs", "stages"),
    [
        ([1, 8, 6, 2, 0, 8, 1, 8], 5),
        ([3, 3, 7, 1, 9, 2, 0], 5),
        ([2, 5, 2, 4, 6, 1, 9, 3], 7),
        ([3, 5, 2, 1, 1, 5, 8, 2, 7], 5),
    ],
)
def test_best_prefix_of_a_split_may_not_be_optimal(costs: list[int], stages: int) -> None:
    """In these the slowest stage is a late one, and the early stages are free to be more alike."""
    assert by_cost(costs, stages) == best_of_all(costs, stages)


def lengths(split: tuple[range, ...]) -> list[int]:
    return [len(stage) for stage in split]


def test_a_costly_layer_stands_alone() -> None:
    assert by_cost([1.0, 1.0, 1.0, 5.0, 1.0], 3) == (range(3), range(3, 4), range(4, 5))


def test_evenly_gives_the_longer_stages_first() -> None:
    assert lengths(evenly(10, 4)) == [3, 3, 2, 2]
    assert lengths(evenly(12, 4)) == [3, 3, 3, 3]
    assert evenly(3, 1) == (range(3),)
    assert lengths(evenly(5, 5)) == [1] * 5


def test_ends_do_not_count_as_layers() -> None:
    """48 blocks, an embedding and a head on 6 stages: 8 blocks each."""
    assert lengths(evenly(50, 6, ends=True)) == [9, 8, 8, 8, 8, 9]
    assert lengths(evenly(12, 4, ends=True)) == [4, 3, 2, 3]
    assert evenly(4, 2, ends=True) == (range(2), range(2, 4))
    assert evenly(3, 1, ends=True) == (range(3),)


def test_ends_count_where_blocks_are_too_few() -> None:
    assert lengths(evenly(4, 3, ends=True)) == [2, 1, 1]
    assert lengths(evenly(4, 4, ends=True)) == [1, 1, 1, 1]


@given(st.integers(1, 24), st.integers(1, 8), st.booleans())
def test_evenly_covers_every_layer_once(layers: int, stages: int, ends: bool) -> None:
    if stages > layers:
        with refused(InvalidRequest, "stages", str(stages), legal=f"stages={layers}"):
            evenly(layers, stages, ends=ends)
        return
    split = evenly(layers, stages, ends=ends)
    assert [layer for stage in split for layer in stage] == list(range(layers))
    assert min(lengths(split)) >= 1
    if not ends:
        assert max(lengths(split)) - min(lengths(split)) <= 1
        assert lengths(split) == sorted(lengths(split), reverse=True)


@pytest.mark.parametrize("stages", [0, -1, 4])
def test_stages_without_layers_are_refused_with_legal_numbers(stages: int) -> None:
    with refused(InvalidRequest, "stages", str(stages), subject="for 3 layers", legal="stages=3"):
        by_cost([1.0, 2.0, 3.0], stages)


def test_negative_costs_are_refused() -> None:
    with refused(InvalidRequest, subject="a layer cost of -2", rule="costs are not negative"):
        by_cost([1, -2], 1)


def test_more_layers_and_stages_than_a_split_looks_at() -> None:
    with refused(InvalidRequest, subject="2000 layers on 64 stages", rule="here 256000000", legal="1250 layers"):
        evenly(2000, 64)
    deep = Transformer(layers=2000, hidden=8, heads=2, sequence=4, vocabulary=16)
    with refused(
        InvalidRequest,
        subject="2002 layers on 64 stages",
        rule="layers^2 * stages, here 256512256, is at most 100000000",
    ):
        divide(deep, 64, "pipedream")
