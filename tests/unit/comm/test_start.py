"""Decides whether a process knows its rank from what each launcher tells it."""

from __future__ import annotations

import pytest

from suite.comm import Start, here, started
from suite.core.errors import Refused, UnknownName


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, Start("none", 0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Start("torchrun", 3, 4, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, Start("torchrun", 3, 4, 3)),
        (
            {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            Start("mpi", 5, 8, 1),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}, Start("mpi", 1, 2, 0)),
        # half a word is none: a rank without a size is a variable of somebody else's
        ({"RANK": "3"}, Start("none", 0, 1, 0)),
        # torchrun inside an MPI job starts ranks of its own
        (
            {"RANK": "0", "WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"},
            Start("torchrun", 0, 2, 0),
        ),
    ],
)
def test_started(told: dict[str, str], expected: Start) -> None:
    assert started(told) == expected


def test_transports_that_cannot_be_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="did you mean 'gloo'"):
        here(transport="glo")
    with pytest.raises(UnknownName, match="static"):
        here(order="statik")
    with pytest.raises(Refused, match="NCCL moves CUDA memory"):
        here(transport="nccl")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Refused, match="under torchrun"):
        here(transport="mpi")
