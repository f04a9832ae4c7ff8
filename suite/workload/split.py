"""Split of layers into stages that minimizes the time of the slowest stage.

One dynamic program serves two rules: `evenly` counts blocks, and `by_cost` adds costs. Ties are broken by the smallest
sum of squared stage times, then by the longest early stages. suite.workload.pipedream_split also counts messages.
`divide` is the entry point of all rules; `divide_ranks` balances ranks that hold several stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product

from suite.core.errors import InvalidRequest, UnknownName
from suite.workload.pipedream_split import Profile, Rates, equal
from suite.workload.transformer import Network

Split = tuple[range, ...]
LOOKED = 100_000_000  # most sums of layers in a search for a split: ten seconds


def _check_size(count: int, stages: int) -> None:
    """Raise InvalidRequest for a split whose search would take more than about ten seconds."""
    if count * count * stages > LOOKED:
        raise InvalidRequest(
            f"{count} layers on {stages} stages",
            rule=f"layers^2 * stages, here {count * count * stages}, is at most {LOOKED}: ten seconds of search",
            legal=f"{int((LOOKED / stages) ** 0.5)} layers",
        )


def by_cost(costs: Sequence[float], stages: int) -> Split:
    """Ranges of layer indices, one per stage, in order; no stage is empty.

    Raises InvalidRequest for more stages than layers.
    """
    count = len(costs)
    if not 1 <= stages <= count:
        raise InvalidRequest(
            f"stages={stages} for {count} layers",
            rule="every stage holds at least one layer",
            legal=f"stages={count}",
        )
    _check_size(count, stages)
    if any(cost < 0 for cost in costs):
        raise InvalidRequest(f"a layer cost of {min(costs)}", rule="costs are not negative", legal="0")
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    # The bound on the slowest stage is computed first, and then the tie-break. One pass cannot do both: if a later
    # stage is the slowest, the best split of all layers need not divide the first layers in the best way.
    slowest = dict(enumerate(total))
    for used in range(2, stages + 1):
        slowest = {
            n: min(max(slowest[cut], total[n] - total[cut]) for cut in range(used - 1, n))
            for n in range(used, count + 1)
        }
    bound = slowest[count]
    # best[n] = (sum of squares, minus each cut) for the first n layers on the stages seen so far, none above the bound
    best: dict[int, tuple[float, tuple[int, ...]]]
    best = {n: (total[n] ** 2, (-n,)) for n in range(1, count + 1) if total[n] <= bound}
    for _ in range(1, stages):
        step: dict[int, tuple[float, tuple[int, ...]]] = {}
        for cut, (squares, cuts) in best.items():
            for n in range(cut + 1, count + 1):
                stage_cost = total[n] - total[cut]
                if stage_cost > bound:
                    break
                option = (squares + stage_cost * stage_cost, (*cuts, -n))
                step[n] = min(step.get(n, option), option)
        best = step
    ends = [-cut for cut in best[count][1]]
    return tuple(range(start, stop) for start, stop in zip((0, *ends), ends, strict=False))


def evenly(layers: int, stages: int, *, ends: bool = False) -> Split:
    """Divide layers evenly over stages, the longer stages first.

    Args:
        ends: Whether the first and the last layer are an embedding and a head. They are not counted, because AxoNN and
            SAMO divide transformer blocks only.
    """
    if ends and layers - 2 >= stages:
        costs = [0.0, *[1.0] * (layers - 2), 0.0]
    else:
        costs = [1.0] * layers
    return by_cost(costs, stages)


def blocks(shape: Network, split: Split) -> tuple[int, ...]:
    """Blocks on each stage: the layers that activation checkpoints count, without the embedding and head of a GPT."""
    shapes = shape.shapes()
    return tuple(sum(shapes[layer].checkpointed for layer in layers) for layers in split)


def divide(shape: Network, stages: int, by: str, rates: Rates | None = None) -> Split:
    """Divide the layers of a network over `stages` stages.

    Args:
        by: "even" gives each stage the same number of layers; the embedding and the head of a GPT do not count if
            there is a block for every stage. "cost" balances flops. "pipedream" applies PipeDream's rule to a profile
            that follows from the shape and `rates`. FILE.json applies it to a profile from `suite profile-split`.

    Raises InvalidRequest for more stages than layers, and for a profile of another network.
    """
    if by.endswith(".json"):
        profile, layers = Profile.read(by), len(shape.shapes())
        if profile.layers != layers:
            raise InvalidRequest(
                f"split={by} of {profile.layers} layers for a network of {layers}",
                rule="the profile has the same number of layers as the network",
                legal="split=pipedream",
            )
        return equal(profile, stages).split
    return _divide(shape, stages, by, rates)


def divide_ranks(shape: Network, homes: Sequence[int], by: str, rates: Rates | None = None) -> Split:
    """Divide the layers of a network over stages so that the slowest rank is as fast as possible.

    With one stage per rank the result is that of `divide`. In a V, rank 0 holds embedding, head and loss, so its other
    layers are fewer. Starting from the stages of `divide`, one layer moves from a stage to another, and the stages
    between them shift by one layer, while the largest cost of a rank, or else the sum of squared costs, falls. The
    result is a local optimum.

    Args:
        homes: Rank of each stage.
        by: As for `divide`. A profile and "pipedream" give the costs of layers; messages are not counted.
    """
    homes = tuple(homes)
    if len(set(homes)) == len(homes):
        return divide(shape, len(homes), by, rates)
    return _balance(_costs(shape, by, rates), homes, divide(shape, len(homes), by, rates))


def _costs(shape: Network, by: str, rates: Rates | None) -> tuple[float, ...]:
    """Cost of each layer under a rule of `divide`."""
    shapes = shape.shapes()
    if by == "even":
        ends = not (shapes[0].checkpointed or shapes[-1].checkpointed)
        return (0.0, *[1.0] * (len(shapes) - 2), 0.0) if ends else (1.0,) * len(shapes)
    if by == "cost":
        return tuple(float(layer.flops) for layer in shapes)
    profile = Profile.read(by) if by.endswith(".json") else Profile.of(shape, rates)
    return tuple(profile.seconds)


@cache
def _balance(costs: tuple[float, ...], homes: tuple[int, ...], split: Split) -> Split:
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    ends = [layers.stop for layers in split]

    def loads(ends: Sequence[int]) -> tuple[float, float]:
        ranks = [0.0] * (max(homes) + 1)
        for rank, start, stop in zip(homes, (0, *ends), ends, strict=False):
            ranks[rank] += total[stop] - total[start]
        return max(ranks), sum(load * load for load in ranks)

    best, improved = loads(ends), True
    while improved:
        improved = False
        for first, last, step in product(range(len(ends) - 1), range(len(ends) - 1), (-1, 1)):
            moved = [end + step * (first <= boundary <= last) for boundary, end in enumerate(ends)]
            if all(start < stop for start, stop in pairwise((0, *moved))) and (found := loads(moved)) < best:
                ends, best, improved = moved, found, True
    return tuple(range(start, stop) for start, stop in zip((0, *ends), ends, strict=False))


@cache
def _divide(shape: Network, stages: int, by: str, rates: Rates | None) -> Split:
    shapes = shape.shapes()
    if by == "even":
        return evenly(len(shapes), stages, ends=not (shapes[0].checkpointed or shapes[-1].checkpointed))
    if by == "cost":
        return by_cost([layer.flops for layer in shapes], stages)
    if by == "pipedream":
        _check_size(len(shapes), stages)
        return equal(Profile.of(shape, rates), stages).split
    raise UnknownName("split", by, ("even", "cost", "pipedream", "a profile that ends in .json"))
