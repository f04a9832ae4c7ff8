"""Blind mode: printed outcomes of the papers stay hidden while records are made.

The mode is an environment variable, which every child process inherits: ranks, launchers and further commands. While it
is set, the loader of claims (suite.claims.load) puts a `Hidden` in place of each printed outcome.

The mode hides outcomes from running code, but some inputs of simulations depend on outcomes already. conf/efficiency
holds constants that were fitted to outcomes, each with the ids of its claims. The plans.yaml of a paper holds plans
that were chosen by outcomes. Claims whose simulated value reads such a constant get the verdict `calibrated`,
`calibrated, missed` or `fed by calibration`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from suite.core.errors import HiddenOutcome

VARIABLE = "SUITE_BLIND"
MARK = "blind"  # provenance entry of a record that was made in this mode
OPEN, FILLED = "printed outcomes hidden", "printed outcomes added after the record was written"


def active() -> bool:
    """Whether printed outcomes are hidden in this process."""
    return bool(os.environ.get(VARIABLE))


def mark() -> dict[str, str]:
    """The provenance entry of a record for this mode."""
    return {MARK: OPEN} if active() else {}


@contextmanager
def hiding() -> Iterator[None]:
    """Hide printed outcomes inside the context, from this process and from child processes that it starts."""
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


class Hidden:
    """Placeholder for the printed value of a claim. Any use as a number, pair or text raises HiddenOutcome."""

    __slots__ = ("claim",)

    def __init__(self, claim: str) -> None:
        self.claim = claim

    def __repr__(self) -> str:
        return f"Hidden({self.claim!r})"

    def _refuse(self, *_: object) -> NoReturn:
        raise HiddenOutcome(self.claim)

    __str__ = __format__ = __bool__ = __hash__ = __eq__ = __ne__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __float__ = __int__ = __index__ = __complex__ = __round__ = __abs__ = __neg__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __len__ = __iter__ = __getitem__ = __contains__ = _refuse
