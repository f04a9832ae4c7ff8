"""Split of stages against every possible cut: by cost, evenly, and by PipeDream's rule.

An uneven split is the commonest reason for a slow pipeline, and a dynamic programme is easily almost right. The brute
force below shares nothing with the programmes but the cost of a stage and of a cut, written out again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.workload import VGG, Transformer, WideResNet, by_cost, evenly
from suite.workload.pipedream_split import Profile, Rates, any_replicas, equal
from suite.workload.split import divide
from tests.support.refusals import refused


def cuts(layers: int, stages: int) -> Iterator[tuple[range, ...]]:
    for inner in combinations(range(1, layers), stages - 1):
        ends = (*inner, layers)
        yield tuple(range(a, b) for a, b in zip((0, *ends), ends, strict=False))


def best_of_all(costs: Sequence[int], stages: int) -> tuple[range, ...]:
    """Every split tried: the quickest slowest stage, then the least squares, then the longer early stages."""

    def merit(split: tuple[range, ...]) -> tuple[int, int, list[int]]:
        sums = [sum(costs[layer] for layer in stage) for stage in split]
        return max(sums), sum(each * each for each in sums), [-stage.stop for stage in split]

    return min(cuts(len(costs), stages), key=merit)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 8))
# in these the slowest stage is a late one, and the early stages are free to be more alike
@example([1, 8, 6, 2, 0, 8, 1, 8], 4)
@example([3, 3, 7, 1, 9, 2, 0], 4)
@example([2, 5, 2, 4, 6, 1, 9, 3], 6)
@example([3, 5, 2, 1, 1, 5, 8, 2, 7], 4)
def test_by_cost_finds_the_best_of_all_splits(costs: list[int], number: int) -> None:
    stages = 1 + number % len(costs)
    assert by_cost(costs, stages) == best_of_all(costs, stages)


@pytest.mark.parametrize(
    ("layers", "stages", "ends", "lengths"),
    [
        (10, 4, False, [3, 3, 2, 2]),
        (12, 4, False, [3, 3, 3, 3]),
        (3, 1, False, [3]),
        (5, 5, False, [1] * 5),
        # ends do not count as layers: 48 blocks, an embedding and a head on 6 stages are 8 blocks each
        (50, 6, True, [9, 8, 8, 8, 8, 9]),
        (12, 4, True, [4, 3, 2, 3]),
        (4, 2, True, [2, 2]),
        (3, 1, True, [3]),
        # they count where blocks are too few
        (4, 3, True, [2, 1, 1]),
        (4, 4, True, [1, 1, 1, 1]),
    ],
)
def test_evenly_gives_the_longer_stages_first(layers: int, stages: int, ends: bool, lengths: list[int]) -> None:
    assert [len(stage) for stage in evenly(layers, stages, ends=ends)] == lengths


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.integers(1, 8), st.booleans())
def test_evenly_covers_every_layer_once(layers: int, stages: int, ends: bool) -> None:
    if stages > layers:
        with refused(InvalidRequest, "stages", str(stages), legal=f"stages={layers}"):
            evenly(layers, stages, ends=ends)
        return
    split = evenly(layers, stages, ends=ends)
    assert [layer for stage in split for layer in stage] == list(range(layers))
    assert all(split)


def test_impossible_splits_are_refused() -> None:
    for stages in (0, -1, 4):
        with refused(InvalidRequest, "stages", str(stages), legal="stages=3"):
            by_cost([1.0, 2.0, 3.0], stages)
    with refused(InvalidRequest, subject="a layer cost of -2"):
        by_cost([1, -2], 1)
    with refused(InvalidRequest, subject="2000 layers on 64 stages", rule="here 256000000", legal="1250 layers"):
        evenly(2000, 64)
    with refused(InvalidRequest, subject="2002 layers on 64 stages"):
        divide(Transformer(layers=2000, hidden=8, heads=2, sequence=4, vocabulary=16), 64, "pipedream")


# -- PipeDream's rule --------------------------------------------------------------------------------------------------

numbers = st.integers(0, 12).map(float)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    count = draw(st.integers(1, 6))
    columns = [tuple(draw(st.lists(numbers, min_size=count, max_size=count))) for _ in range(3)]
    return Profile(*columns, bandwidth=draw(st.sampled_from([0.5, 2.0, 8.0])))


def slowest(profile: Profile, split: Sequence[range], replicas: Sequence[int]) -> float:
    """The slowest stage or cut, as the docstring of the module says."""
    parts = []
    for stage, count in zip(split, replicas, strict=True):
        compute = sum(profile.seconds[layer] for layer in stage)
        reduce = 2 * (count - 1) * sum(profile.weights[layer] for layer in stage) / profile.bandwidth
        parts.append(max(compute, reduce) / count)
    return max(parts + [2 * profile.outputs[stage.stop - 1] / profile.bandwidth for stage in split[:-1]])


@settings(deadline=None, max_examples=30)
@given(profiles(), st.integers(1, 4), st.integers(0, 5))
def test_no_plan_is_quicker_than_the_one_that_is_found(profile: Profile, devices: int, number: int) -> None:
    options = [
        slowest(profile, split, replicas)
        for stages in range(1, min(profile.layers, devices) + 1)
        for split in cuts(profile.layers, stages)
        for replicas in product(range(1, devices + 1), repeat=stages)
        if sum(replicas) == devices
    ]
    found = any_replicas(profile, devices)
    assert found.slowest == pytest.approx(min(options), rel=1e-12)
    assert slowest(profile, found.split, [s.replicas for s in found.stages]) == pytest.approx(found.slowest)
    assert sum(stage.replicas for stage in found.stages) == devices
    stages = 1 + number % profile.layers
    options = [slowest(profile, split, [devices] * stages) for split in cuts(profile.layers, stages)]
    same = equal(profile, stages, devices)
    assert same.slowest == pytest.approx(min(options), rel=1e-12)
    assert slowest(profile, same.split, [devices] * stages) == pytest.approx(same.slowest)


def test_plans_by_hand() -> None:
    """Three devices for the convolution, one for the weights: PipeDream's plan for VGG in small. By hand: 9 / 3 = 3,
    and 3 for the second stage; a straight pipeline of two would take 9."""
    profile = Profile((9.0, 3.0), (1.0, 1.0), (0.0, 90.0), bandwidth=10.0)
    split = any_replicas(profile, 4)
    assert [(stage.layers, stage.replicas) for stage in split.stages] == [(range(1), 3), (range(1, 2), 1)]
    assert split.slowest == 3.0
    with refused(Unsupported, subject="a plan of 2 stages with 3, 1 replicas"):
        split.runnable()
    assert equal(profile, 2).runnable().slowest == 9.0
    # two equal halves would send 40 bytes both ways, 8 s; one layer more sends 2 in 0.4 s, and takes 6
    wide = Profile((4.0, 2.0, 2.0, 1.0), (1.0, 20.0, 1.0, 1.0), (1.0,) * 4, bandwidth=10.0)
    assert equal(wide, 2).split == (range(1), range(1, 4))
    # a block of 24 s h^2 + 4 s^2 h flops: three passes of products, and three of its saved and output bytes
    shape = Transformer(layers=2, hidden=8, heads=2, sequence=4, vocabulary=16)
    profile, block = Profile.of(shape, Rates(flops=100.0, memory=10.0, link=5.0)), shape.shapes()[1]
    assert block.flops == 24 * 4 * 64 + 4 * 16 * 8
    assert profile.seconds[1] == pytest.approx(3 * (block.flops / 100 + 2 * (block.saved + block.output) / 10))
    assert (profile.outputs[1], profile.weights[1], profile.bandwidth) == (block.output, 4 * block.parameters, 5.0)


@pytest.mark.parametrize("shape", [VGG(), WideResNet(), Transformer(12, 64, 4, 32, 128)])
def test_every_network_has_a_pipedream_split(shape: VGG) -> None:
    split, profile = divide(shape, 4, "pipedream"), Profile.of(shape)
    assert [layer for stage in split for layer in stage] == list(range(len(shape.shapes())))
    times = [sum(profile.seconds[layer] for layer in stage) for stage in split]
    assert max(times) <= 1.5 * sum(times) / 4
    slow = divide(shape, 4, "pipedream", Rates(flops=5e12, memory=500e9, link=1e6))
    fast_sent, slow_sent = (max(profile.outputs[stage.stop - 1] for stage in each[:-1]) for each in (split, slow))
    assert slow_sent <= fast_sent, "a slow link moves the cuts to where little passes"


def test_a_measured_profile_is_a_split(tmp_path: Path) -> None:
    shape, path, count = VGG(), tmp_path / "vgg.json", len(VGG().shapes())

    def write(layers: int) -> None:
        rows = [{"name": "x", "forward": 1.0, "backward": 0.0, "output": 1, "weights": 1} for _ in range(layers)]
        rows[0]["backward"] = float(layers)
        path.write_text(json.dumps({"bandwidth": 1e9, "layers": rows}), encoding="utf-8")

    write(count)
    assert divide(shape, 2, str(path)) == (range(1), range(1, count))
    write(count - 1)
    with refused(InvalidRequest, "split", subject=f"of {count - 1} layers for a network of {count}"):
        divide(shape, 2, str(path))
    path.write_text("{}", encoding="utf-8")
    with refused(InvalidRequest, "split", subject="'layers'"):
        divide(shape, 2, str(path))
    with refused(InvalidRequest, "split", subject="No such file"):
        divide(shape, 2, str(tmp_path / "none.json"))
    with refused(UnknownName, "split", "pipdream"):
        divide(shape, 2, "pipdream")


ONE = Profile((1.0,), (1.0,), (1.0,), 1.0)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Profile((1.0,), (1.0, 1.0), (1.0,), 1.0), ""),
        (lambda: Profile((-1.0,), (1.0,), (1.0,), 1.0), ""),
        (lambda: Profile((1.0,), (1.0,), (1.0,), 0), ""),
        (lambda: equal(ONE, 2), "stages"),
        (lambda: any_replicas(ONE, 0), ""),
        (lambda: Rates(flops=0), "rates.flops"),
    ],
)
def test_impossible_profiles_are_refused(make: Callable[[], object], key: str) -> None:
    with refused(InvalidRequest, key):
        make()
