"""AxoNN's probes against hand counts, and on a broken engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from suite.comm.p2p.threads import LoopbackTransport
from suite.core.claim import Evidence
from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, Op
from suite.engine.batch_slicing import BatchSlicer
from suite.engine.optim.update import Update
from suite.engine.states import flat_layout, state
from suite.engine.states.state import ModelState
from suite.memory.layout import Layout
from suite.papers.axonn import counts, formulas, probes, probes_memory, scaling
from suite.papers.common import claims
from suite.papers.common.answer import Papers, Question
from suite.schedule import MessageDriven
from tests.support.refusals import refused

CLAIMS = {claim.id: claim for claim in claims.load()}
PAPERS = Papers(CLAIMS, claims.settings(), {})
STATES = {"theta16": 2, "grad16": 2, "theta32": 4, "grad32": 4, "optimizer_state": 8}  # bytes per parameter


def query(*points: dict[str, float]) -> Question:
    return Question({}, points=points)


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    """A broken engine is not remembered as a whole one."""
    probes.work.cache_clear()
    probes_memory.memory.cache_clear()


# Bytes that are held


def bytes_of(name: str) -> list[float]:
    cases, _ = probes_memory.state_bytes(query(), None, state=name, entries=[7, 1000])
    return [case[0] for case in cases]


@pytest.mark.parametrize(("name", "each"), STATES.items())
def test_each_state_is_allocated_once(name: str, each: int) -> None:
    assert bytes_of(name) == [each, each]


def wider(layout: Callable[..., Layout], name: str) -> Callable[..., Layout]:
    """The layout with one of its states in double precision."""

    def double_precision(*args: Any, **kwargs: Any) -> Layout:
        states = layout(*args, **kwargs).states
        return Layout(tuple(dataclasses.replace(s, dtype="float64") if s.name == name else s for s in states))

    return double_precision


@pytest.mark.parametrize(
    ("name", "state_name", "each"), [("grad32", "gradient", 8), ("optimizer_state", "moment_1", 12)]
)
def test_a_state_of_another_type_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, state_name: str, each: int
) -> None:
    original = flat_layout.make_layout

    def changed(layout: Any, *args: Any) -> Layout:
        return original(wider(layout, state_name), *args)

    monkeypatch.setattr(state, "make_layout", changed)
    assert bytes_of(name) == [each, each]


def test_bytes_of_a_rank_by_hand() -> None:
    assert probes_memory.resident_bytes(query({"phi": 30}), None)[0] == [[20 * 30]]
    assert probes_memory.footprint(query({"bsize": 9}), None)[0] == [[16 * 9]]
    assert probes_memory.offloaded_bytes(query({"phi": 30, "bsize": 9}), None)[0] == [[4 * 30 + 16 * 9]]
    assert probes_memory.saving(query(), None, entries=100, buckets=[10])[0] == [[20 * 100 / (4 * 100 + 16 * 10)]]


def test_what_is_held_or_stepped_beside_the_states_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    hold, step = ModelState._allocate_states, ModelState._step

    def more(self: Any, moments: Any) -> None:
        hold(self, moments)
        self.beside = torch.zeros(self.entries, dtype=torch.float64)

    def copying(self: Any, rule: Any, at: slice, *rest: Any) -> None:
        copied = torch.zeros(at.stop - at.start)
        step(self, rule, at, *rest)
        del copied

    monkeypatch.setattr(ModelState, "_allocate_states", more)
    assert probes_memory.resident_bytes(query({"phi": 30}), None)[0] == [[28 * 30]]
    assert probes_memory.offloaded_bytes(query({"phi": 30, "bsize": 9}), None)[0] == [[12 * 30 + 16 * 9]]
    monkeypatch.setattr(ModelState, "_step", copying)
    assert probes_memory.footprint(query({"bsize": 9}), None)[0] == [[20 * 9]]


SMALL = {"hidden": 48, "heads": 4, "sequence": 16}


def test_all_memory_falls_by_less_than_the_states() -> None:
    ((total, states),) = probes_memory.below_states(
        query(), None, buckets=[2000], **{n: [v] for n, v in SMALL.items()}
    )[0]
    assert states == 5
    assert 2 < total < 5
    assert probes_memory.memory_ratio(query(), None, bucket=2000, **SMALL)[0][0][0] == pytest.approx(total, rel=0.02)


def test_states_that_stay_on_the_device_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes_memory, "AFTER", probes_memory.BEFORE)
    ((total, states),) = probes_memory.below_states(
        query(), None, buckets=[2000], **{n: [v] for n, v in SMALL.items()}
    )[0]
    assert states == 1
    assert total == pytest.approx(1, rel=0.02)


# Bytes sent


def test_two_bytes_of_each_parameter_are_reduced() -> None:
    assert probes.reduced_bytes(query(), None, entries=400)[0] == [[2.0]] * 4


def test_a_reduction_in_full_precision_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, start = Update._reduce, Update._start_chunk

    def widened(self: Any, work: Any, *args: Any) -> Any:
        narrow = self.state.gradient
        self.state.gradient = narrow.float()
        try:
            return work(self, *args)
        finally:
            self.state.gradient = narrow

    def all_sums(self: Any, spans: Any) -> Any:
        return iter(widened(self, lambda slicer, which: list(sums(slicer, which)), spans))

    monkeypatch.setattr(Update, "_reduce", all_sums)
    monkeypatch.setattr(Update, "_start_chunk", lambda self, *args: widened(self, start, *args))
    assert probes.reduced_bytes(query(), None, entries=400)[0] == [[4.0]] * 4


DEPTHS = query({"g_inter": 6, "g_base": 3, "gpus": 6})
LAYERS = query({"layers": 6, "samples": 12, "gpus": 6, "g_inter": 3})


def test_messages_and_flops_of_a_rank_inside_by_hand() -> None:
    """3 stages of two pipelines: of 12 samples 6 each, with 2 of 6 layers; two messages come and two go per sample."""
    each = 4 * probes.WIDTH
    assert probes.work(6, 3, 6, 12) == (6 * 2 * 6 * probes.WIDTH**2, 6 * 4 * each)
    assert probes.lemma_1(DEPTHS, None)[0] == [[2.0]]
    assert probes.lemma_2(LAYERS, None)[0] == [[12.0]]
    assert probes.theorem_3(DEPTHS, None)[0] == [[0.5]]


def test_replicas_that_all_take_the_whole_batch_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    original = BatchSlicer.__init__

    def whole(self: Any, place: Any, *args: Any, **more: Any) -> None:
        original(self, dataclasses.replace(place, replica=0, replicas=1), *args, **more)

    monkeypatch.setattr(BatchSlicer, "__init__", whole)
    assert probes.lemma_2(LAYERS, None)[0] == [[24.0]]
    assert probes.lemma_1(DEPTHS, None)[0] == [[1.0]]


def test_messages_of_another_type_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    send = LoopbackTransport.send

    def wide(self: Any, op: Op, value: Any) -> None:
        deep = len(self.homes) == 6 and op.kind is Kind.FORWARD
        send(self, op, tuple(tensor.double() for tensor in value) if deep else value)

    monkeypatch.setattr(LoopbackTransport, "send", wide)
    monkeypatch.setattr(torch.nn, "Linear", Narrowing)
    assert probes.lemma_1(DEPTHS, None)[0] == [[3.5]]  # of four messages three have twice the bytes: both gradients too
    assert probes.theorem_3(DEPTHS, None)[0][0][0] < 0.5


class Narrowing(torch.nn.Module):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(probes.WIDTH, probes.WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() @ self.weight


# Orders


def test_in_flight_by_hand() -> None:
    ops = [Op(0, kind, index) for kind, index in ((Kind.FORWARD, 0), (Kind.FORWARD, 1), (Kind.BACKWARD, 0))]
    assert probes.max_in_flight(ops) == 2
    assert counts.answered([*ops, Op(0, Kind.FORWARD, 2)]) == [2]


def test_the_first_rank_holds_as_many_as_there_are_stages() -> None:
    points = query({"G_inter": 2, "microbatches": 8}, {"G_inter": 4, "microbatches": 12})
    assert probes.pipeline_limit(points, None)[0] == [[2, 4]]
    assert probes.constant_in_flight(query(), None, stages=[3, 2], limits=[3, 4])[0] == [[3, 3, 3], [4, 4, 4]]


def test_a_rank_that_holds_fewer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = MessageDriven.in_flight

    def fewer(self: MessageDriven, place: Any, interval: FlushInterval) -> int:
        return max(1, bound(self, place, interval) - 1)

    monkeypatch.setattr(MessageDriven, "in_flight", fewer)
    assert probes.pipeline_limit(query({"G_inter": 4, "microbatches": 12}), None)[0] == [[3]]
    assert probes.constant_in_flight(query(), None, stages=[3], limits=[3])[0] == [[3, 2, 2]]


def test_steps_run_beside_reductions() -> None:
    """16 buckets in chunks of k: only the last k do not overlap a reduction."""
    settings = {"entries": 1600, "bucket": 100, "chunks": [1, 4]}
    assert probes.overlap(query(), None, **settings)[0] == [[0, 15], [0, 12]]  # type: ignore[arg-type]


def test_reductions_that_are_waited_for_at_once_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Update._start_chunk

    def waited(self: Any, *args: Any) -> Any:
        handles = start(self, *args)
        for handle in handles:
            handle.wait()
        return handles

    monkeypatch.setattr(Update, "_start_chunk", waited)
    assert probes.overlap(query(), None, entries=1600, bucket=100, chunks=[1])[0] == [[0, 0]]


# Gradients and losses


def test_division_before_the_sum_keeps_every_entry() -> None:
    assert probes.loss_predivision(query(), None, microbatches=[8, 2], replicas=[1, 4])[0] == [[1000, 1000]] * 2
    assert probes.finite_entries(4, 2, loss_factor=8) == 0


def test_an_engine_that_does_not_divide_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlushInterval, "group_size", lambda self, index: 1)
    assert probes.loss_predivision(query(), None, microbatches=[8], replicas=[1])[0] == [[1000, 0]]


def test_a_case_that_needs_no_division_is_refused() -> None:
    with refused(InvalidRequest, subject="1000 entries stay finite", rule="every entry overflows without the division"):
        probes.loss_predivision(query(), None, microbatches=[2], replicas=[1])


def apart() -> float:
    cases, _ = probes.loss_curves(query(), None, inter=2, data=2)
    assert len(cases) == probes.LOSSES
    assert cases[-1][0] < cases[0][0] - 0.1, "it learns"
    return float(max(abs(ours - right) / right for right, ours in cases))


def test_losses_are_those_of_pytorch() -> None:
    assert apart() <= 1e-5


def test_replicas_that_do_not_add_their_gradients_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Update, "_start_chunk", lambda self, chunk, done: [])
    monkeypatch.setattr(Update, "reduces", property(lambda self: False))
    assert apart() > 1e-4


# Compared with the engine


def test_printed_phases_by_hand() -> None:
    (bare,), (least,) = formulas.phases_gain(query(), PAPERS)[0]
    assert float(bare) == pytest.approx(100 * (1 - 38.37 / 46.70))
    assert float(least) == pytest.approx(100 * (1 - (38.37 + 4.32 / 2.5) / 46.70))


def test_order_of_printed_gains() -> None:
    names = ["axonn.fig11.gain_over_deepspeed", "axonn.fig11.gain_over_megatron"]
    ((first, second, third),) = formulas.order_by_gains(query(), PAPERS, over=names)[0]
    assert first == 1
    assert [float(second), float(third)] == pytest.approx([1 / (1 - 0.1147), 1 / (1 - 0.1814)])


@pytest.mark.parametrize("name", [name for name in CLAIMS if name.startswith("axonn.")])
def test_a_measured_answer_says_on_what(name: str) -> None:
    for row in CLAIMS[name].answers:
        assert row.evidence is not Evidence.MEASURED or row.stand_in


def test_both_readings_of_thirteen_percent_are_one() -> None:
    """The abstract's and Figure 6's are the same value: they cannot have two verdicts."""
    abstract, figure = CLAIMS["axonn.abstract.memopt_performance_gain"], CLAIMS["axonn.fig6.batch_time_improvement"]
    assert (abstract.value, abstract.check, abstract.neutral) == (figure.value, figure.check, figure.neutral)
    assert abstract.answers[0] == figure.answers[0]


def test_percents_are_rounded_as_the_row_says() -> None:
    plan = SimpleNamespace(microbatches=1, grid=SimpleNamespace(inter=1))
    lab: Any = SimpleNamespace(
        weak=lambda model, system: SimpleNamespace(percent_of_peak=41.5), weak_plan=lambda model, system: plan
    )
    percents = partial(scaling.whole_percents, query(), lab, system="axonn", highest=43.5)
    assert [percents(rounding=rounding)[0][0][0] for rounding in ("", "down", "up")] == [41.5, 41, 42]
    assert [percents(rounding=rounding)[2][0][0] for rounding in ("", "down", "up")] == [43.5, 43, 44]
