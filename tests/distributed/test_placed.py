"""Several stages per rank and split backward passes over real messages: law 2, and random orders without a deadlock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import run_ranks

PROGRAM = Path(__file__).parent / "program_placed.py"
BURST = PROGRAM.with_name("program_burst.py")
# each entry: transport, cases to train, number of random orders
ON_TWO = ("mpi tied 300", "gloo untied 100", "ordered shared 50")
ON_FOUR = ("mpi shared 100", "gloo untied 30")
EVERY = [
    *((f"{transport} tied,shared,untied,dropout 1000", ranks) for transport in ("mpi", "gloo") for ranks in (2, 4)),
    ("ordered tied,shared,untied,dropout 200", 2),
    ("ordered tied,dropout 200", 4),  # each case takes a minute where four ranks share two cores
]


def assert_compared(out: str, lines: tuple[str, ...]) -> None:
    for line in lines:
        gradients, _, messages, _ = out.partition(f"{line}: ")[2].split(maxsplit=3)
        assert int(gradients) > 500, out
        assert int(messages) > 100, out


def test_gradients_and_random_orders_on_two_ranks() -> None:
    assert_compared(run_persistent(2, PROGRAM, *ON_TWO, deadline=240), ON_TWO)


def test_gradients_and_random_orders_on_four_ranks() -> None:
    assert_compared(run_persistent(4, PROGRAM, *ON_FOUR, deadline=300), ON_FOUR)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("line", "ranks"), EVERY)
def test_every_transport(line: str, ranks: int) -> None:
    assert_compared(run_ranks(ranks, PROGRAM, line, deadline=900), (line,))


def test_long_burst_around_a_loop_of_three_ranks() -> None:
    """A rank that receives 800 messages waits for no peer that itself waits for a third rank."""
    out = run_persistent(3, BURST, "gloo 800", "mpi 800", deadline=60)
    for transport in ("gloo", "mpi"):
        assert f"{transport} 800: {2 * 800} messages" in out
