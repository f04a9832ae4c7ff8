"""Split of layers into stages that minimizes the time of the slowest stage.

One dynamic program serves three rules: `evenly` counts blocks, `by_cost` adds costs, and PipeDream's rule also counts
messages. Ties are broken by the smallest sum of squared stage times, then by the longest early stages.
`divide` is the entry point of all rules; `divide_ranks` balances ranks that hold several stages.

PipeOptim runs every system on PipeDream's split (V-A; Narayanan et al. 2019, Section 3.1). The rule minimizes the time
of the slowest stage or cut:

    stage             seconds of its layers
    cut after a layer 2 bytes of its output / bandwidth: an activation and its gradient

Messages are assumed to overlap with the passes. PipeDream's plans also choose a number of replicas for each stage; here
every stage has as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product

from suite.core.errors import InvalidRequest, UnknownName
from suite.workload.transformer import Network

Split = tuple[range, ...]
# PipeDream's profile: round numbers of one GPU in a PCIe slot, of which only the ratios decide a split
FLOPS, MEMORY, LINK = 5.0e12, 500.0e9, 10.0e9  # flop/s of products; bytes/s of other kernels, and between stages
PASSES = 3  # a backward pass is two forward passes
LOOKED = 100_000_000  # most sums of layers in a search for a split: ten seconds


def by_cost(costs: Sequence[float], stages: int, cuts: Sequence[float] = ()) -> Split:
    """Ranges of layer indices, one per stage, in order; no stage is empty.

    Args:
        costs: Cost of each layer.
        cuts: Cost of a cut after each layer, which bounds the split like that of a stage; without, cuts are free.

    Raises InvalidRequest for more stages than layers.
    """
    count = len(costs)
    cut_costs = (0.0, *(cuts or [0.0] * count))  # before each layer
    if not 1 <= stages <= count:
        raise InvalidRequest(
            f"stages={stages} for {count} layers",
            rule="every stage holds at least one layer",
            legal=f"stages={count}",
        )
    if count * count * stages > LOOKED:
        raise InvalidRequest(
            f"{count} layers on {stages} stages",
            rule=f"layers^2 * stages, here {count * count * stages}, is at most {LOOKED}: ten seconds of search",
            legal=f"{int((LOOKED / stages) ** 0.5)} layers",
        )
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
            n: min(max(slowest[cut], cut_costs[cut], total[n] - total[cut]) for cut in range(used - 1, n))
            for n in range(used, count + 1)
        }
    bound = slowest[count]
    # best[n] = (sum of squares, minus each end) for the first n layers on the stages seen so far, none above the bound
    best: dict[int, tuple[float, tuple[int, ...]]]
    best = {n: (total[n] ** 2, (-n,)) for n in range(1, count + 1) if total[n] <= bound}
    for _ in range(1, stages):
        step: dict[int, tuple[float, tuple[int, ...]]] = {}
        for cut, (squares, ends) in best.items():
            if cut_costs[cut] > bound:
                continue
            for n in range(cut + 1, count + 1):
                stage_cost = total[n] - total[cut]
                if stage_cost > bound:
                    break
                option = (squares + stage_cost * stage_cost, (*ends, -n))
                step[n] = min(step.get(n, option), option)
        best = step
    stops = [-end for end in best[count][1]]
    return tuple(range(start, stop) for start, stop in zip((0, *stops), stops, strict=False))


def evenly(layers: int, stages: int) -> Split:
    """Divide layers evenly over stages, the longer stages first."""
    return by_cost([1.0] * layers, stages)


def blocks(shape: Network, split: Split) -> tuple[int, ...]:
    """Blocks on each stage: the layers that activation checkpoints count, without the embedding and head of a GPT."""
    shapes = shape.shapes()
    return tuple(sum(shapes[layer].checkpointed for layer in layers) for layers in split)


@cache
def divide(shape: Network, stages: int, by: str) -> Split:
    """Divide the layers of a network over `stages` stages.

    Args:
        by: "even" gives each stage the same number of layers; the embedding and the head of a GPT do not count if
            there is a block for every stage, because AxoNN and SAMO divide transformer blocks only. "cost" balances
            flops. "pipedream" applies PipeDream's rule to the seconds that follow from the shape.

    Raises InvalidRequest for more stages than layers, and UnknownName for another rule.
    """
    return by_cost(_costs(shape, by, stages), stages, cut_seconds(shape) if by == "pipedream" else ())


def divide_ranks(shape: Network, homes: Sequence[int], by: str) -> Split:
    """Divide the layers of a network over stages so that the slowest rank is as fast as possible.

    With one stage per rank the result is that of `divide`. In a V, rank 0 holds embedding, head and loss, so its other
    layers are fewer. Starting from the stages of `divide`, one layer moves from a stage to another, and the stages
    between them shift by one layer, while the largest cost of a rank, or else the sum of squared costs, falls. The
    result is a local optimum.

    Args:
        homes: Rank of each stage.
        by: As for `divide`. "pipedream" gives the costs of layers; messages are not counted.
    """
    homes = tuple(homes)
    if len(set(homes)) == len(homes):
        return divide(shape, len(homes), by)
    return _balance(tuple(_costs(shape, by)), homes, divide(shape, len(homes), by))


def _costs(shape: Network, by: str, stages: int = 1) -> Sequence[float]:
    """Cost of each layer under a rule of `divide`."""
    shapes = shape.shapes()
    if by == "even":
        blocks, ends = len(shapes) - 2, not (shapes[0].checkpointed or shapes[-1].checkpointed)
        return [0.0, *[1.0] * blocks, 0.0] if ends and blocks >= stages else [1.0] * len(shapes)
    if by == "cost":
        return [layer.flops for layer in shapes]
    if by == "pipedream":
        return layer_seconds(shape)
    raise UnknownName("split", by, ("even", "cost", "pipedream"))


def layer_seconds(shape: Network) -> list[float]:
    """Seconds of the forward and backward pass of each layer for one sample.

    The time of a layer is the time of its flops plus the time of its memory traffic. A forward pass writes its saved
    activations and its output, and reads the same number of bytes. A backward pass moves twice as many bytes.
    """
    return [PASSES * (layer.flops / FLOPS + 2 * (layer.saved + layer.output) / MEMORY) for layer in shape.shapes()]


def cut_seconds(shape: Network) -> list[float]:
    """Seconds in which the activation of each layer's end and its gradient pass between two stages, for one sample."""
    return [2 * float(layer.output) / LINK for layer in shape.shapes()]


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
