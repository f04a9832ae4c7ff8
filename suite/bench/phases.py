"""Decides how a batch's time is told apart: the pipeline's passes, then the update (AxoNN's Figures 5, 6 and 8).

Ranks begin their updates one after the other, and those that were first wait for the others. What an update takes is
therefore what it takes on the rank that comes to it last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from suite.core.record import Metric
from suite.core.trace import REDUCE, STEP, TIE, Span

Update = tuple[float, float]  # when it began, on the clock that ranks of a host share, and how long it took
_UPDATE = (REDUCE, TIE, STEP)


def update(trace: Iterable[Span]) -> Update | None:
    """The update of one batch on one rank; None where no span tells of it."""
    own = [span for span in trace if span.category in _UPDATE]
    if not own:
        return None
    begin = min(span.start for span in own)
    return begin, max(span.end for span in own) - begin


def metrics(batches: Sequence[tuple[float, Sequence[Update | None]]]) -> dict[str, Metric]:
    """Seconds of pipeline and update per batch, from its seconds and every rank's update; nothing where one is not
    known. Batches of a system that keeps no spans are left out."""
    pipelines, updates = [], []
    for seconds, ranks in batches:
        known = [rank for rank in ranks if rank is not None]
        if len(known) == len(ranks):
            _, took = max(known)
            updates.append(took)
            pipelines.append(seconds - took)
    if not updates:
        return {}
    return {
        "pipeline_time": Metric("s", "lower", tuple(pipelines)),
        "update_time": Metric("s", "lower", tuple(updates)),
    }
