"""Asynchronous pipelines with every layout of model states, over a checkpoint, and rejected settings.

Mixed precision predicts full-precision weights and rounds; SAMO's states predict kept entries and expand.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.comm.p2p import threads
from suite.conformance.reference import SEED
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
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.drawn import cells, drawn
from tests.support.masked import FixedMask, random_mask
from tests.support.refusals import fault, refused
from tests.support.resuming import rank_state

CASE = gpt_case("dropout", "float32", tied=False, dropout=0.2, layers=4)
TICKET = random_mask(CASE, 0.8)
FORMS: dict[str, dict[str, Any]] = {
    "mixed": {"half": "bfloat16"},
    "mixed in buckets": {"half": "bfloat16", "bucket_numel": 333, "buckets_per_reduction": 2},
    "static scale": {"half": "bfloat16", "loss_scaler": DynamicLossScaler(start=64.0, least=64.0, most=64.0)},
    "samo": {"pruning": True},
    "samo in buckets": {"pruning": True, "bucket_numel": 77, "memory": partial(compressed, bucket=77)},
    "mixed samo": {"pruning": True, "half": "bfloat16"},
    "activation_checkpointing": {"activation_checkpointing": 1},
}
POLICIES: dict[str, tuple[Any, int, Any]] = {
    "pipeoptim": (Predict(), 1, Adam(0.01)),
    "pipeoptim rmsprop": (Predict("inflight"), 1, RMSprop(0.01)),
    "pipeoptim nesterov": (Predict("authors"), 1, SGD(0.05, momentum=0.9, nesterov=True)),
    "pipedream": (Stash(), 1, AdamW(0.01)),
    "2bw": (DoubleBuffer(), 4, SGD(0.05, momentum=0.9)),
    "spectrain": (SpecTrain(), 1, SGD(0.05, momentum=0.9)),
}


def settings(case: Case, policy: Any, every: int | None, rule: Any, **more: Any) -> dict[str, Any]:
    if more.pop("pruning", None):
        more["pruning"] = Pruning(FixedMask(TICKET), 0.8)
    return {
        "loss": case.loss,
        "optimizer": rule,
        "microbatch": case.microbatch,
        "weights": policy,
        "update_interval": every,
        "seed": SEED,
        **more,
    }


def alone(case: Case = CASE, **arguments: Any) -> Engine:
    return Engine(case.layers, world=threads.LoopbackWorld(threads.Hub(1), 0), **arguments)


def epoch(case: Case, count: int = 9, replicas: int = 1, first: int = 0) -> list[Any]:
    return [case.batch(first + i, 1, replicas) for i in range(count)]


@pytest.mark.parametrize(("system", "form"), cells(POLICIES, FORMS, n=5), ids=str)
def test_every_state_layout_equals_its_replay(system: str, form: str) -> None:
    """Law 3 bit for bit, including PipeOptim's schedule on SAMO's states."""
    policy, every, rule = POLICIES[system]
    grid = Grid(inter=4) if form == "mixed samo" else Grid(inter=2, data=2)
    arguments = settings(CASE, policy, every, rule, **FORMS[form])
    batches = epoch(CASE, 8, grid.data)

    def rank(world: Any) -> Any:
        engine = Engine(CASE.layers, grid=grid, world=world, **arguments)
        losses = list(engine.train(batches))
        return rank_state(engine, losses)

    replay = Replay(CASE.layers, grid=grid, **arguments)
    losses = list(replay.train(batches))
    assert len(set(losses)) == len(losses)
    for number, (ours, engine) in enumerate(zip(threads.run(grid.size, rank), replay.engines, strict=True)):
        assert ours.losses == losses
        ours.compare(rank_state(engine), f"{system} {form} rank {number}")


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
    predict(state, rule, 3, into)
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


@pytest.mark.parametrize("system", drawn(POLICIES, n=2))
def test_law_8_a_resumed_stream_is_bit_identical(system: str, tmp_path: Path) -> None:
    """The checkpoint is saved between two streams, where 2BW and weight stashing hold only the newest version."""
    policy, every, rule = POLICIES[system]
    for case, grid in ((CASE, Grid(inter=3)), (odd_case(torch.float32), Grid(inter=2, data=2))):
        arguments = settings(case, policy, every, rule)
        first, second = epoch(case, 8, grid.data), epoch(case, 5, grid.data, first=50)

        def train(
            world: Any, parts: Any, case: Case = case, grid: Grid = grid, arguments: Any = arguments, **files: Path
        ) -> Any:
            engine = Engine(case.layers, grid=grid, world=world, **arguments)
            if "load" in files:
                engine.load(files["load"])
            losses = [loss for part in parts for loss in engine.train(part)]
            if "save" in files:
                engine.save(files["save"])
            return rank_state(engine, losses)

        right = threads.run(grid.size, partial(train, parts=(first, second)))
        threads.run(grid.size, partial(train, parts=(first,), save=tmp_path / f"{grid}"))
        resumed = threads.run(grid.size, partial(train, parts=(second,), load=tmp_path / f"{grid}"))
        for number, (one, other) in enumerate(zip(right, resumed, strict=True)):
            assert one.losses[8:] == other.losses
            one.compare(other, f"{system} {grid} rank {number}")


def test_weight_stashing_works_with_offloaded_states() -> None:
    """A policy without prediction fetches no state before a pass, so offload is legal."""
    away = {"memory": partial(offloaded, bucket=400, half=None), "bucket_numel": 400}
    losses = []
    for more in ({}, away):
        replay = Replay(CASE.layers, grid=Grid(inter=3), **settings(CASE, Stash(), 1, Adam(0.01), **more))
        losses.append(list(replay.train(epoch(CASE))))
    assert losses[0] == losses[1]


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


def test_losses_arrive_in_order_during_stream() -> None:
    """Losses arrive every few batches, equal on every rank."""

    def rank(world: Any) -> Any:
        engine = Engine(CASE.layers, grid=Grid(inter=3), world=world, **settings(CASE, Stash(), 1, SGD(0.05)))
        arguments = []
        for _ in engine.train(epoch(CASE, 30)):
            arguments.append(len(engine.state.versions.passes))
        return arguments

    for arguments in threads.run(3, rank):
        assert len(arguments) == 30
        assert arguments == sorted(arguments)
        assert arguments[0] < 30 * 3 / 2  # long before the stream ends


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


def test_mask_search_of_a_replay_equals_that_of_ranks() -> None:
    grid = Grid(inter=2, data=2)
    method = EarlyBird(epoch=1, window=2, distance=1.0)
    arguments = settings(CASE, None, None, Adam(0.01)) | {"pruning": Pruning(method, 0.5)}
    batches = epoch(CASE, 6, grid.data)

    def rank(world: Any) -> Any:
        engine = Engine(CASE.layers, grid=grid, world=world, **arguments)
        losses = list(engine.train(batches))
        assert engine.state.pruned_after in range(1, 6)
        return rank_state(engine, losses)

    replay = Replay(CASE.layers, grid=grid, **arguments)
    losses = list(replay.train(batches))
    for ours, engine in zip(threads.run(grid.size, rank), replay.engines, strict=True):
        assert ours.losses == losses
        ours.compare(rank_state(engine), "a search")


def test_replay_evaluation_matches_ranks() -> None:
    """Also for a pipeline that drains, with clipping and a loss scale of all stages."""
    case = gpt_case("tied", "float32")
    arguments = settings(
        case, None, None, Adam(0.01), tied=case.ties, half="bfloat16", loss_scaler=DynamicLossScaler(), clip_norm=0.5
    )
    batches = [case.batch(i, 3, 2) for i in range(3)]
    grid = Grid(inter=3, data=2)

    def rank(world: Any) -> Any:
        engine = Engine(case.layers, grid=grid, world=world, **arguments)
        return [*engine.train(batches), engine.evaluate(batches)]

    replay = Replay(case.layers, grid=grid, **arguments)
    expected = [*replay.train(batches), replay.evaluate(batches)]
    assert threads.run(grid.size, rank) == [expected] * grid.size


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


def test_replay_ranks_have_separate_loss_scales() -> None:
    case = gpt_case("tied", "float32", layers=2)
    batches = [case.batch(i, 2, 1) for i in range(5)]

    def arguments() -> dict[str, Any]:
        scaler = DynamicLossScaler(start=2.0**8, patience=2)
        return settings(case, None, None, SGD(0.1), tied=case.ties, half="bfloat16", loss_scaler=scaler)

    one = alone(case, **arguments())
    right = list(one.train(batches))
    replay = Replay(case.layers, grid=Grid(inter=2), **arguments())
    assert list(replay.train(batches)) == pytest.approx(right, rel=1e-2)
    assert {engine.state.loss_scaler.scale for engine in replay.engines} == {one.state.loss_scaler.scale} == {2.0**10}


@pytest.mark.parametrize("policy", drawn([Predict("inflight"), Latest("recompute"), Stash()], n=1), ids=str)
def test_stream_with_batch_norm_and_empty_stage(policy: Any) -> None:
    """Kept and recomputed graphs, and a stage without weights."""
    layers: list[Any] = [
        lambda: nn.Linear(5, 6),
        lambda: nn.BatchNorm1d(6),
        nn.Tanh,
        lambda: nn.Linear(6, 3),
        nn.Tanh,
        nn.Identity,
    ]
    arguments: dict[str, Any] = {
        "loss": nn.functional.cross_entropy,
        "optimizer": SGD(0.1, momentum=0.9),
        "microbatch": 4,
        "weights": policy,
        "seed": SEED,
    }
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(4, 5, generator=generator), torch.randint(0, 3, (4,), generator=generator)) for _ in range(9)
    ]
    for grid, every in ((Grid(inter=3), 1), (Grid(inter=3), 2), (Grid(inter=6), 1)):
        arguments["update_interval"] = every
        replay = Replay(layers, grid=grid, **arguments)
        losses = list(replay.train(batches))

        def rank(world: Any, grid: Grid = grid, every: int = every) -> list[float]:
            return list(Engine(layers, grid=grid, world=world, **arguments | {"update_interval": every}).train(batches))

        assert threads.run(grid.size, rank) == [losses] * grid.size


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


def test_prediction_does_not_write_rule_state() -> None:
    class Own(SGD):
        def drift(self, state: Any) -> torch.Tensor:
            return state.moments["velocity"]

    rule = Own(0.1, momentum=0.9)
    state = RuleState([torch.zeros(3)], {"velocity": torch.ones(3)}, 1)
    assert predicted(rule, state, 3).tolist() == [3.0] * 3
    assert state.moments["velocity"].tolist() == [1.0] * 3
    engine = alone(**settings(CASE, Predict(), 1, rule))
    list(engine.train(epoch(CASE, 3)))
    before = engine.state.model_states.rule.moments["velocity"].clone()
    predict(engine.state.model_states, rule, 3, [torch.empty_like(p) for p in engine.state.model_states.parameters])
    assert torch.equal(engine.state.model_states.rule.moments["velocity"], before)


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
