"""How random inputs ended, and the report on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Ending(NamedTuple):
    """One outcome of one input. A fault has a text, and its outcome says of which kind it is."""

    outcome: str
    words: Sequence[str]
    fault: str = ""


def report(endings: Sequence[Ending]) -> str:
    """How often each outcome occurred, and of every kind of fault the shortest input."""
    lines = [f"{count:7}  {name}" for name, count in Counter(ending.outcome for ending in endings).most_common()]
    faults = [ending for ending in endings if ending.fault]
    for kind, count in Counter(ending.outcome for ending in faults).most_common():
        shortest = min((fault for fault in faults if fault.outcome == kind), key=lambda fault: len(fault.words))
        lines += [f"\nFAULT ({count} times) {kind}", f"  {' '.join(shortest.words)}"]
        lines += [f"  | {line}" for line in shortest.fault[-2500:].splitlines()[-15:]]
    return "\n".join(lines)
