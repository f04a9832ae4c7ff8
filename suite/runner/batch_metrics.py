"""Metrics of a batch: seconds of pipeline passes and update (AxoNN's Figures 5, 6 and 8), bytes of model states (SAMO's
Figure 2).

Ranks begin their updates one after the other, and those that were first wait for the others. The update time is
therefore measured on the rank that starts its update last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from suite.core.grid import Grid
from suite.core.record import Metric
from suite.core.trace import EXCHANGE, INSIDE, REDUCE, STEP, TIE, Span, breakdown

Update = tuple[float, float]  # when it began, on the clock that ranks of a host share, and how long it took
_UPDATE = (REDUCE, TIE, STEP)
STATES = ("weights", "masters", "gradients", "moments", "indices")  # the kinds of memory that are model states


def update(trace: Iterable[Span]) -> Update | None:
    """The update of one batch on one rank; None where no span tells of it."""
    spans = [span for span in trace if span.category in _UPDATE]
    if not spans:
        return None
    begin = min(span.start for span in spans)
    return begin, max(span.end for span in spans) - begin


def parts(trace: Iterable[Span]) -> dict[str, float]:
    """Seconds of one batch on one rank that went into parts of passes and steps, by category."""
    seconds_by_part: dict[str, float] = {}
    for span in trace:
        if span.category in INSIDE:
            seconds_by_part[span.category] = seconds_by_part.get(span.category, 0.0) + span.seconds
    return seconds_by_part


def held(memory: Mapping[str, Sequence[int]], host: Mapping[str, int]) -> dict[str, Metric]:
    """Bytes of the rank that holds most, from its bytes by kind at the peak: the total, the permanent model states,
    and the states in host memory, where there are any.
    """
    states = [memory[kind] for kind in STATES if kind in memory]
    metrics = {
        "peak_memory": Metric("B", "lower", (float(max(map(sum, zip(*memory.values(), strict=True)))),)),
        "model_states": Metric("B", "lower", (float(max(map(sum, zip(*states, strict=True)), default=0)),)),
    }
    away = {"host_states": Metric("B", "lower", (float(sum(host.values())),))} if any(host.values()) else {}
    return metrics | away


def scored(series: Mapping[str, Sequence[float]]) -> dict[str, Metric]:
    """The last and the best value of each validation score. The best one is informative where the end of training is
    free.
    """
    metrics: dict[str, Metric] = {}
    for name, values in series.items():
        unit = "BLEU" if name == "bleu" else "percent"
        metrics[name] = Metric(unit, "higher", (values[-1],))
        metrics[f"best_{name}"] = Metric(unit, "higher", (max(values),), f"the best of {len(values)} validations")
    return metrics


def inner(batches: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, Metric]:
    """Of what every rank spent on parts of a batch the most, per batch: compress_time, expand_time."""
    names = sorted({name for ranks in batches for rank in ranks for name in rank})
    return {
        f"{name}_time": Metric("s", "lower", tuple(max(rank.get(name, 0.0) for rank in ranks) for ranks in batches))
        for name in names
    }


def told_apart(turns: Sequence[Sequence[Span]], grid: Grid) -> dict[str, Metric]:
    """Seconds of a batch by category (core.trace.breakdown), mean over the ranks: time_forward, time_bubble, ... They
    sum to the batch's makespan, as SAMO's Figure 8 has them. `turns`: the spans of each turn's last batch; what a turn
    has no spans of took nothing. Of a system that keeps no spans there is nothing to tell."""
    parts_by_turn = [breakdown(spans, grid) for spans in turns if spans]
    names = sorted({name for one in parts_by_turn for name in one})
    return {f"time_{name}": Metric("s", "lower", tuple(one.get(name, 0.0) for one in parts_by_turn)) for name in names}


def exchanged(turns: Sequence[Sequence[Span]]) -> dict[str, Metric]:
    """Bytes of rows that all ranks handed to others in each turn's last epoch, where they exchange any."""
    bytes_by_turn = [sum(span.bytes for span in spans if span.category == EXCHANGE) for spans in turns]
    exchanges = any(span.category == EXCHANGE for spans in turns for span in spans)
    return {"exchanged_bytes": Metric("B", "lower", tuple(map(float, bytes_by_turn)))} if exchanges else {}


def metrics(batches: Sequence[tuple[float, Sequence[Update | None]]]) -> dict[str, Metric]:
    """Seconds of pipeline and update per batch, from its seconds and every rank's update; nothing where one is not
    known. Batches of a system that keeps no spans are left out."""
    pipelines, updates = [], []
    for seconds, ranks in batches:
        present = [rank for rank in ranks if rank is not None]
        if len(present) == len(ranks):
            _, took = max(present)
            updates.append(took)
            pipelines.append(seconds - took)
    if not updates:
        return {}
    return {
        "pipeline_time": Metric("s", "lower", tuple(pipelines)),
        "update_time": Metric("s", "lower", tuple(updates)),
    }
