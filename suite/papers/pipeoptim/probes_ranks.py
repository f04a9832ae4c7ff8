"""Probes for PipeOptim's claims on orders, versions and predictions, on ranks that are threads of this process.

Each system runs the schedule, the policy and the update interval of its config. The version that a pass has read is
found by comparing its tensors with every version, and a rank's memory by its tensors; neither the ledger nor the
policy is used. Counts, orders, bytes and equal tensors do not depend on what is trained: a stack of square layers on
random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import isqrt
from typing import Any

import torch
from torch import nn

from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.trace import CATEGORY, Span
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.papers.common.answer import Cases, Question, distinct_cases
from suite.papers.pipeoptim import systems
from suite.papers.pipeoptim.counts import by_definition
from suite.papers.pipeoptim.probes import one_thread
from suite.papers.pipeoptim.systems import Configured
from suite.weights import Latest

DEPTH = 4  # stages of every published run
SAMPLES = 4  # of a mini-batch, which is one microbatch
WIDTH = 8
LR = 0.05
PASSES = (Kind.FORWARD, Kind.BACKWARD)
PASS_SPANS = tuple(CATEGORY[kind] for kind in PASSES)
RULES: Mapping[str, SGD | Adam] = {
    "sgdm": SGD(LR, momentum=0.9),
    "adam": Adam(0.01),
    "adamw": AdamW(0.01, weight_decay=0.0),  # of whose decay a prediction knows nothing (P8)
}
UNKNOWN = -1  # no version that ever was
Pass = tuple[Kind, int]  # and the mini-batch


# -- what ranks do ---------------------------------------------------------------------------------------------------


def layer(number: int, stages: int, width: int, dtype: torch.dtype) -> nn.Module:
    """A square weight, equal on every rank; all layers but the last end with a tanh."""
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
        weights: Bytes of its own.
        held: The most bytes of weights at once, copies and predictions among them.
        versions: Its weights after as many updates.
        read: Of each pass, the updates made and the weights read.
        predicted: Entries that each pass predicted.
        spans: Of its passes.
    """

    stage: int
    weights: int = 0
    held: int = 0
    versions: dict[int, torch.Tensor] = field(default_factory=dict)
    read: dict[Pass, tuple[int, torch.Tensor]] = field(default_factory=dict)
    predicted: dict[Pass, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def version(self, kind: Kind, index: int) -> int:
        """The version that a pass has read, by its tensors."""
        _, weights = self.read[kind, index]
        matches = [number for number, tensor in self.versions.items() if torch.equal(tensor, weights)]
        return matches[0] if matches else UNKNOWN

    @property
    def order(self) -> list[Pass]:
        """Its passes, as they began."""
        spans = sorted(self.spans, key=lambda span: span.start)
        return [(span.op.kind, span.op.index) for span in spans if span.op]


class TensorWatch:
    """Looks at the tensors of an engine while it runs."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seen = engine, WatchedRank(engine.place.stage)
        self.seen.weights = size_of(parameter.data for parameter in engine.state.model_states.parameters)
        self.now: Pass | None = None
        for kind in PASSES:
            setattr(
                engine.state.stage, kind.name.lower(), self._pass(getattr(engine.state.stage, kind.name.lower()), kind)
            )
        store: Any = engine.state.versions
        store._predict = self._prediction(store._predict)
        self.look()

    def _pass(self, compute: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
        def watched(index: int, *args: Any, **kwargs: Any) -> Any:
            self.look()
            self.seen.read[kind, index] = self._updates, flat(p.data for p in self.engine.state.model_states.parameters)
            return compute(index, *args, **kwargs)

        return watched

    def _prediction(self, predict: Callable[..., Any]) -> Callable[..., Any]:
        def watched(key: Any, into: Sequence[torch.Tensor]) -> Any:
            op = self.engine.state.versions.passes[-1][0]
            entries = sum(tensor.numel() for tensor in into)
            self.seen.predicted[op.kind, op.index] = self.seen.predicted.get((op.kind, op.index), 0) + entries
            return predict(key, into)

        return watched

    @property
    def _updates(self) -> int:
        return int(self.engine.state.model_states.rule.updates)

    def look(self) -> None:
        """Keeps the newest version, and counts what is held. Between two looks there is one pass or one update."""
        state, store = self.engine.state.model_states, self.engine.state.versions
        self.seen.versions.setdefault(self._updates, flat(state.rule.weights))
        copies = [*store.stored.values(), *store.free, *([store.prediction] if store.prediction else [])]
        bytes_now = size_of(tensor for weights in copies for tensor in weights)
        self.seen.held = max(self.seen.held, self.seen.weights + bytes_now)


def size_of(tensors: Iterator[torch.Tensor]) -> int:
    """Bytes of what these tensors lie in, once each."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values())


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).clone()


def ran(
    told: Configured,
    stages: int,
    count: int,
    *,
    rule: Any = RULES["sgdm"],
    width: int = WIDTH,
    dtype: torch.dtype = torch.float64,
    pieces: int = 1,
    samples: int = SAMPLES,
) -> list[WatchedRank]:
    """Train `count` mini-batches of `pieces` microbatches each on ranks of one stage; what each was seen to do."""
    layers = [partial(layer, number, stages, width, dtype) for number in range(stages)]
    data = mini_batches(count, width, dtype, samples)

    def rank(world: Any) -> WatchedRank:
        engine = Engine(
            layers,
            loss=nn.functional.cross_entropy,
            optimizer=rule,
            microbatch=samples // pieces,
            grid=Grid(inter=stages),
            schedule=told.schedule,
            weights=told.policy,
            update_interval=told.every,
            world=world,
        )
        watch = TensorWatch(engine)
        spans: dict[Op | None, Span] = {}
        for loss in engine.train(data):
            watch.seen.losses.append(loss)
            spans |= {span.op: span for span in engine.state.trace if span.category in PASS_SPANS}  # of the last work
        watch.look()
        watch.seen.spans = list(spans.values())
        engine.close()
        return watch.seen

    with one_thread():
        return threads.run(stages, rank, deadline=60.0)


@cache
def known(told: Configured, stages: int, count: int, rule: str = "sgdm", bytes_each: int = 0) -> list[WatchedRank]:
    """The same, once. bytes_each: of a stage's weights in single precision; 0: some, in double precision."""
    if not bytes_each:
        return ran(told, stages, count, rule=RULES[rule])
    return ran(told, stages, count, rule=RULES[rule], width=isqrt(bytes_each // 4), dtype=torch.float32)


def system_ran(system: str, stages: int = DEPTH, rule: str = "sgdm", bytes_each: int = 0) -> list[WatchedRank]:
    """A system as it is configured, through a stream that is full for as many updates as there are stages."""
    configured = systems.configured(system, stages)
    return known(configured, stages, (2 * stages + 4) * (configured.every or 1), rule, bytes_each)


def steady(ranks: Sequence[WatchedRank], every: int | None) -> range:
    """Mini-batches that found a full pipeline and, where an update sums several, an update before theirs."""
    return range(max(len(ranks), every or 1), 1 + max(index for _, index in ranks[0].read))


# -- orders ----------------------------------------------------------------------------------------------------------


def schedule(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    cases = []
    for stages in (DEPTH, 2, 8):
        count = 3 * stages
        for rank in known(systems.configured(system, stages), stages, count):
            places = {each: place for place, each in enumerate(rank.order)}
            cases += [[place, places[each]] for place, each in enumerate(by_definition(stages, rank.stage, count))]
    return distinct_cases(cases), "1F1B in words beside the passes of each rank's trace; 4, 2 and 8 stages"


def naive(question: Question, source: Any) -> tuple[Cases, str]:
    """Down the stages and back, mini-batch after mini-batch: the place of a pass among all that ranks began."""
    spans = [span for rank in ran(systems.configured("gpipe", DEPTH), DEPTH, DEPTH) for span in rank.spans]
    begun = [span.op for span in sorted(spans, key=lambda span: span.start)]
    expected = []
    for index in range(DEPTH):
        expected += [Op(stage, Kind.FORWARD, index) for stage in range(DEPTH)]
        expected += [Op(stage, Kind.BACKWARD, index) for stage in reversed(range(DEPTH))]
    cases = [[place, begun.index(op)] for place, op in enumerate(expected)]
    return cases, f"{DEPTH} mini-batches in one piece each on {DEPTH} ranks, by their traces"


# -- versions --------------------------------------------------------------------------------------------------------


def held_bytes(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    values = [system_ran(system, int(p["D"]), bytes_each=int(p["M"]))[int(p["rank"])].held for p in question.points]
    return [values], "most bytes of weights that a rank held, stage weights of M bytes"


def versions(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    """By the points of the row where it has some, else on every stage."""
    if question.points:
        ranks = [system_ran(system, int(p["D"]))[int(p["rank"])] for p in question.points]
        return [[rank.held / rank.weights for rank in ranks]], "most bytes that a rank held, over those of its weights"
    return [[rank.held / rank.weights] for rank in system_ran(system)], "the same, stage by stage"


def most(question: Question, source: Any) -> tuple[Cases, str]:
    """GPipe has four microbatches."""
    values = []
    for system in question.terms:
        configured = systems.configured(system, DEPTH)
        ranks = ran(configured, DEPTH, 2, pieces=SAMPLES) if configured.every is None else system_ran(system)
        values.append(max(rank.held for rank in ranks))
    return [values], "most bytes of weights that a rank held, the largest of the ranks, stages of equal weights"


def used(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    """Versions and mini-batches count from 1 in the paper, from 0 here."""
    values = []
    for point in question.points:
        rank = system_ran(system, int(point["D"]))[int(point["rank"])]
        values.append(rank.version(Kind.FORWARD, int(point["minibatch"]) - 1) + 1)
    return [values], "the version whose tensors the forward pass computed with"


def plain(stages: int) -> list[WatchedRank]:
    """PipeDream's pipeline without its stash: every pass reads the newest weights."""
    configured = systems.configured("pipedream", stages)
    return known(Configured(configured.schedule, Latest("recompute"), configured.every), stages, 2 * stages + 4)


def between(question: Question, source: Any) -> tuple[Cases, str]:
    setting = question.setting
    rank, index = plain(int(setting["pipeline_stages"]))[int(setting["stage"])], int(setting["minibatch"]) - 1
    distance = rank.version(Kind.BACKWARD, index) - rank.version(Kind.FORWARD, index)
    return [[distance]], "versions between those whose tensors the two passes computed with"


def inconsistent(question: Question, source: Any) -> tuple[Cases, str]:
    values = []
    for point in question.points:
        ranks = plain(int(point["D"]))
        rank = ranks[int(point["rank"])]
        differ = {_differ(rank, index) for index in steady(ranks, 1)}
        assert len(differ) == 1
        values.append(float(differ.pop()))
    return [values], "whether the tensors of the two passes differ, of every steady mini-batch"


def _differ(rank: WatchedRank, index: int) -> bool:
    first, second = (rank.read[kind, index][1] for kind in PASSES)
    return not torch.equal(first, second)


def stale(question: Question, source: Any, *, system: str, passes: Sequence[str]) -> tuple[Cases, str]:
    """Updates that what a pass read lacks of those which its gradient meets, a case per kind of pass."""
    cases = []
    for name in passes:
        places = [(int(point["D"]), int(point["rank"])) for point in question.points]
        cases.append([_stale(system, depth, place, Kind[name.upper()]) for depth, place in places])
    return cases, f"of steady {' and '.join(passes)} passes, by the tensors that they computed with"


def _stale(system: str, stages: int, stage: int, kind: Kind) -> float:
    return _late(system_ran(system, stages), stage, kind, systems.configured(system, stages).every)


def _late(ranks: Sequence[WatchedRank], stage: int, kind: Kind, every: int | None) -> float:
    """The same of every steady mini-batch; not a number where it is not."""
    group = every or 1
    lags = {index // group - ranks[stage].version(kind, index) for index in steady(ranks, every)}
    return lags.pop() if len(lags) == 1 else float("nan")


def serial() -> list[WatchedRank]:
    configured = systems.configured("pipedream", 1)
    return known(Configured(configured.schedule, Latest("recompute"), 1), 1, 6)


def double_stale(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    places = [(stage, kind) for stage in range(DEPTH) for kind in PASSES]
    cases = [[_late(serial(), 0, kind, 1), _stale(system, DEPTH, stage, kind)] for stage, kind in places]
    return cases, "of steady passes, forward and backward, stage by stage, by the tensors that they computed with"


def consistent(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    ranks, every = system_ran(system), systems.configured(system, DEPTH).every
    cases = [[rank.version(kind, index) for kind in PASSES] for rank in ranks for index in steady(ranks, every)]
    return distinct_cases(cases), "versions whose tensors both passes computed with; -1: none that ever was"


def stashing(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    """The forward pass's version, the same with the updates that were predicted, and the backward pass's."""
    cases = []
    for rank in system_ran(system):
        for index in sorted({index for _, index in rank.read}):
            first, second = (rank.version(kind, index) for kind in PASSES)
            cases.append([first, first + bool(rank.predicted.get((Kind.FORWARD, index))), second])
    return distinct_cases(cases), "by the tensors that both passes of every mini-batch computed with"


def backward_fresh(question: Question, source: Any) -> tuple[Cases, str]:
    ranks = system_ran("pipeoptim", int(question.setting["pipeline_stages"]))
    values = [rank.version(Kind.BACKWARD, 4) + 1 for rank in (*serial(), *ranks)]
    return [values], "the version whose tensors the backward pass of mini-batch 5 computed with, from 1"


# -- predictions -----------------------------------------------------------------------------------------------------


def steps_ahead(rank: WatchedRank, index: int) -> float:
    """How many of the last update's changes lie between the newest weights and those that the forward pass read."""
    updates, read = rank.read[Kind.FORWARD, index]
    newest, change = rank.versions[updates], rank.versions[updates] - rank.versions[updates - 1]
    return float((read - newest) @ change / (change @ change))


def version_difference(question: Question, source: Any) -> tuple[Cases, str]:
    values = [_ahead(int(point["D"]), int(point["rank"])) for point in question.points]
    return [values], "changes of the last update between the newest weights and those read, of a steady mini-batch"


def figure_1e(question: Question, source: Any) -> tuple[Cases, str]:
    setting = question.setting
    ahead = _ahead(int(setting["pipeline_stages"]), int(setting["stage"]))
    return [[ahead]], "changes of the last update between the newest weights and those read, of a steady mini-batch"


def _ahead(stages: int, stage: int) -> float:
    return steps_ahead(system_ran("pipeoptim", stages)[stage], stages + 1)


def last_stage(question: Question, source: Any, *, depths: Sequence[int]) -> tuple[Cases, str]:
    counts = [[len(system_ran("pipeoptim", depth)[-1].predicted)] for depth in depths]
    return counts, "passes of the last rank that called for a prediction, a case per depth"


def predictions_made(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    """Passes of a steady mini-batch that predict, stage by stage; the last stage is left out, as the counts do."""
    counts = _predicting(system)
    counts_text = ", ".join(f"{each:g}" for each in counts)
    return [[each] for each in counts[:-1]], f"every stage but the last; on all stages {counts_text}"


def _predicting(system: str) -> list[float]:
    ranks = system_ran(system)
    microbatches = steady(ranks, systems.configured(system, DEPTH).every)
    return [sum(index in microbatches for _, index in rank.predicted) / len(microbatches) for rank in ranks]


def prediction_cost(question: Question, source: Any) -> tuple[Cases, str]:
    """Weights that are predicted for a steady mini-batch, all stages together."""
    values = []
    for system in question.terms:
        ranks = system_ran(system)
        microbatches = steady(ranks, systems.configured(system, DEPTH).every)
        entries = sum(count for rank in ranks for (_, index), count in rank.predicted.items() if index in microbatches)
        values.append(entries / len(microbatches))
    return [values], f"{WIDTH * WIDTH} weights on each of {DEPTH} stages, counted as ranks predict them"


def by_the_optimizer(question: Question, source: Any) -> tuple[Cases, str]:
    """The largest weight change of the last update, compared with the predicted change divided by s, for each
    optimizer and stage.
    """
    cases = []
    for name in RULES:
        for rank in system_ran("pipeoptim", rule=name)[:-1]:
            index = DEPTH + 1
            updates, read = rank.read[Kind.FORWARD, index]
            change = rank.versions[updates] - rank.versions[updates - 1]
            largest = int(change.abs().argmax())
            further = DEPTH - 1 - rank.stage
            cases.append([float(change[largest]), float((read - rank.versions[updates])[largest]) / further])
    return cases, f"{', '.join(RULES)}; what ranks computed with, {DEPTH} stages"


# -- a synchronous pipeline ------------------------------------------------------------------------------------------


def gpipe(question: Question, source: Any, *, microbatches: int) -> tuple[Cases, str]:
    """Losses of every mini-batch, then the share of right answers by the weights at the end."""
    count, samples = 12, 56
    ranks = ran(systems.configured("gpipe", DEPTH), DEPTH, count, pieces=microbatches, samples=samples)
    data = mini_batches(count, WIDTH, torch.float64, samples)
    whole = nn.Sequential(*(layer(number, DEPTH, WIDTH, torch.float64) for number in range(DEPTH)))
    optimizer = torch.optim.SGD(whole.parameters(), lr=LR, momentum=0.9)
    cases = []
    for (inputs, targets), piped in zip(data, ranks[0].losses, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(whole(inputs), targets)
        loss.backward()
        optimizer.step()
        cases.append([float(loss.detach()), piped])
    reference = nn.Sequential(*(layer(number, DEPTH, WIDTH, torch.float64) for number in range(DEPTH)))
    for parameter, rank in zip(reference.parameters(), ranks, strict=True):
        parameter.data = rank.versions[count].view_as(parameter)
    cases.append([_right(whole, data), _right(reference, data)])
    return cases, f"plain PyTorch beside {DEPTH} ranks and {microbatches} microbatches, SGD with momentum"


def _right(network: nn.Module, data: Sequence[tuple[Any, Any]]) -> float:
    with torch.no_grad():
        right = [network(inputs).argmax(1) == targets for inputs, targets in data]
    return float(torch.cat(right).double().mean())
