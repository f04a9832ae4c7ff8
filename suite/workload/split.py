"""Decides which consecutive layers make a stage: the split whose slowest stage is quickest.

One dynamic programme serves both questions: `evenly` counts blocks, `by_cost` adds costs. Among equal splits the one
whose stages differ least (sum of squares) is taken, then the one with the longer early stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.core.errors import Refused

Split = tuple[range, ...]


def by_cost(costs: Sequence[float], stages: int) -> Split:
    """Ranges of layer indices, one per stage, none empty, in order. Raises Refused for more stages than layers."""
    count = len(costs)
    if not 1 <= stages <= count:
        raise Refused(
            f"{stages} stages for {count} layers",
            rule="every stage holds at least one layer",
            legal=f"1 to {count} stages",
        )
    if any(cost < 0 for cost in costs):
        raise Refused(f"a layer cost of {min(costs)}", rule="costs are not negative", legal="0")
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    # best[n] = (slowest, sum of squares, cuts) for the first n layers on the stages seen so far
    best = {n: (total[n], total[n] ** 2, (n,)) for n in range(1, count + 1)}
    for used in range(2, stages + 1):
        step = {}
        for n in range(used, count + 1):
            options = []
            for cut in range(n - 1, used - 2, -1):
                slowest, squares, cuts = best[cut]
                own = total[n] - total[cut]
                options.append((max(slowest, own), squares + own * own, (*cuts, n)))
            step[n] = min(options, key=lambda option: (option[0], option[1], tuple(-cut for cut in option[2])))
        best = step
    cuts = best[count][2]
    return tuple(range(start, stop) for start, stop in zip((0, *cuts), cuts, strict=False))


def evenly(layers: int, stages: int, *, ends: bool = False) -> Split:
    """The same number of layers on each stage, the longer stages first.

    ends: the first and the last layer are an embedding and a head, and do not count as layers of their own (AxoNN
    and SAMO divide transformer blocks).
    """
    if ends and layers - 2 >= stages:
        costs = [0.0, *[1.0] * (layers - 2), 0.0]
    else:
        costs = [1.0] * layers
    return by_cost(costs, stages)
