"""Probes for PipeOptim's claims on orders, versions and predictions, by ranks on threads of this process.

Each system runs its configured schedule, policy and update interval. The version that a pass reads is identified by
comparing its tensors with all versions, and memory is counted in tensors; neither the ledger nor the policy is used.
Orders, counts and bytes do not depend on the network, so a stack of square layers is trained on random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import isqrt
from typing import Any

import torch
from torch import nn

from suite.claims.answer import Cases, Question, distinct_cases
from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.trace import CATEGORY, Span
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.papers.measured import PASSES, before, one_thread, storages, train_plainly
from suite.papers.pipeoptim import systems
from suite.papers.pipeoptim.counts import by_definition
from suite.papers.pipeoptim.systems import Configured
from suite.weights import Latest

DEPTH = 4  # stages of every published run
SAMPLES = 4  # per mini-batch of one microbatch
WIDTH = 8
LR = 0.05
PASS_SPANS = tuple(CATEGORY[kind] for kind in PASSES)
RULES: Mapping[str, SGD | Adam] = {
    "sgdm": SGD(LR, momentum=0.9),
    "adam": Adam(0.01),
    "adamw": AdamW(0.01, weight_decay=0.0),  # the prediction leaves out the decay (P8)
}
UNKNOWN = -1  # weights that equal no version
Pass = tuple[Kind, int]  # kind and mini-batch


# -- watched ranks ---------------------------------------------------------------------------------------------------


def layer(number: int, stages: int, width: int, dtype: torch.dtype) -> nn.Module:
    """A square layer, initialised equally on every rank; all layers but the last end with tanh."""
    linear = nn.Linear(width, width, bias=False, dtype=dtype)
    entries = torch.randn(width, width, generator=torch.Generator().manual_seed(number), dtype=dtype)
    linear.weight.data.copy_(entries / width**0.5)
    return linear if number == stages - 1 else nn.Sequential(linear, nn.Tanh())


def mini_batches(count: int, width: int, dtype: torch.dtype, samples: int = SAMPLES) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(samples, width, generator=generator, dtype=dtype),
            torch.randint(0, width, (samples,), generator=generator),
        )
        for _ in range(count)
    ]


@dataclass
class WatchedRank:
    """Observations on one rank.

    Attributes:
        stage: Its stage.
        weight_bytes: Bytes of its own weights.
        peak_bytes: Peak bytes of weights, copies and predictions included.
        versions: Its weights by number of updates.
        read: Number of updates and weights read, by pass.
        predicted: Number of predicted weights, by pass.
        spans: Spans of its passes.
        losses: Loss of every mini-batch.
    """

    stage: int
    weight_bytes: int = 0
    peak_bytes: int = 0
    versions: dict[int, torch.Tensor] = field(default_factory=dict)
    read: dict[Pass, tuple[int, torch.Tensor]] = field(default_factory=dict)
    predicted: dict[Pass, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def version(self, kind: Kind, index: int) -> int:
        """The version whose tensors a pass read, or UNKNOWN."""
        _, weights = self.read[kind, index]
        matches = [number for number, tensor in self.versions.items() if torch.equal(tensor, weights)]
        return matches[0] if matches else UNKNOWN

    @property
    def order(self) -> list[Pass]:
        """Its passes in order of their start."""
        spans = sorted(self.spans, key=lambda span: span.start)
        return [(span.op.kind, span.op.index) for span in spans if span.op]


class TensorWatch:
    """Records the weights of an engine while it runs."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rank = engine, WatchedRank(engine.place.stage)
        self.rank.weight_bytes = sum(
            storages(parameter.data for parameter in engine.state.model_states.parameters).values()
        )
        for kind in PASSES:
            before(engine.state.stage, kind.name.lower(), partial(self._read, kind))
        before(engine.state.versions, "_predict", self._predicted)
        self.record_versions()

    def _read(self, kind: Kind, index: int, *_: Any, **__: Any) -> None:
        self.record_versions()
        self.rank.read[kind, index] = self._updates, flat(p.data for p in self.engine.state.model_states.parameters)

    def _predicted(self, _: Any, into: Sequence[torch.Tensor]) -> None:
        op = self.engine.state.versions.passes[-1][0]
        entries = sum(tensor.numel() for tensor in into)
        self.rank.predicted[op.kind, op.index] = self.rank.predicted.get((op.kind, op.index), 0) + entries

    @property
    def _updates(self) -> int:
        return int(self.engine.state.model_states.rule.updates)

    def record_versions(self) -> None:
        """Store the newest version and update the peak; called between any two passes or updates."""
        state, store = self.engine.state.model_states, self.engine.state.versions
        self.rank.versions.setdefault(self._updates, flat(state.rule.weights))
        copies = [*store.stored.values(), *store.free, *([store.prediction] if store.prediction else [])]
        bytes_now = sum(storages(tensor for weights in copies for tensor in weights).values())
        self.rank.peak_bytes = max(self.rank.peak_bytes, self.rank.weight_bytes + bytes_now)


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).clone()


def run_ranks(
    system: Configured,
    stages: int,
    count: int,
    *,
    rule: Any = RULES["sgdm"],
    width: int = WIDTH,
    dtype: torch.dtype = torch.float64,
    pieces: int = 1,
    samples: int = SAMPLES,
) -> list[WatchedRank]:
    """Train `count` mini-batches of `pieces` microbatches on one rank per stage and return the observations."""
    layers = [partial(layer, number, stages, width, dtype) for number in range(stages)]
    data = mini_batches(count, width, dtype, samples)

    def rank(world: Any) -> WatchedRank:
        engine = Engine(
            layers,
            loss=nn.functional.cross_entropy,
            optimizer=rule,
            microbatch=samples // pieces,
            grid=Grid(inter=stages),
            schedule=system.schedule,
            weights=system.policy,
            update_interval=system.every,
            world=world,
        )
        watch = TensorWatch(engine)
        spans: dict[Op | None, Span] = {}
        for loss in engine.train(data):
            watch.rank.losses.append(loss)
            spans |= {
                span.op: span for span in engine.state.trace if span.category in PASS_SPANS
            }  # of the last flush interval
        watch.record_versions()
        watch.rank.spans = list(spans.values())
        engine.close()
        return watch.rank

    with one_thread():
        return threads.run(stages, rank)


@cache
def cached_run(
    system: Configured, stages: int, count: int, rule: str = "sgdm", bytes_each: int = 0
) -> list[WatchedRank]:
    """Cached `run_ranks`. With `bytes_each`, a stage has so many bytes of float32 weights, else float64 weights."""
    if not bytes_each:
        return run_ranks(system, stages, count, rule=RULES[rule])
    return run_ranks(system, stages, count, rule=RULES[rule], width=isqrt(bytes_each // 4), dtype=torch.float32)


def run_system(system: str, stages: int = DEPTH, rule: str = "sgdm", bytes_each: int = 0) -> list[WatchedRank]:
    """A configured system on a stream long enough for the full pipeline to see one update per stage."""
    configured = systems.configured(system, stages)
    return cached_run(configured, stages, (2 * stages + 4) * (configured.every or 1), rule, bytes_each)


def run_steady(system: str) -> tuple[list[WatchedRank], range]:
    """Ranks of a configured system, and the mini-batches that enter its full pipeline."""
    ranks = run_system(system)
    return ranks, steady(ranks, systems.configured(system, DEPTH).every)


def steady(ranks: Sequence[WatchedRank], every: int | None) -> range:
    """Mini-batches that enter a full pipeline after at least one update."""
    return range(max(len(ranks), every or 1), 1 + max(index for _, index in ranks[0].read))


# -- orders ----------------------------------------------------------------------------------------------------------


def schedule(question: Question, source: Any, *, system: str) -> Cases:
    """1F1B by definition and the passes in each rank's trace; 4, 2 and 8 stages."""
    cases = []
    for stages in (DEPTH, 2, 8):
        count = 3 * stages
        for rank in cached_run(systems.configured(system, stages), stages, count):
            places = {each: place for place, each in enumerate(rank.order)}
            cases += [[place, places[each]] for place, each in enumerate(by_definition(stages, rank.stage, count))]
    return distinct_cases(cases)


def naive(question: Question, source: Any) -> tuple[Cases, str]:
    """Position of each pass in the naive order, and among all passes that ranks began."""
    spans = [span for rank in run_ranks(systems.configured("gpipe", DEPTH), DEPTH, DEPTH) for span in rank.spans]
    begun = [span.op for span in sorted(spans, key=lambda span: span.start)]
    expected = []
    for index in range(DEPTH):
        expected += [Op(stage, Kind.FORWARD, index) for stage in range(DEPTH)]
        expected += [Op(stage, Kind.BACKWARD, index) for stage in reversed(range(DEPTH))]
    cases = [[place, begun.index(op)] for place, op in enumerate(expected)]
    return cases, f"{DEPTH} mini-batches of one microbatch on {DEPTH} ranks, by their traces"


# -- versions --------------------------------------------------------------------------------------------------------


def peak_bytes(system: str, stages: int, stage: int, size: int) -> int:
    """Peak bytes of weights on a rank, for stage weights of M bytes."""
    return run_system(system, stages, bytes_each=size)[stage].peak_bytes


def live_versions(system: str, stages: int, stage: int) -> float:
    """Peak bytes of weights on a rank over those of its own."""
    rank = run_system(system, stages)[stage]
    return rank.peak_bytes / rank.weight_bytes


def live_versions_by_stage(question: Question, source: Any, *, system: str) -> Cases:
    """Peak bytes of weights on a rank over those of its own, per stage."""
    return [[live_versions(system, DEPTH, stage)] for stage in range(DEPTH)]


def most_weight_memory(question: Question, source: Any) -> Cases:
    """Peak bytes of weights by system; GPipe runs four microbatches. Peak bytes of weights on the fullest rank, for
    stages of equal weights.
    """

    def peak(system: str) -> int:
        configured = systems.configured(system, DEPTH)
        ranks = run_ranks(configured, DEPTH, 2, pieces=SAMPLES) if configured.every is None else run_system(system)
        return max(rank.peak_bytes for rank in ranks)

    return [[peak(system) for system in question.terms]]


def forward_version(system: str, stages: int, stage: int, minibatch: int) -> int:
    """Version whose tensors the forward pass computed with.

    The paper counts versions and mini-batches from 1, the engine from 0.
    """
    return run_system(system, stages)[stage].version(Kind.FORWARD, minibatch - 1) + 1


def run_without_stash(stages: int) -> list[WatchedRank]:
    """PipeDream's schedule without its stash: every pass reads the newest weights. One stage trains serially."""
    configured = systems.configured("pipedream", stages)
    return cached_run(Configured(configured.schedule, Latest("recompute"), configured.every), stages, 2 * stages + 4)


def updates_between(stages: int, stage: int, minibatch: int) -> int:
    """Difference of the versions whose tensors the two passes computed with."""
    forward, backward = (run_without_stash(stages)[stage].version(kind, minibatch - 1) for kind in PASSES)
    return backward - forward


def inconsistent(stages: int, stage: int) -> float:
    """Whether the tensors of the two passes differ, for every steady mini-batch."""
    ranks = run_without_stash(stages)
    read = ranks[stage].read
    (equal,) = {torch.equal(*(read[kind, index][1] for kind in PASSES)) for index in steady(ranks, 1)}
    return float(not equal)


def missing_updates(question: Question, source: Any, *, system: str, passes: Sequence[str]) -> tuple[Cases, str]:
    """Updates missing from the weights of steady passes, one case per kind of pass."""
    places = [(int(point["D"]), int(point["rank"])) for point in question.points]
    cases = [[_stale(system, *place, Kind[name.upper()]) for place in places] for name in passes]
    return cases, f"updates missing in steady {' and '.join(passes)} passes, by the tensors that they computed with"


def _stale(system: str, stages: int, stage: int, kind: Kind) -> float:
    return _late(run_system(system, stages), stage, kind, systems.configured(system, stages).every)


def _late(ranks: Sequence[WatchedRank], stage: int, kind: Kind, every: int | None) -> float:
    """Missing updates of steady passes of one kind; nan if they differ between mini-batches."""
    group = every or 1
    lags = {index // group - ranks[stage].version(kind, index) for index in steady(ranks, every)}
    return lags.pop() if len(lags) == 1 else float("nan")


def double_stale(question: Question, source: Any, *, system: str) -> Cases:
    """Updates missing in steady forward and backward passes per stage, by the tensors that they computed with."""
    places = [(stage, kind) for stage in range(DEPTH) for kind in PASSES]
    return [[_late(run_without_stash(1), 0, kind, 1), _stale(system, DEPTH, stage, kind)] for stage, kind in places]


def consistent(question: Question, source: Any, *, system: str) -> Cases:
    """Versions whose tensors both passes computed with; -1 for no version."""
    ranks, steady_batches = run_steady(system)
    return distinct_cases([[rank.version(kind, i) for kind in PASSES] for rank in ranks for i in steady_batches])


def stashing(question: Question, source: Any, *, system: str) -> Cases:
    """Version of the forward pass, the same plus predicted updates, and version of the backward pass. Versions by the
    tensors that both passes of every mini-batch computed with.
    """

    def versions(rank: WatchedRank, index: int) -> list[int]:
        first, second = (rank.version(kind, index) for kind in PASSES)
        return [first, first + bool(rank.predicted.get((Kind.FORWARD, index))), second]

    seen = ((rank, index) for rank in run_system(system) for index in sorted({index for _, index in rank.read}))
    return distinct_cases([versions(*each) for each in seen])


def backward_fresh(question: Question, source: Any) -> Cases:
    """Version whose tensors the backward pass of mini-batch 5 computed with, counted from 1."""
    ranks = run_system("pipeoptim", int(question.setting["pipeline_stages"]))
    return [[rank.version(Kind.BACKWARD, 4) + 1 for rank in (*run_without_stash(1), *ranks)]]


# -- predictions -----------------------------------------------------------------------------------------------------


def version_difference(stages: int, stage: int) -> float:
    """Changes of the last update between the newest weights and those read, of a steady mini-batch."""
    rank = run_system("pipeoptim", stages)[stage]
    updates, read = rank.read[Kind.FORWARD, stages + 1]
    newest, change = rank.versions[updates], rank.versions[updates] - rank.versions[updates - 1]
    return float((read - newest) @ change / (change @ change))


def last_stage(question: Question, source: Any, *, depths: Sequence[int]) -> Cases:
    """Passes of the last rank that called for a prediction, one case per depth."""
    return [[len(run_system("pipeoptim", depth)[-1].predicted)] for depth in depths]


def predictions_made(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    """Predictions per steady mini-batch and stage, without the last stage."""
    ranks, steady_batches = run_steady(system)
    counts = [sum(index in steady_batches for _, index in rank.predicted) / len(steady_batches) for rank in ranks]
    return [[each] for each in counts[:-1]], f"every stage but the last, which makes {counts[-1]:g}"


def prediction_cost(question: Question, source: Any) -> tuple[Cases, str]:
    """Weights predicted per steady mini-batch on all stages."""

    def cost(system: str) -> float:
        ranks, steady_batches = run_steady(system)
        entries = (count for rank in ranks for (_, index), count in rank.predicted.items() if index in steady_batches)
        return sum(entries) / len(steady_batches)

    note = f"{WIDTH * WIDTH} weights on each of {DEPTH} stages, counted in the ranks' predictions"
    return [[cost(system) for system in question.terms]], note


def by_the_optimizer(question: Question, source: Any) -> tuple[Cases, str]:
    """The largest weight change of the last update, compared with the predicted change divided by s, for each
    optimizer and stage.
    """
    cases = []
    for name in RULES:
        for rank in run_system("pipeoptim", rule=name)[:-1]:
            index = DEPTH + 1
            updates, read = rank.read[Kind.FORWARD, index]
            change = rank.versions[updates] - rank.versions[updates - 1]
            largest = int(change.abs().argmax())
            further = DEPTH - 1 - rank.stage
            cases.append([float(change[largest]), float((read - rank.versions[updates])[largest]) / further])
    return cases, f"{', '.join(RULES)}; weights that ranks computed with, {DEPTH} stages"


# -- a synchronous pipeline ------------------------------------------------------------------------------------------


def gpipe(question: Question, source: Any, *, microbatches: int) -> tuple[Cases, str]:
    """Loss of every mini-batch, then the final share of correct answers, by plain PyTorch and by GPipe."""
    count, samples = 12, 56
    ranks = run_ranks(systems.configured("gpipe", DEPTH), DEPTH, count, pieces=microbatches, samples=samples)
    data = mini_batches(count, WIDTH, torch.float64, samples)
    serial_network = nn.Sequential(*(layer(number, DEPTH, WIDTH, torch.float64) for number in range(DEPTH)))
    optimizer = torch.optim.SGD(serial_network.parameters(), lr=LR, momentum=0.9)
    alone = train_plainly(serial_network, optimizer, nn.functional.cross_entropy, data)
    cases = [[*pair] for pair in zip(alone, ranks[0].losses, strict=True)]
    piped_network = nn.Sequential(*(layer(number, DEPTH, WIDTH, torch.float64) for number in range(DEPTH)))
    for parameter, rank in zip(piped_network.parameters(), ranks, strict=True):
        parameter.data = rank.versions[count].view_as(parameter)
    cases.append([_accuracy(serial_network, data), _accuracy(piped_network, data)])
    return cases, f"plain PyTorch, and {DEPTH} ranks with {microbatches} microbatches, SGD with momentum"


def _accuracy(network: nn.Module, data: Sequence[tuple[Any, Any]]) -> float:
    with torch.no_grad():
        correct = [network(inputs).argmax(1) == targets for inputs, targets in data]
    return float(torch.cat(correct).double().mean())
