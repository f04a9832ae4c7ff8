"""Answers of the simulator on public cells: throughput, its range over unknown settings, and memory.

An error is simulated over measured throughput, minus 1. A cell that the simulator refuses counts as an error of 100 %.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from suite.core.errors import SuiteError
from suite.simulate.operations.products import Shares, share_of, with_share
from suite.simulate.operations.step import simulate_step
from suite.simulate.validation.adapter import plausible_setups, to_setup
from suite.simulate.validation.calibrate import pair_of
from suite.simulate.validation.cells import PublicCell

REFUSED = 1.0


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """Answer of the simulator on a cell.

    Attributes:
        tokens_per_second: Simulated tokens per second and device; None for a refused cell.
        memory: Simulated bytes of the fullest device.
        fits: Whether they fit the device.
        refusal: Reason of a refusal; empty for an answer.
    """

    cell: PublicCell
    tokens_per_second: float | None = None
    memory: float | None = None
    fits: bool | None = None
    refusal: str = ""

    @property
    def error(self) -> float:
        """Simulated over measured throughput, minus 1."""
        measured = self.cell.tokens_per_second
        if self.tokens_per_second is None or measured is None:
            return REFUSED
        return self.tokens_per_second / measured - 1


def answer(cell: PublicCell, fitted: Shares) -> CellAnswer:
    """Point answer on a cell: unknown settings take the defaults of their software generation.

    Args:
        fitted: Constant of large products, by family of devices and generation.
    """
    try:
        step = simulate_step(with_share(to_setup(cell), share_of(pair_of(cell), fitted)))
    except SuiteError as error:
        return CellAnswer(cell, refusal=str(error))
    return CellAnswer(cell, step.tokens_per_second, step.peak_memory, step.fits)


def answer_range(answer: CellAnswer, fitted: Shares) -> tuple[float, float] | None:
    """Least and largest simulated throughput of a cell over plausible values of the settings that its source does not
    tell, in tokens per second and device; the point answer is one of the values.

    One unknown setting at a time takes each of its plausible values (defaults.yaml), so the number of simulations grows
    with the sum of the values. A changed setup that the simulator refuses is left out. None for a cell that is refused,
    has no measured throughput, or has no unknown setting with another value that changes its setup.
    """
    cell, point = answer.cell, answer.tokens_per_second
    if point is None or cell.tokens_per_second is None:
        return None
    share, chosen, values = share_of(pair_of(cell), fitted), to_setup(cell), [point]
    for _, setup in plausible_setups(cell):
        if setup == chosen:  # without tensor parallelism, for example, sequence parallelism changes nothing
            continue
        with suppress(SuiteError):
            values.append(simulate_step(with_share(setup, share)).tokens_per_second)
    return (min(values), max(values)) if len(values) > 1 else None


def memory_error(answer: CellAnswer) -> float | None:
    """Simulated over measured bytes of the fullest device, minus 1; None where either is missing.

    Sources measure differently: allocated or reserved bytes, with or without the context of the driver. The simulator
    counts reserved bytes with the context. Raises UnknownName for a unit that is not in cells.UNITS.
    """
    measured = answer.cell.measured.peak_bytes
    if answer.cell.status != "ok" or answer.memory is None or not measured:
        return None
    return answer.memory / measured - 1
