"""A covering choice holds every value, or every pair, and is small; what it leaves out keeps its place and a marker."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.support.pairwise import cells, chosen, pairwise


def pairs(rows: list[tuple[object, ...]]) -> set[tuple[tuple[int, str], ...]]:
    return {pair for row in rows for pair in combinations(enumerate(map(str, row)), 2)}


@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 6), (4, 2, 6), (5, 5, 5)], ids=str)
def test_every_value_is_in_as_few_rows_as_can_be(sizes: tuple[int, ...]) -> None:
    rows = list(product(*map(range, sizes)))
    chosen_rows = [rows[at] for at in chosen(rows)]
    assert len(chosen_rows) == max(sizes)
    assert all({row[axis] for row in chosen_rows} == set(range(size)) for axis, size in enumerate(sizes))


@pytest.mark.parametrize("sizes", [(2, 6), (4, 2, 6), (3, 3, 3, 3)], ids=str)
def test_every_pair_is_in_few_rows(sizes: tuple[int, ...]) -> None:
    rows = list(product(*map(range, sizes)))
    chosen_rows = [rows[at] for at in chosen(rows, 2)]
    assert pairs(chosen_rows) == pairs(rows)
    largest, next_to_it = sorted(sizes)[:-3:-1]
    assert largest * next_to_it <= len(chosen_rows) <= 1.7 * largest * next_to_it


def test_rows_that_are_no_product_keep_their_pairs() -> None:
    rows = [(a, b, (a + b) % 3) for a, b in product(range(3), range(4)) if a != b]
    assert pairs([rows[at] for at in chosen(rows, 2)]) == pairs(rows)
    assert chosen([]) == []


def test_values_need_no_hash() -> None:
    assert len(chosen([([1], {}), ([1], {"a": 2}), ([2], {"a": 2})])) == 2


def test_all_rows_stay_and_all_but_the_chosen_are_marked() -> None:
    cells_of = cells("ab", range(3), always=[("b", 2)])
    assert [row.values for row in cells_of] == list(product("ab", range(3)))
    run = [row.values for row in cells_of if not row.marks]
    assert {a for a, _ in run} == {"a", "b"}
    assert {b for _, b in run} == {0, 1, 2}
    assert ("b", 2) in run
    assert len(run) == 3
    assert {mark.name for row in cells_of for mark in row.marks} == {"exhaustive"}
    assert all(not row.marks for row in pairwise([("a",), ("b",)]))
