"""Microbenchmark executor: cost of a split backward pass, ours next to torch's.

One rank times the ops of a whole backward pass (B) and of both split ones (I and W) in interleaved rounds, and counts
the bytes that a microbatch holds between I and W. Needs no torch, because the parent process imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TypedDict

from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.figure import FigurePanel
from suite.core.protocols import ExecutorResult, Missing, Ready, Value, World
from suite.core.record import Metric, Source
from suite.runner.ranks.sampling import Sampling
from suite.stats.spread import relative_iqr

WHOLE, SPLITS, OPS = "whole", ("ours", "torch"), ("I", "W")
DTYPES = ("float64", "float32", "bfloat16")
_SAVED = 34 + 5 * 4  # bytes per entry of (b, s, h) that a block keeps; only an upper bound of a run's memory

Sweep = dict[str, list[list[list[float]]]]  # by way: for each width and op, seconds of each round


class SplitFacts(TypedDict):
    """Report of the rank.

    Attributes:
        sweeps: Times of every sweep since the last report.
        held: Bytes after a forward pass, and after op I, by way and width.
    """

    sweeps: Sequence[Sweep]
    held: Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class SplitPasses:
    """Study of split backward passes over the width of transformer blocks.

    Attributes:
        widths: Hidden sizes, rising, multiples of `heads`.
        blocks: Blocks of the stage.
        samples: Samples per microbatch.
        rounds: Samples of each op, width and round of the run.
    """

    widths: Sequence[int] = (64, 256)
    blocks: int = 3
    heads: int = 4
    sequence: int = 64
    samples: int = 4
    dtype: str = "float32"
    rounds: int = 5

    def __post_init__(self) -> None:
        for name in ("blocks", "heads", "sequence", "samples", "rounds"):
            if getattr(self, name) < 1:
                raise InvalidRequest(name, getattr(self, name), rule="a whole number, at least 1", legal=f"{name}=4")
        if not self.widths or self.widths[0] < 1 or any(width % self.heads for width in self.widths):
            rule = f"multiples of heads={self.heads} above 0, rising"
            raise InvalidRequest("widths", list(self.widths), rule=rule, legal=f"widths=[{16 * self.heads}]")
        if any(after <= before for before, after in pairwise(self.widths)):
            rising = str(sorted(set(self.widths))).replace(" ", "")
            raise InvalidRequest("widths", list(self.widths), rule="rising", legal=f"widths={rising}")
        if self.dtype not in DTYPES:
            raise UnknownName("dtype", self.dtype, DTYPES)

    def probe(self, config: RunConfig) -> Ready | Missing:
        return Ready()

    def check(self, config: RunConfig) -> None:
        """Raise InvalidRequest for several ranks."""
        ranks, executor = config.grid.build().size, config.executor.name or config.executor.kind
        if ranks != 1:
            raise InvalidRequest(f"{ranks} ranks under executor={executor}", rule="one rank times a stage", legal="1")

    def bytes_per_rank(self, config: RunConfig) -> list[int]:
        """Bytes of the widest stage in float64: weights, their gradients, and twice what its passes keep."""
        width = max(self.widths)
        rows = self.samples * self.sequence
        kept = _SAVED * rows * width + 4 * self.samples * self.heads * self.sequence**2
        return [self.blocks * (8 * 2 * 12 * width**2 + 2 * 4 * kept)]

    def on_rank(self, world: World, config: RunConfig) -> SplitSampler:
        """Sampler of the only rank."""
        return SplitSampler(world, self, config.seed)

    def summarize(self, config: RunConfig, facts: SplitFacts, sweeps: Sequence[Sequence[Sweep]]) -> ExecutorResult:
        """The part of a record that comes from `sweeps` (one per round, of the one rank)."""
        return study_result(self, facts, [ranks[0] for ranks in sweeps])


class SplitSampler(Sampling):
    """Sampler of a study of split passes. A batch is one sweep over all widths; its content is ignored."""

    def __init__(self, world: World, plan: SplitPasses, seed: int) -> None:
        from suite.microbench.split_timing import SplitTiming

        self.rounds = plan.rounds
        self.timings = [
            SplitTiming(
                width,
                blocks=plan.blocks,
                heads=plan.heads,
                sequence=plan.sequence,
                samples=plan.samples,
                dtype=plan.dtype,
                device=world.device,
                seed=seed,
            )
            for width in plan.widths
        ]
        self.held = {way: [timing.held(way) for timing in self.timings] for way in SPLITS}
        self.swept: list[Sweep] = []

    def train_batch(self, batch: Value | None = None) -> None:
        """Time one sweep."""
        swept = [timing.sweep(self.rounds) for timing in self.timings]
        self.swept.append({way: [ops[way] for ops in swept] for way in (WHOLE, *SPLITS)})

    def samples(self) -> SplitFacts:
        """Times of every sweep since the last call, and bytes."""
        swept, self.swept = self.swept, []
        return {"sweeps": swept, "held": self.held}


# -- record ------------------------------------------------------------------------------------------------------------


def study_result(plan: SplitPasses, facts: SplitFacts, rounds: Sequence[Sweep]) -> ExecutorResult:
    """Part of a record: samples by op and width, panels of medians, and both costs of a split."""
    names = {WHOLE: ["B"], **{way: [f"{op}, {way}" for op in OPS] for way in SPLITS}}
    samples = {
        name: [[s for sweep in rounds for s in sweep[way][at][op]] for at in range(len(plan.widths))]
        for way in names
        for op, name in enumerate(names[way])
    }
    metrics = {
        f"{name}, {width}": Metric("s", "lower", tuple(each[at]))
        for name, each in samples.items()
        for at, width in enumerate(plan.widths)
    }
    times = {name: list(map(median, each)) for name, each in samples.items()}
    # rounds are interleaved: the median of the ratios of a round leaves out the drift between rounds
    ratios = {
        way: [
            median((i + w) / b for i, w, b in zip(*(samples[name][at] for name in (*names[way], "B")), strict=True))
            for at in range(len(plan.widths))
        ]
        for way in SPLITS
    }
    held = {way: [after / forward for forward, after in facts["held"][way]] for way in SPLITS}
    for way in SPLITS:
        for at, width in enumerate(plan.widths):
            metrics[f"I + W over B, {way}, {width}"] = Metric("ratio", "lower", (ratios[way][at],))
            metrics[f"bytes between I and W, {way}, {width}"] = Metric("B", "lower", (facts["held"][way][at][1],))
    for at, width in enumerate(plan.widths):
        metrics[f"bytes between F and I, {width}"] = Metric("B", "lower", (facts["held"]["ours"][at][0],))
    spread = {name: list(map(relative_iqr, each)) for name, each in samples.items()}
    panels = [
        _panel(plan, "time of each op", "s", times),
        _panel(plan, "time of I and W over that of a whole backward pass", "", ratios),
        _panel(plan, "bytes held between I and W over those between F and I", "", held),
        _panel(plan, "middle half of the samples over the median", "percent", spread),
    ]
    notes = (
        f"{plan.blocks} blocks, {plan.samples} samples of {plan.sequence} tokens, {plan.dtype}",
        "gradients were compared with those of a whole backward pass before timing: ours bit for bit",
        "torch: stage_backward_input and stage_backward_weight of torch.distributed.pipelining on the same graph",
    )
    return ExecutorResult(Source.MEASURED, metrics=metrics, panels=panels, notes=notes)


def _panel(plan: SplitPasses, title: str, unit: str, curves: Mapping[str, Sequence[float]]) -> FigurePanel:
    widths = [str(width) for width in plan.widths]
    return FigurePanel(f"Split backward pass: {title}", unit, widths, curves, {}, axis="hidden size")
