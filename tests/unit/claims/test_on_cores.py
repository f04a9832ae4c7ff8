"""Computations on all cores: order, errors, and the number of processes."""

from __future__ import annotations

import os

import pytest

from suite.claims import on_cores
from suite.claims.on_cores import map_on_cores


def square(number: int) -> tuple[int, int]:
    if number < 0:
        raise ArithmeticError(f"{number} is negative")
    return number * number, os.getpid()


@pytest.mark.parametrize(("count", "available", "here"), [(100, 3, False), (64, 3, True), (100, 1, True)])
def test_results_are_in_order_from_this_or_other_processes(
    monkeypatch: pytest.MonkeyPatch, count: int, available: int, here: bool
) -> None:
    monkeypatch.setattr(on_cores, "cores", lambda: available)
    results = map_on_cores(square, range(count))
    assert [value for value, _ in results] == [number * number for number in range(count)]
    processes = {process for _, process in results}
    assert (processes == {os.getpid()}) is here
    assert len(processes) <= available


def test_an_error_of_a_process_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cores, "cores", lambda: 2)
    with pytest.raises(ArithmeticError) as raised:
        map_on_cores(square, [*range(100), -7])
    assert str(raised.value) == "-7 is negative"
