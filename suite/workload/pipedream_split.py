"""PipeDream's rule for dividing layers and devices over stages (Narayanan et al. 2019, Section 3.1).

PipeOptim runs every system on PipeDream's split (V-A). The rule is a function of a profile: time, output bytes and
weight bytes of each layer. The best plan minimizes the time of its slowest stage or cut between stages:

    stage of `r` replicas   max(seconds of its layers, 2 (r - 1) bytes of its weights / bandwidth) / r
    cut after a layer       2 bytes of its output / bandwidth: an activation and its gradient

Messages and reductions are assumed to overlap with the passes. A plan may have a different number of replicas on each
stage; such a plan is reported but cannot run here (`equal`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from suite.core.errors import InvalidRequest, Unsupported
from suite.workload.transformer import Network

PASSES = 3  # a backward pass is two forward passes
WIDTH = 4  # bytes of an entry


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates that convert the shape of a network to seconds.

    The defaults are round numbers of one GPU in a PCIe slot. Only their ratios decide a split.

    Attributes:
        flops: flop/s of matrix products.
        memory: bytes/s of all other kernels.
        link: bytes/s between stages.
    """

    flops: float = 5.0e12
    memory: float = 500.0e9
    link: float = 10.0e9

    def __post_init__(self) -> None:
        for name in ("flops", "memory", "link"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidRequest(f"rates.{name}={getattr(self, name)}", rule="finite and above 0", legal="1.0e+9")


@dataclass(frozen=True, slots=True)
class Profile:
    """Profile of a network, one entry per layer, for one microbatch.

    Attributes:
        seconds: Time of forward and backward pass.
        outputs: Bytes of the layer's output.
        weights: Bytes of the layer's parameters.
        bandwidth: bytes/s between devices.
    """

    seconds: tuple[float, ...]
    outputs: tuple[float, ...]
    weights: tuple[float, ...]
    bandwidth: float

    def __post_init__(self) -> None:
        counts = [len(self.seconds), len(self.outputs), len(self.weights)]
        if not counts[0] or len(set(counts)) > 1:
            raise InvalidRequest(
                f"a profile with {counts} times, output sizes and weight sizes",
                rule="one of each per layer, and at least one layer",
                legal="[1, 1, 1]",
            )
        numbers = (*self.seconds, *self.outputs, *self.weights)
        if not all(0 <= number < float("inf") for number in numbers):
            raise InvalidRequest(
                "a profile with a negative or infinite number",
                rule="all numbers are finite and not negative",
                legal="0",
            )
        if not 0 < self.bandwidth < float("inf"):
            raise InvalidRequest(
                f"a profile with bandwidth={self.bandwidth}", rule="bytes/s, finite and above 0", legal="1.0e+10"
            )

    @classmethod
    def of(cls, shape: Network, rates: Rates | None = None) -> Profile:
        """Profile of a network's shape for one sample.

        The time of a layer is the time of its flops plus the time of its memory traffic. A forward pass writes its
        saved activations and its output, and reads the same number of bytes. A backward pass moves twice as many bytes.
        """
        rates, layers = rates or Rates(), shape.shapes(WIDTH)
        moved = [2 * (layer.saved + layer.output) for layer in layers]
        return cls(
            tuple(
                PASSES * (layer.flops / rates.flops + size / rates.memory)
                for layer, size in zip(layers, moved, strict=True)
            ),
            tuple(float(layer.output) for layer in layers),
            tuple(float(WIDTH * layer.parameters) for layer in layers),
            rates.link,
        )

    @classmethod
    def read(cls, path: str | Path) -> Profile:
        """Read a measured profile, as `suite profile-split` writes it.

        Raises InvalidRequest for a missing file and for a file that is not a profile.
        """
        try:
            content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
            layers = content["layers"]
            return cls(
                tuple(float(layer["forward"]) + float(layer["backward"]) for layer in layers),
                tuple(float(layer["output"]) for layer in layers),
                tuple(float(layer["weights"]) for layer in layers),
                float(content["bandwidth"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"split={path}: {error}", rule="a file that holds a profile", legal="a file from suite profile-split"
            ) from error

    @property
    def layers(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True, slots=True)
class DeviceStage:
    """Consecutive layers on `replicas` devices.

    Attributes:
        seconds: Time of a microbatch on the stage, divided by the replicas.
    """

    layers: range
    replicas: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DevicePartition:
    """Stages in order.

    Attributes:
        slowest: Seconds of the slowest stage or cut: the time per microbatch of a full pipeline.
    """

    stages: tuple[DeviceStage, ...]
    slowest: float

    @property
    def split(self) -> tuple[range, ...]:
        return tuple(stage.layers for stage in self.stages)

    def runnable(self) -> DevicePartition:
        """Return this plan. Raises Unsupported if its stages have different numbers of replicas."""
        replicas = [stage.replicas for stage in self.stages]
        if len(set(replicas)) > 1:
            raise Unsupported(
                f"a plan of {len(replicas)} stages with {', '.join(map(str, replicas))} replicas",
                rule="all stages have the same number of replicas",
                legal=f"{sum(replicas)} stages of 1 replica, or 1 stage of {sum(replicas)}",
            )
        return self


def any_replicas(profile: Profile, devices: int) -> DevicePartition:
    """Best plan for exactly `devices` devices, with a number of replicas per stage.

    Ties are broken by the fewest stages, then by the longest early stages. Raises InvalidRequest without a device.
    """
    if devices < 1:
        raise InvalidRequest(f"a plan for {devices} devices", rule="at least 1", legal="1")
    count, stage_seconds, cut = profile.layers, _stage_seconds(profile), _cut_seconds(profile)
    # best[n][d] = (slowest, stages, minus each end, replicas) for the first n layers on d devices
    Found = tuple[float, int, tuple[int, ...], tuple[int, ...]]
    best: list[dict[int, Found]] = [{} for _ in range(count + 1)]
    for stop in range(1, count + 1):
        for used in range(1, devices + 1):
            options: list[Found] = [(stage_seconds(0, stop, used), 1, (-stop,), (used,))]
            for start in range(1, stop):
                for replicas in range(1, used):
                    slowest, stages, ends, before = best[start][used - replicas]
                    worst = max(slowest, cut(start), stage_seconds(start, stop, replicas))
                    options.append((worst, stages + 1, (*ends, -stop), (*before, replicas)))
            best[stop][used] = min(options)
    best_split = best[count][devices]
    return _partition(profile, [-end for end in best_split[2]], best_split[3], best_split[0])


def equal(profile: Profile, stages: int, replicas: int = 1) -> DevicePartition:
    """Best plan of `stages` stages with `replicas` replicas each; one replica is a plain pipeline.

    Ties are broken by the smallest sum of squared stage times, then by the longest early stages. Raises InvalidRequest
    for more stages than layers.
    """
    count = profile.layers
    if not 1 <= stages <= count:
        raise InvalidRequest(
            f"stages={stages} for {count} layers",
            rule="every stage holds at least one layer",
            legal=f"stages={count}",
        )
    if replicas < 1:
        raise InvalidRequest(f"{replicas} replicas", rule="at least 1", legal="1")
    stage_seconds, cut = _stage_seconds(profile), _cut_seconds(profile)
    slowest = {n: stage_seconds(0, n, replicas) for n in range(1, count + 1)}
    for used in range(2, stages + 1):
        slowest = {
            n: min(max(slowest[at], cut(at), stage_seconds(at, n, replicas)) for at in range(used - 1, n))
            for n in range(used, count + 1)
        }
    bound = slowest[count]
    # least[n] = (sum of squares, minus each end) for the first n layers on the stages so far, nothing above the bound
    least: dict[int, tuple[float, tuple[int, ...]]]
    least = {
        n: (stage_seconds(0, n, replicas) ** 2, (-n,))
        for n in range(1, count + 1)
        if stage_seconds(0, n, replicas) <= bound
    }
    for _ in range(1, stages):
        step: dict[int, tuple[float, tuple[int, ...]]] = {}
        for at, (squares, ends) in least.items():
            for n in range(at + 1, count + 1):
                seconds = stage_seconds(at, n, replicas)
                if seconds > bound or cut(at) > bound:
                    continue
                option = (squares + seconds**2, (*ends, -n))
                step[n] = min(step.get(n, option), option)
        least = step
    return _partition(profile, [-end for end in least[count][1]], [replicas] * stages, bound)


def _stage_seconds(profile: Profile) -> Callable[[int, int, int], float]:
    """Seconds per microbatch of the layers from `start` to `stop` on `replicas` replicas, as a function."""
    seconds = list(accumulate(profile.seconds, initial=0.0))
    weights = list(accumulate(profile.weights, initial=0.0))

    def own(start: int, stop: int, replicas: int) -> float:
        reduced = 2 * (replicas - 1) * (weights[stop] - weights[start]) / profile.bandwidth
        return max(seconds[stop] - seconds[start], reduced) / replicas

    return own


def _cut_seconds(profile: Profile) -> Callable[[int], float]:
    """Seconds of the activation and its gradient through the cut before layer `start`, as a function."""
    return lambda start: 2 * profile.outputs[start - 1] / profile.bandwidth


def _partition(profile: Profile, ends: Sequence[int], replicas: Sequence[int], slowest: float) -> DevicePartition:
    stage_seconds = _stage_seconds(profile)
    layers = [range(start, stop) for start, stop in zip((0, *ends), ends, strict=False)]
    stages = (
        DeviceStage(r, count, stage_seconds(r.start, r.stop, count)) for r, count in zip(layers, replicas, strict=True)
    )
    return DevicePartition(tuple(stages), slowest)
