"""Outcome and reason of a run that an error ended."""

from __future__ import annotations

from suite.core.errors import Diverged, DoesNotFit, HiddenOutcome, InvalidRequest, MissingDependency, SuiteError
from suite.core.reasons import format_traceback
from suite.core.record import Outcome

_OUTCOMES: tuple[tuple[type[BaseException], Outcome], ...] = (  # the first that fits
    (DoesNotFit, Outcome.OOM),
    (InvalidRequest, Outcome.UNSUPPORTED),
    (HiddenOutcome, Outcome.UNSUPPORTED),
    (Diverged, Outcome.DIVERGED),
    (MissingDependency, Outcome.MISSING_DEPENDENCY),
    (ModuleNotFoundError, Outcome.MISSING_DEPENDENCY),
    (MemoryError, Outcome.OOM),
)
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "Cannot allocate memory")


def ending_of(error: BaseException) -> tuple[Outcome, str]:
    """Outcome and reason of a run that `error` kept from running, or ended, in this process or on a rank."""
    outcome = next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), Outcome.FAILED)
    if outcome is Outcome.FAILED and any(text in str(error) for text in _OUT_OF_MEMORY):
        outcome = Outcome.OOM
    return outcome, str(error) if isinstance(error, SuiteError) else format_traceback(error)
