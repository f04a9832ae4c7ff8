"""Metrics of a batch: seconds of pipeline and update (AxoNN Figs. 5, 6, 8), bytes of model states (SAMO Fig. 2).

Ranks begin their updates at different times, and early ranks wait for late ones. The update time is therefore measured
on the rank that begins its update last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from suite.core.grid import Grid
from suite.core.record import Metric
from suite.core.trace import EXCHANGE, INSIDE, REDUCE, STEP, TIE, Span, breakdown

Update = tuple[float, float]  # begin on the clock that ranks of a host share, and duration, in seconds
_UPDATE_CATEGORIES = (REDUCE, TIE, STEP)
STATES = ("weights", "masters", "gradients", "moments", "indices")  # kinds of memory that are model states


def update_interval(trace: Iterable[Span]) -> Update | None:
    """Begin and duration of the update of one batch on one rank; None without a span of it."""
    spans = [span for span in trace if span.category in _UPDATE_CATEGORIES]
    if not spans:
        return None
    begin = min(span.start for span in spans)
    return begin, max(span.end for span in spans) - begin


def inner_seconds(trace: Iterable[Span]) -> dict[str, float]:
    """Seconds of one batch on one rank by category of spans that lie inside passes and steps."""
    seconds: dict[str, float] = {}
    for span in trace:
        if span.category in INSIDE:
            seconds[span.category] = seconds.get(span.category, 0.0) + span.seconds
    return seconds


def memory_metrics(memory: Mapping[str, Sequence[int]], host: Mapping[str, int]) -> dict[str, Metric]:
    """Bytes of the fullest rank: peak, model states, and states in host memory if there are any; of all ranks: peaks.

    Args:
        memory: Bytes of each rank at its peak, by kind.
        host: Bytes in host memory on the fullest rank, by kind.
    """
    states = [memory[kind] for kind in STATES if kind in memory]
    peaks = list(map(sum, zip(*memory.values(), strict=True)))
    metrics = {"peak_memory": max(peaks), "model_states": max(map(sum, zip(*states, strict=True)), default=0)}
    if len(peaks) > 1:
        metrics["total_memory"] = sum(peaks)
    if any(host.values()):
        metrics["host_states"] = sum(host.values())
    return _bytes(metrics)


def _bytes(sizes: Mapping[str, int]) -> dict[str, Metric]:
    return {name: Metric("B", "lower", (float(size),)) for name, size in sizes.items()}


def allocator_metrics(ranks: Sequence[Mapping[str, int]]) -> dict[str, Metric]:
    """Peak bytes of the fullest GPU by its allocator: allocated_memory and reserved_memory; none on a CPU."""
    kinds = ranks[0] if ranks else {}
    return _bytes({f"{kind}_memory": max(peaks[kind] for peaks in ranks) for kind in kinds})


def score_metrics(series: Mapping[str, Sequence[float]]) -> dict[str, Metric]:
    """The last and the best value of each validation score. The best one assumes that training may stop at any time."""
    metrics: dict[str, Metric] = {}
    for name, values in series.items():
        unit = "BLEU" if name == "bleu" else "percent"
        metrics[name] = Metric(unit, "higher", (values[-1],))
        metrics[f"best_{name}"] = Metric(unit, "higher", (max(values),), f"the best of {len(values)} validations")
    return metrics


def inner_time_metrics(batches: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, Metric]:
    """Seconds of inner spans per batch, each on its slowest rank: compress_time, expand_time."""
    names = sorted({name for ranks in batches for rank in ranks for name in rank})
    return {
        f"{name}_time": Metric("s", "lower", tuple(max(rank.get(name, 0.0) for rank in ranks) for ranks in batches))
        for name in names
    }


def breakdown_metrics(rounds: Sequence[Sequence[Span]], grid: Grid) -> dict[str, Metric]:
    """Seconds of a batch by category, mean over the ranks: time_forward, time_bubble, and so on (SAMO Fig. 8).

    They sum to the makespan of the batch (`suite.core.trace.breakdown`). A system without spans has no such metrics.

    Args:
        rounds: Spans of the last batch of each round. A category without spans in a round took 0 s.
        grid: Grid of the ranks.
    """
    breakdowns = [breakdown(spans, grid) for spans in rounds if spans]
    names = sorted({name for seconds in breakdowns for name in seconds})
    return {
        f"time_{name}": Metric("s", "lower", tuple(seconds.get(name, 0.0) for seconds in breakdowns)) for name in names
    }


def exchange_metrics(rounds: Sequence[Sequence[Span]]) -> dict[str, Metric]:
    """Bytes of feature rows that all ranks sent in the last epoch of each round, if the system exchanges any."""
    sizes = [sum(span.bytes for span in spans if span.category == EXCHANGE) for spans in rounds]
    exchanges = any(span.category == EXCHANGE for spans in rounds for span in spans)
    return {"exchanged_bytes": Metric("B", "lower", tuple(map(float, sizes)))} if exchanges else {}


def phase_metrics(batches: Sequence[tuple[float, Sequence[Update | None]]]) -> dict[str, Metric]:
    """Seconds of pipeline and update per batch.

    Args:
        batches: Seconds of each batch, and the update of each rank. Batches without spans on a rank are left out.
    """
    complete = [(seconds, max(each for each in ranks if each)[1]) for seconds, ranks in batches if all(ranks)]
    if not complete:
        return {}
    return {
        "pipeline_time": Metric("s", "lower", tuple(seconds - update for seconds, update in complete)),
        "update_time": Metric("s", "lower", tuple(update for _, update in complete)),
    }
