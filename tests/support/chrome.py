"""Checker of the Chrome trace-event format: the fields of each event, and nesting of the slices on each track."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

FIELDS = {  # required and optional fields of each phase
    "X": ({"name", "cat", "ph", "ts", "dur", "pid", "tid"}, {"args"}),
    "M": ({"name", "ph", "pid", "args"}, {"tid"}),
    "s": ({"name", "cat", "ph", "id", "ts", "pid", "tid"}, set()),
    "f": ({"name", "cat", "ph", "id", "ts", "pid", "tid"}, {"bp"}),
}
NAMES = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def faults(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Events that a viewer would misread: a missing field, two slices of a track that overlap without nesting, or an
    arrow that starts or ends outside every slice.
    """
    problems: list[str] = []
    tracks: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    named_tracks: set[tuple[int, int]] = set()
    arrows: dict[int, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for event in events:
        needed, allowed = FIELDS[event["ph"]]
        if not needed <= event.keys() <= needed | allowed:
            problems.append(f"fields {sorted(event)} of {event['ph']}")
        if event["pid"] < 1 or event.get("tid", 1) < 1:
            problems.append(f"pid or tid below 1, which viewers take for the idle process: {event}")
        if event["ph"] == "M":
            if event["name"] not in NAMES:
                problems.append(f"metadata {event['name']}")
            if event["name"] == "thread_name":
                named_tracks.add((event["pid"], event["tid"]))
        elif event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
        else:
            arrows[event["id"]][event["ph"]] = event
    problems += [f"a track without a name: {track}" for track in tracks.keys() - named_tracks]
    for track, slices in tracks.items():
        problems += [f"{track}: {fault}" for fault in overlaps(slices)]
    for arrow in arrows.values():
        if arrow.keys() != {"s", "f"} or any(arrow["s"][key] != arrow["f"][key] for key in ("name", "cat")):
            problems.append(f"half an arrow: {arrow}")
        for event in arrow.values():
            if not any(_covers(one, event["ts"]) for one in tracks[event["pid"], event["tid"]]):
                problems.append(f"an arrow outside every slice: {event}")
    return problems


def overlaps(slices: Iterable[Mapping[str, Any]]) -> list[str]:
    """Pairs of slices of one track that overlap without nesting, in whole nanoseconds as viewers store them."""
    problems: list[str] = []
    open_: list[tuple[int, str]] = []
    for one in sorted(slices, key=lambda one: (int(one["ts"] * 1000), -int(one["dur"] * 1000))):
        start = int(one["ts"] * 1000)
        end = start + int(one["dur"] * 1000)
        while open_ and open_[-1][0] <= start:
            open_.pop()
        if open_ and end > open_[-1][0]:
            problems.append(f"{one['name']} outlasts {open_[-1][1]} by {end - open_[-1][0]} ns")
        open_.append((end, one["name"]))
    return problems


def _covers(one: Mapping[str, Any], at: float) -> bool:
    return bool(one["ts"] <= at <= one["ts"] + one["dur"])
