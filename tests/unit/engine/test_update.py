"""Update: order of sums of gradients, each added exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from suite.comm.collective.process_group import Done
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.engine.optim.loss_scaler import DynamicLossScaler, unscaled
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.engine.optim.update import Update, subtract
from suite.engine.states.state import ModelState
from suite.engine.ties import TieGroup
from suite.memory.layout import offloaded, resident
from tests.support.refusals import refused

BIG = 2.0**53  # BIG + 1 rounds to BIG in float64, so a sum depends on its order


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def update_of(
    world: threads.LoopbackWorld,
    parameters: Sequence[nn.Parameter],
    *,
    column: Sequence[int] = (0,),
    ties: Sequence[Sequence[nn.Parameter]] = (),
    owners: Sequence[int] = (),
    rule: SGD | Adam | None = None,
    half: torch.dtype | None = None,
    bucket_numel: int | None = None,
    layout: Any = resident,
    **more: Any,
) -> Update:
    """The update of one rank.

    Args:
        ties: This rank's weights of each tie.
        owners: Rank of each end of a tie, in the order of layers; by default this rank holds all ends.
    """
    rule = rule or SGD(0.5)
    state = ModelState(parameters, rule.states, layout, half=half, bucket_numel=bucket_numel)
    transport = world.transport((world.rank,))
    groups = [tie_group(world, weights, owners or [world.rank] * len(weights)) for weights in ties]
    return Update(
        state,
        rule,
        data_parallel_group=world.group(column),
        ties=groups,
        most_ends=max((len(group.ends) for group in groups), default=1),
        transport=transport,
        world=world if world.size > 1 else None,
        **more,
    )


def tie_group(world: threads.LoopbackWorld, weights: Sequence[nn.Parameter], owners: Sequence[int]) -> TieGroup:
    ends = tuple((layer, "weight") for layer in range(len(owners)))
    here = [end for end, owner in zip(ends, owners, strict=True) if owner == world.rank]
    held = dict(zip(here, weights, strict=True))
    return TieGroup(ends, tuple(owners), world.rank, world.group(sorted({*owners})), held)


def alone() -> threads.LoopbackWorld:
    return threads.LoopbackWorld(threads.Hub(1), 0)


def test_local_tie_is_summed_first_layer_first() -> None:
    first, between, last = parameter(1.0, 1.0), parameter(2.0), parameter(1.0, 1.0)
    update = update_of(alone(), [first, between, last], ties=[(first, last)])
    update.state.gradient.copy_(torch.tensor([3.0, -0.25, 7.0, 4.0, 0.5]))
    summed = update.state.gradient.clone()
    list(update.run(step=False))
    assert update.state.gradient.tolist() == [7.0, 0.25, 7.0, 7.0, 0.25]
    update.state.gradient.copy_(summed)
    list(update.run())
    assert torch.equal(first, last)
    assert first.tolist() == [-2.5, 0.875]
    assert not update.state.gradient.any()


def test_replicas_are_summed_before_tie() -> None:
    """Two replicas with both ends: (BIG + 1) + (0 - BIG) is 0; with the tie first, (BIG - BIG) + (1 + 0) would be 1."""
    parts = [(BIG, -BIG), (1.0, 0.0)]

    def rank(world: threads.LoopbackWorld) -> list[float]:
        first, last = parameter(0.0), parameter(0.0)
        update = update_of(world, [first, last], column=(0, 1), ties=[(first, last)])
        update.state.gradient.copy_(torch.tensor(parts[world.rank]))
        list(update.run(step=False))
        return update.state.gradient.tolist()

    assert threads.run(2, rank) == [[0.0, 0.0], [0.0, 0.0]]


def test_remote_tie_is_summed_over_its_ranks() -> None:
    def rank(world: threads.LoopbackWorld) -> list[float]:
        tied, other = parameter(0.0, 0.0), parameter(0.0)
        update = update_of(world, [other, tied], column=(world.rank,), ties=[(tied,)], owners=(0, 1))
        update.state.gradient.copy_(torch.tensor([10.0, 1.0, 2.0]) * (world.rank + 1))
        list(update.run(step=False))
        return update.state.gradient.tolist()

    assert threads.run(2, rank) == [[10.0, 3.0, 6.0], [20.0, 3.0, 6.0]]


@pytest.mark.parametrize("owners", [(0, 1, 2, 3), (0, 0, 0, 0), (0, 1, 0, 1), (2, 2, 1, 0), (1, 0, 0, 2)], ids=str)
def test_ends_are_summed_in_order_of_layers(owners: tuple[int, ...]) -> None:
    """((1 + BIG) - BIG) + 0.5 is 0.5. In other orders, the sum of these four is 0, 1, 1.5 or 2."""
    parts = [1.0, BIG, -BIG, 0.5]

    def rank(world: threads.LoopbackWorld) -> list[float]:
        here = [part for part, owner in zip(parts, owners, strict=True) if owner == world.rank]
        weights = [parameter(0.0) for _ in here]
        update = update_of(world, weights, column=(world.rank,), ties=[weights] if here else [], owners=owners)
        update.state.gradient.copy_(torch.tensor(here))
        list(update.run(step=False))
        return update.state.gradient.tolist()

    by_rank = threads.run(4, rank, deadline=20.0)
    assert by_rank == [[0.5] * owners.count(number) for number in range(4)]


@pytest.mark.parametrize("replacement", [None, torch.zeros(2, dtype=torch.float64)], ids=["none", "another"])
def test_replaced_gradient_is_rejected(replacement: torch.Tensor | None) -> None:
    weight = parameter(1.0, 2.0)
    update = update_of(alone(), [weight])
    list(update.run(step=False))
    weight.grad = replacement
    with refused(InvalidRequest, rule="do not call zero_grad"):
        list(update.run(step=False))


@pytest.mark.parametrize("rule", [SGD(0.1, momentum=0.9, weight_decay=0.1), Adam(0.1, weight_decay=0.1)], ids=str)
def test_stage_without_weights_can_step(rule: SGD | Adam) -> None:
    def rank(world: threads.LoopbackWorld) -> tuple[int, bool]:
        update = update_of(world, [], column=(0, 1), rule=rule)
        for _ in range(2):
            list(update.run())
        return update.state.rule.updates, update.reduces

    assert threads.run(2, rank) == [(2, False)] * 2


# -- slices of the flat order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "holes", "rest"),
    [
        ((0, 10), [], [(0, 10)]),
        ((0, 10), [(0, 10)], []),
        ((0, 10), [(3, 5)], [(0, 3), (5, 10)]),
        ((4, 8), [(0, 5), (7, 20)], [(5, 7)]),
        ((4, 8), [(0, 4), (8, 9)], [(4, 8)]),
        ((0, 9), [(1, 2), (4, 9)], [(0, 1), (2, 4)]),
        ((2, 6), [(0, 20)], []),
    ],
)
def test_subtract_returns_parts_outside_holes(span: tuple, holes: list, rest: list) -> None:
    assert subtract(slice(*span), [slice(*pair) for pair in holes]) == [slice(*pair) for pair in rest]


# -- overlap, offload: the same bits ---------------------------------------------------------------------------------

SIZES = (7, 30, 5, 30, 1)  # 73 entries; the second and the fourth are tied
RULES = [SGD(0.3, momentum=0.9, weight_decay=0.01), Adam(0.1), AdamW(0.1)]


def trained(
    world: threads.LoopbackWorld, rule: Any, *, half: torch.dtype | None, batches: int = 3, **more: Any
) -> list[list[float]]:
    """Full-precision weights and moments after updates with gradients that differ by rank and batch."""
    generator = torch.Generator().manual_seed(3)
    parameters = [nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES]
    parameters[3].data.copy_(parameters[1].data)
    update = update_of(
        world,
        parameters,
        column=range(world.size),
        ties=[(parameters[1], parameters[3])],
        rule=rule,
        half=half,
        loss_scaler=DynamicLossScaler(start=4.0) if half else None,
        **more,
    )
    draw = torch.Generator().manual_seed(10 + world.rank)
    for _ in range(batches):
        update.state.gradient.copy_(torch.randn(update.state.entries, generator=draw))
        list(update.run())
        assert not update.state.gradient.any()
    state = update.state
    exported = [state.export(p) for p in state.parameters]
    return [[float(entry) for entry in tensor.reshape(-1)] for part in exported for tensor in part.values()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("half", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("replicas", [1, 2])
def test_every_bucket_and_chunk_size_is_bit_identical(rule: Any, half: torch.dtype | None, replicas: int) -> None:
    def runs(**more: Any) -> Any:
        return threads.run(replicas, partial(trained, rule=rule, half=half, **more))

    whole = runs()
    assert all(rank == whole[0] for rank in whole)
    for bucket, chunk in ((73, 1), (10, None), (10, 1), (10, 2), (16, 4), (7, 3), (1, 5), (100, 2)):
        assert runs(bucket_numel=bucket, buckets_per_reduction=chunk) == whole, (bucket, chunk)
        for sets in (1, 2):
            layout = partial(offloaded, bucket=bucket, sets=sets)
            assert runs(bucket_numel=bucket, buckets_per_reduction=chunk, layout=layout) == whole, (bucket, chunk, sets)


def test_next_reduction_starts_before_step() -> None:
    """Events on one of two replicas: the next chunk is being reduced while a chunk is stepped."""
    events: list[str] = []

    class Told:
        ranks = (0, 1)

        def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Any:
            events.append(f"reduce {tensor.numel()}")
            return Done()

    update = update_of(alone(), [parameter(*range(10))], bucket_numel=2, buckets_per_reduction=2)
    assert update.overlap == "off (nothing is reduced)"
    update.data_parallel_group = Told()
    rule = update.rule

    class Noted:
        states = rule.states

        def step(self, state: Any, gradient: torch.Tensor) -> None:
            events.append("step")
            rule.step(state, gradient)

    update.rule = Noted()  # type: ignore[assignment]
    list(update.run())
    assert events == ["reduce 4", "reduce 4", "step", "step", "reduce 2", "step", "step", "step"]


# -- overflow --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [resident, partial(offloaded, bucket=4)], ids=["resident", "offloaded"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 40000.0])
@pytest.mark.parametrize("where", range(0, 10, 3))
@pytest.mark.parametrize("culprit", [0, 1])
def test_overflow_on_any_rank_skips_update(layout: Any, value: float, where: int, culprit: int) -> None:
    """Ranks 0 and 1 are replicas; 40000 is finite in float16, but 2 * 40000 is not."""

    def rank(world: threads.LoopbackWorld) -> list[Any]:
        weight = nn.Parameter(torch.linspace(-1, 1, 10))
        scaler = DynamicLossScaler(start=8.0)
        update = update_of(
            world,
            [weight],
            column=(0, 1),
            rule=Adam(0.1),
            half=torch.float16,
            bucket_numel=4,
            buckets_per_reduction=1,
            layout=layout,
            loss_scaler=scaler,
        )
        seen = []
        for batch in range(3):
            update.state.gradient.fill_(0.5)
            if batch == 1 and world.rank == culprit:
                update.state.gradient[where] = value
            list(update.run())
            exported = update.state.export(weight)
            seen.append(
                ([t.clone() for t in exported.values()], weight.data.clone(), update.state.rule.updates, scaler.scale)
            )
        (full, half, updates, scale), (after, half_after, updates_after, scale_after), last = seen
        assert all(torch.equal(a, b) for a, b in zip(full, after, strict=True))
        assert torch.equal(half, half_after)
        assert (updates, updates_after, scale, scale_after) == (1, 1, 8.0, 4.0)
        assert not torch.equal(last[0][0], full[0])
        assert last[2] == 2
        assert update.skipped == 1
        return [entry.tolist() for entry in last[0]]

    first, second = threads.run(2, rank)
    assert first == second


def test_representable_replica_sum_is_no_overflow() -> None:
    def rank(world: threads.LoopbackWorld) -> int:
        update = update_of(world, [parameter32(1.0)], column=(0, 1), half=torch.float16, loss_scaler=unscaled())
        update.state.gradient.fill_(32000.0)
        list(update.run())
        return update.skipped

    assert threads.run(2, rank) == [0, 0]


def test_tie_counts_as_addend_in_overflow_check() -> None:
    """30000 + 30000 is finite in float16; with two replicas and two ends of a tie the sum would be 120000."""

    def rank(world: threads.LoopbackWorld) -> int:
        first, last = parameter32(1.0), parameter32(1.0)
        update = update_of(
            world, [first, last], column=(0, 1), ties=[(first, last)], half=torch.float16, loss_scaler=unscaled()
        )
        update.state.gradient.fill_(30000.0)
        list(update.run())
        return update.skipped

    assert threads.run(2, rank) == [1, 1]


def parameter32(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values))


# -- clipping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [None, torch.bfloat16], ids=str)
def test_clipping_uses_global_norm_with_ties_once(half: torch.dtype | None) -> None:
    """Two stages: gradients 3 and 4 of untied weights, and 12 / 2 at each end of a tie, give the norm 13."""

    def rank(world: threads.LoopbackWorld) -> list[float]:
        weight, tied = parameter32(0.0), parameter32(0.0)
        update = update_of(
            world,
            [weight, tied],
            column=(world.rank,),
            ties=[(tied,)],
            owners=(0, 1),
            rule=SGD(1.0),
            half=half,
            bucket_numel=1,
            buckets_per_reduction=1,
            clip_norm=1.0,
            loss_scaler=DynamicLossScaler(start=16.0) if half else None,
        )
        update.state.gradient.copy_(torch.tensor([3.0 + world.rank, 6.0]) * (16.0 if half else 1.0))
        list(update.run())
        return [float(update.state.export(p)["weight"]) for p in (weight, tied)]

    (first, tied), (second, tied_too) = threads.run(2, rank)
    assert tied == tied_too == pytest.approx(-12 / 13, rel=1e-6)
    assert (first, second) == (pytest.approx(-3 / 13, rel=1e-6), pytest.approx(-4 / 13, rel=1e-6))


def test_replicas_count_once_in_norm() -> None:
    def rank(world: threads.LoopbackWorld) -> float:
        weight = parameter32(0.0)
        update = update_of(world, [weight], column=(0, 1), rule=SGD(1.0), clip_norm=2.0, counts_in_norm=world.rank == 0)
        update.state.gradient.fill_(1.0)
        list(update.run())
        return weight.item()

    assert threads.run(2, rank) == [pytest.approx(-2.0, rel=1e-6)] * 2


def test_small_gradient_is_not_clipped() -> None:
    weight = parameter32(0.0, 0.0)
    update = update_of(alone(), [weight], rule=SGD(1.0), clip_norm=5.1)
    update.state.gradient.copy_(torch.tensor([3.0, 4.0]))
    list(update.run())
    assert weight.tolist() == [-3.0, -4.0]


def test_overlap_note_for_record() -> None:
    def rank(world: threads.LoopbackWorld) -> list[str]:
        settings: list[dict[str, Any]] = [
            {},
            {"buckets_per_reduction": 2},
            {"buckets_per_reduction": 5},
            {"buckets_per_reduction": 2, "clip_norm": 1.0},
            {"clip_norm": 1.0},
        ]
        column = range(world.size)
        return [update_of(world, [parameter(*range(5))], bucket_numel=1, column=column, **s).overlap for s in settings]

    clipped, one = "off (clipping)", "off (one chunk holds everything)"
    assert threads.run(2, rank)[0] == ["off", "chunks of 2 buckets of 1", one, clipped, "off"]
    assert threads.run(1, rank)[0] == ["off", *["off (nothing is reduced)"] * 2, clipped, "off"]
