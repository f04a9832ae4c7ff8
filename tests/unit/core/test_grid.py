"""Grid: each rank has one place, and each place one rank.

Two ranks that disagree about who stands where exchange the wrong tensors and may still converge.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from suite.core.grid import Grid
from suite.core.op import Place

sizes = st.integers(1, 5)
grids = st.builds(Grid, data=sizes, inter=sizes, tensor=st.integers(1, 3))


def test_neighbouring_stages_have_neighbouring_ranks() -> None:
    """AxoNN Figure 2 as rows: a replica's pipeline is consecutive ranks."""
    grid = Grid(data=2, inter=3)
    assert [grid.place(rank) for rank in range(6)] == [
        Place(0, 3, 0, 2),
        Place(1, 3, 0, 2),
        Place(2, 3, 0, 2),
        Place(0, 3, 1, 2),
        Place(1, 3, 1, 2),
        Place(2, 3, 1, 2),
    ]
    assert grid.data_parallel_group(4) == (1, 4)


def test_tensor_ranks_are_fastest() -> None:
    grid = Grid(data=2, inter=2, tensor=2)
    assert grid.size == 8
    assert [grid.place(rank).stage for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert grid.rank(data=1, inter=0, tensor=1) == 5
    assert grid.pipeline(5) == grid.pipeline(7) == (5, 7)
    assert grid.data_parallel_group(5) == (1, 5)


@given(grids)
def test_ranks_and_places_are_a_bijection(grid: Grid) -> None:
    seen = []
    for rank in range(grid.size):
        place = grid.place(rank)
        assert (place.stages, place.replicas) == (grid.inter, grid.data)
        assert grid.rank(data=place.replica, inter=place.stage, tensor=rank % grid.tensor) == rank
        seen.append((place.replica, place.stage, rank % grid.tensor))
    assert len(set(seen)) == grid.size == grid.data * grid.inter * grid.tensor


@given(grids, st.data())
def test_pipelines_and_columns(grid: Grid, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, grid.size - 1))
    place, tensor = grid.place(rank), rank % grid.tensor
    pipeline = grid.pipeline(rank)
    assert pipeline[place.rank] == rank
    assert [grid.place(r) for r in pipeline] == [
        Place(number, grid.inter, place.replica, grid.data) for number in range(grid.inter)
    ]
    assert {r % grid.tensor for r in pipeline} == {tensor}
    column = grid.data_parallel_group(rank)
    assert rank in column
    assert [grid.place(r).replica for r in column] == list(range(grid.data))
    assert {(grid.place(r).stage, r % grid.tensor) for r in column} == {(place.stage, tensor)}


def test_a_grid_prints_as_the_papers_write_it() -> None:
    assert str(Grid(data=6, inter=2)) == "2x6"
    assert str(Grid(data=6, inter=2, tensor=3)) == "2x6x3"
