"""PipeDream's rule against exhaustive search, and plans that can run here.

The brute force below shares nothing with the programme but the cost of a stage and of a cut, written out again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.workload import VGG, Transformer, WideResNet
from suite.workload.pipedream_split import Profile, Rates, any_replicas, equal
from suite.workload.split import divide
from tests.support.refusals import refused

numbers = st.integers(0, 12).map(float)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    count = draw(st.integers(1, 6))
    columns = [tuple(draw(st.lists(numbers, min_size=count, max_size=count))) for _ in range(3)]
    return Profile(*columns, bandwidth=draw(st.sampled_from([0.5, 2.0, 8.0])))


def cuts(layers: int, stages: int) -> Iterator[list[range]]:
    for inner in combinations(range(1, layers), stages - 1):
        ends = (*inner, layers)
        yield [range(a, b) for a, b in zip((0, *ends), ends, strict=False)]


def slowest(profile: Profile, split: list[range], replicas: list[int]) -> float:
    """The slowest stage or cut, as the docstring of the module says."""
    parts = []
    for stage, count in zip(split, replicas, strict=True):
        compute = sum(profile.seconds[layer] for layer in stage)
        reduce = 2 * (count - 1) * sum(profile.weights[layer] for layer in stage) / profile.bandwidth
        parts.append(max(compute, reduce) / count)
    return max(parts + [2 * profile.outputs[stage.stop - 1] / profile.bandwidth for stage in split[:-1]])


@settings(deadline=None, max_examples=60)
@given(profiles(), st.integers(1, 4))
def test_no_plan_is_quicker_than_the_one_that_is_found(profile: Profile, devices: int) -> None:
    options = [
        slowest(profile, split, list(replicas))
        for stages in range(1, min(profile.layers, devices) + 1)
        for split in cuts(profile.layers, stages)
        for replicas in product(range(1, devices + 1), repeat=stages)
        if sum(replicas) == devices
    ]
    best = any_replicas(profile, devices)
    assert best.slowest == pytest.approx(min(options), rel=1e-12)
    assert slowest(profile, list(best.split), [s.replicas for s in best.stages]) == pytest.approx(best.slowest)
    assert sum(stage.replicas for stage in best.stages) == devices


@settings(deadline=None, max_examples=60)
@given(profiles(), st.data(), st.integers(1, 3))
def test_no_split_with_equal_replicas_is_quicker(profile: Profile, data: st.DataObject, replicas: int) -> None:
    stages = data.draw(st.integers(1, profile.layers))
    options = [slowest(profile, split, [replicas] * stages) for split in cuts(profile.layers, stages)]
    best = equal(profile, stages, replicas)
    assert best.slowest == pytest.approx(min(options), rel=1e-12)
    assert slowest(profile, list(best.split), [replicas] * stages) == pytest.approx(best.slowest)


def test_a_stage_that_is_too_slow_alone_gets_more_devices() -> None:
    """Three devices for the convolution, one for the weights: PipeDream's plan for VGG in small. By hand: 9 / 3 = 3,
    and 3 for the second stage; a straight pipeline of two would take 9."""
    profile = Profile((9.0, 3.0), (1.0, 1.0), (0.0, 90.0), bandwidth=10.0)
    split = any_replicas(profile, 4)
    assert [(stage.layers, stage.replicas) for stage in split.stages] == [(range(1), 3), (range(1, 2), 1)]
    assert split.slowest == 3.0
    with refused(Unsupported, subject="a plan of 2 stages with 3, 1 replicas", rule="all stages have the same number"):
        split.runnable()
    assert equal(profile, 2).runnable().slowest == 9.0


def test_a_wide_cut_is_avoided() -> None:
    """Two equal halves would send 40 bytes both ways, 8 s; one layer more sends 2 in 0.4 s, and takes 6."""
    profile = Profile((4.0, 2.0, 2.0, 1.0), (1.0, 20.0, 1.0, 1.0), (1.0,) * 4, bandwidth=10.0)
    assert equal(profile, 2).split == (range(1), range(1, 4))
    narrow = Profile((4.0, 2.0, 2.0, 4.0), (1.0, 20.0, 1.0, 1.0), (1.0,) * 4, bandwidth=1e9)
    assert equal(narrow, 2).split == (range(2), range(2, 4))


def test_a_profile_of_a_shape_by_hand() -> None:
    """A block of 24 s h^2 + 4 s^2 h flops: three passes of products, and three of its saved and output bytes."""
    shape = Transformer(layers=2, hidden=8, heads=2, sequence=4, vocabulary=16)
    profile, block = Profile.of(shape, Rates(flops=100.0, memory=10.0, link=5.0)), shape.shapes()[1]
    assert block.flops == 24 * 4 * 64 + 4 * 16 * 8
    assert profile.seconds[1] == pytest.approx(3 * (block.flops / 100 + 2 * (block.saved + block.output) / 10))
    assert (profile.outputs[1], profile.weights[1], profile.bandwidth) == (block.output, 4 * block.parameters, 5.0)


@pytest.mark.parametrize("shape", [VGG(), WideResNet(), Transformer(12, 64, 4, 32, 128)])
def test_every_network_has_a_pipedream_split(shape: VGG) -> None:
    split = divide(shape, 4, "pipedream")
    assert [layer for stage in split for layer in stage] == list(range(len(shape.shapes())))
    profile = Profile.of(shape)
    times = [sum(profile.seconds[layer] for layer in stage) for stage in split]
    assert max(times) <= 1.5 * sum(times) / 4
    slow = divide(shape, 4, "pipedream", Rates(flops=5e12, memory=500e9, link=1e6))
    sent = [[profile.outputs[stage.stop - 1] for stage in stages[:-1]] for stages in (split, slow)]
    assert max(sent[1]) <= max(sent[0]), "a slow link moves the cuts to where little passes"


def test_a_measured_profile_is_a_split(tmp_path: Path) -> None:
    shape, path = VGG(), tmp_path / "vgg.json"
    count = len(shape.shapes())

    def write(layers: int) -> None:
        rows = [{"name": "x", "forward": 1.0, "backward": 0.0, "output": 1, "weights": 1} for _ in range(layers)]
        rows[0] = {**rows[0], "forward": 1.0, "backward": float(layers)}
        path.write_text(json.dumps({"bandwidth": 1e9, "layers": rows}), encoding="utf-8")

    write(count)
    assert divide(shape, 2, str(path)) == (range(1), range(1, count))
    write(count - 1)
    with refused(
        InvalidRequest,
        "split",
        subject=f"of {count - 1} layers for a network of {count}",
        rule="the profile has the same",
    ):
        divide(shape, 2, str(path))
    path.write_text("{}", encoding="utf-8")
    with refused(InvalidRequest, "split", subject="'layers'", rule="a file that holds a profile"):
        divide(shape, 2, str(path))
    with refused(InvalidRequest, "split", subject="No such file"):
        divide(shape, 2, str(tmp_path / "none.json"))
    with refused(UnknownName, "split", "pipdream"):
        divide(shape, 2, "pipdream")


def test_what_is_no_profile_is_refused() -> None:
    with refused(
        InvalidRequest, subject="a profile with [1, 2, 1] times", rule="one of each per layer, and at least one layer"
    ):
        Profile((1.0,), (1.0, 1.0), (1.0,), 1.0)
    with refused(InvalidRequest, subject="a negative or infinite", rule="all numbers are finite and not negative"):
        Profile((-1.0,), (1.0,), (1.0,), 1.0)
    with refused(InvalidRequest, subject="bandwidth=0", rule="bytes/s, finite and above 0"):
        Profile((1.0,), (1.0,), (1.0,), 0)
    with refused(InvalidRequest, "stages", "2", subject="for 1 layers"):
        equal(Profile((1.0,), (1.0,), (1.0,), 1.0), 2)
    with refused(InvalidRequest, subject="a plan for 0 devices", rule="at least 1"):
        any_replicas(Profile((1.0,), (1.0,), (1.0,), 1.0), 0)
    with refused(InvalidRequest, "rates.flops", "0"):
        Rates(flops=0)
