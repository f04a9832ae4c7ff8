"""Laws 3 and 8: pipelines with every layout of model states equal their replay and resume; rejected settings.

Mixed precision predicts full-precision weights and rounds; SAMO's states predict kept entries and expand.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import SGD, Adam, AdamW, RMSprop, RuleState, predicted
from suite.engine.optim.prediction import PIECE, predict
from suite.engine.pruning.settings import Pruning
from suite.engine.replay.replay import Replay
from suite.memory.layout import compressed, offloaded
from suite.pruning.early_bird import EarlyBird
from suite.weights.policy import Latest, Predict
from tests.support.asynchronous import engine_settings
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.drawn import cells, drawn, generator
from tests.support.masked import FixedMask, random_mask
from tests.support.refusals import fault, refused
from tests.support.resuming import RankState, rank_state

CASE = gpt_case("dropout", "float32", tied=False, dropout=0.2, layers=4)
GRIDS = [Grid(), Grid(inter=2), Grid(inter=3), Grid(inter=4), Grid(inter=2, data=2)]
MOMENTUM = SGD(0.05, momentum=0.9)
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixed": {"half": "bfloat16"},
    "mixed in buckets": {"half": "bfloat16", "bucket_numel": 333, "buckets_per_reduction": 2},
    "static scale": {"half": "bfloat16", "loss_scaler": DynamicLossScaler(start=64.0, least=64.0, most=64.0)},
    "samo": {"pruning": True},
    "samo in buckets": {"pruning": True, "bucket_numel": 77, "memory": partial(compressed, bucket=77)},
    "mixed samo": {"pruning": True, "half": "bfloat16"},
    "activation_checkpointing": {"activation_checkpointing": 1},
}
DRAINED: dict[str, dict[str, Any]] = {
    "growing scale": {"half": "float16", "loss_scaler": DynamicLossScaler(start=2.0**19, patience=2)},
    "clipped": {"half": "bfloat16", "loss_scaler": DynamicLossScaler(), "clip_norm": 0.5},
    "search": {"pruning": Pruning(EarlyBird(epoch=1, window=2, distance=1.0), 0.5)},
}
AWAY = {"memory": partial(offloaded, bucket=400, half=None), "bucket_numel": 400}
POLICIES: dict[str, tuple[Callable[[str], Any], list[Any]]] = {  # by kind of backward graph; update rules
    "pipeoptim": (lambda graph: Predict("paper", graph), [Adam(0.01), AdamW(0.01), RMSprop(0.01), MOMENTUM]),
    "pipeoptim_inflight": (lambda graph: Predict("inflight", graph), [Adam(0.01), RMSprop(0.01)]),
    "pipeoptim_authors": (lambda graph: Predict("authors", graph), [SGD(0.05, momentum=0.9, nesterov=True)]),
    "pipedream": (Stash, [AdamW(0.01), MOMENTUM]),
    "2bw": (DoubleBuffer, [MOMENTUM, AdamW(0.01)]),
    "spectrain": (SpecTrain, [MOMENTUM]),
    "latest": (Latest, [MOMENTUM, Adam(0.01)]),
}


def settings(case: Case, policy: Any, every: int | None, rule: Any, **more: Any) -> dict[str, Any]:
    if more.get("pruning") is True:
        more["pruning"] = Pruning(FixedMask(random_mask(case, 0.8)), 0.8)
    return engine_settings(case, policy, rule, every) | more


def alone(case: Case = CASE, **arguments: Any) -> Engine:
    return Engine(case.layers, world=threads.LoopbackWorld(threads.Hub(1), 0), **arguments)


def epoch(case: Case, count: int = 9, replicas: int = 1, first: int = 0) -> list[Any]:
    return [case.batch(first + i, 1, replicas) for i in range(count)]


def draw(choice: random.Random) -> tuple[Case, Grid, dict[str, Any]]:
    """Model, grid and settings of a pipeline that streams, or drains between batches."""
    pick = choice.choice
    grid, system, odd = pick(GRIDS), pick([*POLICIES, "drained"]), odd_case(torch.float32)
    if system == "drained":
        case, form = pick([CASE, odd, gpt_case("tied", "float32")]), pick([*FORMS.values(), *DRAINED.values()])
        return case, grid, settings(case, None, None, pick([MOMENTUM, Adam(0.01)]), tied=case.ties, **form)
    case, form = pick([CASE, odd]), pick([*FORMS.values(), *([AWAY] if system == "pipedream" else [])])
    make, rules = POLICIES[system]
    every = pick([1, 2]) if system in ("2bw", "latest", "pipeoptim_inflight") else 1
    every *= grid.inter if system == "2bw" else 1
    return case, grid, settings(case, make(pick(["recompute", "keep", "swap"])), every, pick(rules), **form)


@pytest.mark.parametrize("number", drawn(range(200), n=6))
def test_ranks_equal_their_replay_and_resume_bit_identically(number: int, tmp_path: Path) -> None:
    """Laws 3 and 8 on threads: two streams, with a checkpoint between them, and an evaluation.

    Most pipelines of one stage are serial.
    """
    case, grid, arguments = draw(generator("replays", number))
    print(case.name, grid, arguments)  # of a failed test
    first, second = epoch(case, 9, grid.data), epoch(case, 6, grid.data, first=50)
    held_out = [case.batch(90, 2, grid.data)]

    def train(world: Any, *epochs: list[Any], more: dict[str, Any] = {}, **files: Path) -> RankState:  # noqa: B006
        engine = Engine(case.layers, grid=grid, world=world, **copy.deepcopy(arguments | more))
        if "load" in files:
            engine.load(files["load"])
        losses = [loss for each in epochs for loss in engine.train(each)]
        if "save" in files:
            engine.save(files["save"])
        return rank_state(engine, [*losses, engine.evaluate(held_out)])

    ranks = threads.run(grid.size, lambda world: train(world, first, second))
    replay = Replay(case.layers, grid=grid, **copy.deepcopy(arguments))
    losses = [*replay.train(first), *replay.train(second), replay.evaluate(held_out)]
    threads.run(grid.size, lambda world: train(world, first, save=tmp_path))
    resumed = threads.run(grid.size, lambda world: train(world, second, load=tmp_path))
    for rank, again, engine in zip(ranks, resumed, replay.engines, strict=True):
        assert rank.losses == losses
        rank.compare(rank_state(engine), "replay")
        assert again.losses == losses[len(first) :]
        rank.compare(again, "resumed")
    if grid.size == 1 and arguments["update_interval"] == 1 and serial_on_one_stage(arguments["weights"]):
        (serial,) = threads.run(1, lambda world: train(world, first, second, more=SERIAL))
        assert serial.losses == losses
        assert all(torch.equal(tensor, ranks[0].tensors[name]) for name, tensor in serial.tensors.items())


def serial_on_one_stage(policy: Any) -> bool:
    """Whether a pipeline of one stage is serial: not with 2BW's delay, nor with the authors' number of updates."""
    return not isinstance(policy, DoubleBuffer) and not (isinstance(policy, Predict) and policy.s == "authors")


SERIAL: dict[str, Any] = {"weights": None, "update_interval": None}


@pytest.mark.parametrize(
    ("rule", "form"),
    cells(
        [SGD(0.05, momentum=0.9), Adam(0.01), AdamW(0.01, predict_decay=True)],
        ["mixed", "mixed in buckets", "samo", "samo in buckets", "mixed samo"],
        n=4,
    ),
    ids=str,
)
def test_prediction_on_any_layout_matches_rule(form: str, rule: Any) -> None:
    """Master weights are predicted, then rounded; pruned weights have predicted kept entries and zeros."""
    engine = alone(**settings(CASE, Predict(), 1, rule, **FORMS[form]))
    list(engine.train(epoch(CASE, 3)))
    state = engine.state.model_states
    into = [torch.full_like(p.data, torch.nan) for p in state.parameters]
    before = [p.detach().clone() for p in state.parameters]
    moments_before = {name: moment.clone() for name, moment in state.rule.moments.items()}
    predict(state, rule, 3, into)
    assert all(torch.equal(moment, moments_before[name]) for name, moment in state.rule.moments.items())
    for parameter, prediction, live in zip(state.parameters, into, before, strict=True):
        assert torch.equal(parameter, live)
        exported = state.export(parameter)
        weight = exported["weight"] if state.half else parameter.data
        moments = {n: exported[n].reshape(-1) for n in rule.states}
        if "index" in exported:
            index = exported["index"].long()
            weight = weight.reshape(-1) if state.half else weight.reshape(-1)[index]
        flat = predicted(rule, RuleState([weight.reshape(-1)], moments, state.rule.updates), 3)
        right = flat.to(parameter.dtype)
        if "index" in exported:
            right = torch.zeros(parameter.numel(), dtype=parameter.dtype).index_put_((index,), right)
        assert torch.equal(prediction.reshape(-1), right)
    assert any(not torch.equal(prediction, live) for prediction, live in zip(into, before, strict=True))


def test_stream_reads_batches_lazily() -> None:
    """Batches are not read far ahead of the losses: after a loss, only a few more batches were read."""
    engine = alone(**settings(CASE, Predict(), 1, SGD(0.05)))
    read: list[int] = []

    class Loader:
        def __len__(self) -> int:
            return 40

        def __iter__(self) -> Any:
            for number in range(40):
                read.append(number)
                yield CASE.batch(number, 1, 1)

    losses = engine.train(Loader())
    assert read == []
    for number in range(40):
        assert isinstance(next(losses), float)
        assert len(read) <= number + 2
    assert list(losses) == []
    assert engine.state.updates == 40


def test_update_interval_may_differ_from_batch_size() -> None:
    """Losses are means over batches, for any update interval."""
    case = gpt_case("untied", "float64", tied=False)
    batches = [case.batch(i, 3, 1) for i in range(4)]
    for every in (1, 2, 3, 5):
        rate = SGD(0.0)
        engine = alone(case, **settings(case, Predict("inflight"), every, rate))
        losses = list(engine.train(batches))
        assert losses == pytest.approx([engine.evaluate([batch]) for batch in batches], rel=1e-12)
        assert engine.state.updates == -(-12 // every)


# -- what is refused ---------------------------------------------------------------------------------------------------


class Sign:
    """An update rule without a drift."""

    states = ("velocity",)

    def step(self, state: Any, grad: torch.Tensor) -> None:
        state.add_to_weights(grad.sign_().mul_(-0.01))
        state.updates += 1


MOMENTUM_ONLY = "this policy predicts weights from the momentum of SGD only"
REFUSED: dict[str, tuple[Any, int | None, Any, dict[str, object]]] = {
    "SpecTrain with Adam": (SpecTrain(), 1, Adam(0.01), fault("weights", rule=MOMENTUM_ONLY)),
    "SpecTrain, plain SGD": (SpecTrain(), 1, SGD(0.1), fault("weights", rule=MOMENTUM_ONLY)),
    "SpecTrain with RMSprop": (SpecTrain(), 1, RMSprop(0.1, momentum=0.9), fault("weights", rule=MOMENTUM_ONLY)),
    "2BW, m too small": (
        *(DoubleBuffer(), 1, SGD(0.1)),
        fault(
            subject="2BW on 2 stages with update_interval=1",
            rule="an update sums at least as many microbatches as there",
            legal="update_interval=2",
        ),
    ),
    "no drift": (
        *(Predict(), 1, Sign()),
        fault(subject="Predict with Sign, which cannot predict weights", rule="drift_states and drift()"),
    ),
    "a flush": (Predict(), None, SGD(0.1), fault("update_interval", None, subject="s=paper with a flush")),
}


@pytest.mark.parametrize(("policy", "every", "rule", "expected"), REFUSED.values(), ids=REFUSED)
def test_unsupported_asynchronous_settings_are_rejected(
    policy: Any, every: int | None, rule: Any, expected: dict[str, object]
) -> None:
    arguments = settings(CASE, policy, every, rule)
    with refused(InvalidRequest, **expected) as refusal:
        threads.run(2, lambda world: Engine(CASE.layers, grid=Grid(inter=2), world=world, **arguments))
    assert refusal.value.legal


def test_stream_shorter_than_pipeline_is_rejected() -> None:
    replay = Replay(CASE.layers, grid=Grid(inter=4), **settings(CASE, Predict(), 1, SGD(0.1)))
    with refused(InvalidRequest, subject="a stream of 3 microbatches through 4 stages", legal="4 microbatches"):
        list(replay.train(epoch(CASE, 3)))
    assert len(list(replay.train(epoch(CASE, 4)))) == 4


def test_single_batches_and_interrupted_streams_are_rejected() -> None:
    engine = alone(**settings(CASE, Stash(), 1, SGD(0.1)))
    drains = "an asynchronous pipeline does not drain between batches"
    for call, legal in (("train_batch", "train(batches)"), ("gradients", "")):
        with refused(Unsupported, subject=f"{call} with update_interval=1", rule=drains, legal=legal):
            getattr(engine, call)(CASE.batch(0, 1, 1))
    losses = engine.train(epoch(CASE))
    next(losses)
    with refused(InvalidRequest, subject="after a batch that was interrupted", rule="until the pipeline drains"):
        next(engine.train(epoch(CASE)))
    with refused(InvalidRequest, subject="save() within a stream", rule="until the pipeline drains"):
        engine.save("nowhere")


# -- what a replay must not lose ---------------------------------------------------------------------------------------


def test_evaluation_between_batches_does_not_change_replay() -> None:
    """In a pipeline that drains. Within a stream an evaluation is rejected, as stages are at different updates."""
    case = gpt_case("untied", "float32", tied=False)
    replay = Replay(case.layers, grid=Grid(inter=3), **settings(case, None, None, SGD(0.1)))
    batches = [case.batch(i, 2, 1) for i in range(8)]
    losses = [(loss, replay.evaluate(batches[:2])) for loss in replay.train(batches)]
    assert len(losses) == 8
    streamed = Replay(case.layers, grid=Grid(inter=3), **settings(case, Stash(), 1, SGD(0.1)))
    going = streamed.train(epoch(case, 30))
    first = next(going)
    with refused(InvalidRequest, subject="an evaluation within a stream", rule="until the pipeline drains"):
        streamed.evaluate(batches[:1])
    assert len([first, *going]) == 30
    assert streamed.evaluate(batches[:1]) > 0


def test_replay_preserves_shared_weights() -> None:
    """Two modules of the list share a weight, which makes a tie; an asynchronous replay rejects it."""

    def shared() -> list[nn.Module]:
        torch.manual_seed(0)
        first, between, last = nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)
        last.weight = first.weight
        return [first, nn.Sequential(between, nn.Linear(4, 4)), last]

    arguments: dict[str, Any] = {"loss": nn.functional.mse_loss, "optimizer": SGD(0.5), "microbatch": 2}
    batches = [(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(4)]
    one = Engine(shared(), world=threads.LoopbackWorld(threads.Hub(1), 0), **arguments)
    replay = Replay(shared(), grid=Grid(inter=3), **arguments)
    assert list(replay.train(batches)) == pytest.approx(list(one.train(batches)), rel=1e-6)
    with refused(Unsupported, "tied", rule="never at the same update"):
        Replay(shared(), grid=Grid(inter=3), weights=Stash(), update_interval=1, **arguments)


def test_last_loss_comes_after_drain() -> None:
    """An engine can continue after a caller took as many losses as batches."""

    def rank(world: Any) -> list[bool]:
        engine = Engine(CASE.layers, grid=Grid(inter=2), world=world, **settings(CASE, Stash(), 1, SGD(0.1)))
        drained = []
        for count in (7, 8, 9, 16):
            losses = engine.train(epoch(CASE, count))
            for _ in range(count):
                next(losses)
            drained.append(engine.state.drained)
        return drained

    assert threads.run(2, rank) == [[True] * 4] * 2


def test_stream_resumes_only_with_same_settings(tmp_path: Path) -> None:
    """Depth, update interval and weight policy determine the numbers of a stream."""
    first = alone(**settings(CASE, Stash(), 1, SGD(0.1)))
    list(first.train(epoch(CASE)))
    first.save(tmp_path)
    for policy, every in ((Predict("inflight"), 2), (Predict(), 1), (None, None)):
        with refused(InvalidRequest, rule="a checkpoint resumes"):
            alone(**settings(CASE, policy, every, SGD(0.1))).load(tmp_path)
    alone(**settings(CASE, Stash(), 1, SGD(0.1))).load(tmp_path)


def test_mask_search_checks_every_update_of_stream() -> None:
    """An epoch of two updates also ends within streams of seven."""
    pruned = []
    for count in (6, 7):
        engine = alone(**settings(CASE, Stash(), 1, SGD(0.0)) | {"pruning": Pruning(EarlyBird(epoch=2), 0.5)})
        for number in range(8):
            list(engine.train(epoch(CASE, count, first=10 * number)))
        pruned.append(engine.state.pruned_after is not None)
    assert pruned == [True, True]


def test_prediction_allocates_little_besides_buffer() -> None:
    """The bytes equal the bytes of Table II's versions for any stage size."""
    layers = [lambda: nn.Linear(1500, 1000, bias=False)]
    for rule in (AdamW(0.01, predict_decay=True), RMSprop(0.01), SGD(0.1, momentum=0.9, direction="next")):
        engine = Engine(
            layers,
            loss=nn.functional.mse_loss,
            optimizer=rule,
            microbatch=1,
            weights=Predict(),
            update_interval=1,
            world=threads.LoopbackWorld(threads.Hub(1), 0),
        )
        list(engine.train([(torch.ones(1, 1500), torch.ones(1, 1000))] * 2))
        into = [torch.empty_like(p.data) for p in engine.state.model_states.parameters]
        with MemoryTracker() as live:
            predict(engine.state.model_states, rule, 3, into)
        assert live.peak <= 4 * 4 * PIECE < 4 * 1500 * 1000
