"""SAMO's bytes and messages in the engine, by hand and on a changed engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from suite.core.claim import Claim, Evidence
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, Place
from suite.engine import train_state
from suite.engine.batch_slicing import BatchSlicer
from suite.engine.states.state import ModelState
from suite.memory import layout
from suite.papers.common import claims
from suite.papers.common.answer import Answer, Papers, Question, answer
from suite.papers.common.claims import FOLDER, parse_claim
from suite.papers.samo import counts, figures, formulas
from suite.papers.samo import probes_messages as sent
from suite.papers.samo import probes_states as bytes_of
from suite.schedule import MessageDriven, OneFOneB
from suite.workload import Transformer
from tests.support.published_runs import lab

CLAIMS: dict[str, Claim] = {}
for row in claims._rows(FOLDER / "samo" / "claims.yaml"):
    claim = parse_claim(row, "samo")
    CLAIMS[claim.id] = claim
PROBES = (bytes_of.__name__, sent.__name__)
ASKED = [
    (name, row) for name, claim in CLAIMS.items() for row in claim.answers if row.function.rpartition(".")[0] in PROBES
]


def ours(name: str, evidence: Evidence = Evidence.MEASURED, source: Any = None) -> Answer:
    (row,) = (row for row in CLAIMS[name].answers if row.evidence is evidence)
    return answer(CLAIMS[name], row, source)


# Bytes of model states


def test_bytes_of_a_rank_by_hand() -> None:
    """Two bytes of a half and four of a full number; Adam has two moments, and the index is of 32 bits."""
    dense, pruned = (
        bytes_of.permanent_bytes(bytes_of.small(400)),
        bytes_of.permanent_bytes(bytes_of.small(400, Fraction(1, 4))),
    )
    assert dense == {
        **{"theta16": 800, "grad16": 800, "theta32": 1600, "grad32": 1600, "optimizer_state": 3200},
        **{"index": 0, "else": 0},
    }
    assert pruned == {
        **{"theta16": 800, "grad16": 200, "theta32": 400, "grad32": 400, "optimizer_state": 800},
        **{"index": 400, "else": 0},
    }
    single = bytes_of.permanent_bytes(bytes_of.small(400, half=None))
    assert sum(single.values()) == 16 * 400
    assert single["theta16"] == single["grad16"] == 0


def test_samo_step_makes_a_half_copy_of_kept_entries() -> None:
    assert bytes_of.step_bytes(bytes_of.small(400, Fraction(1, 4))) == 2 * 100
    assert bytes_of.step_bytes(bytes_of.small(400)) == 0
    assert bytes_of.total(400, Fraction(1, 4)) == (24 * 100) + 2 * 400


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("samo.sec3.mixed_precision_overhead", (25,)),
        ("samo.sec3a.compressible_share", (90,)),
        ("samo.sec3d.default_bytes.optimizer_state", (8,)),
        ("samo.fig2.break_even", (0.25,)),
        ("samo.fig2.saving_range", (66, 78)),
        ("samo.fig2.monotone", (-18, 6, 36, 66, 84)),
    ],
)
def test_shares_by_hand(name: str, values: Sequence[float]) -> None:
    assert ours(name).values == values


def _double_states(patch: pytest.MonkeyPatch) -> None:
    """Every state is allocated with twice its size."""
    allocate = ModelState._allocate

    def twice(self: ModelState, state: Any) -> torch.Tensor:
        tensor = allocate(self, state)
        return torch.zeros(2 * tensor.numel(), dtype=tensor.dtype)[: tensor.numel()]

    patch.setattr(ModelState, "_allocate", twice)


def _dense_moments(patch: pytest.MonkeyPatch) -> None:
    """Adam's moments are not compressed."""
    allocate = ModelState._allocate

    def dense(self: ModelState, state: Any) -> torch.Tensor:
        tensor = allocate(self, state)
        return torch.zeros(bytes_of.ENTRIES)[: tensor.numel()] if state.kind == "moments" else tensor

    patch.setattr(ModelState, "_allocate", dense)


def _not_cast(patch: pytest.MonkeyPatch) -> None:
    """The half-precision weights stay in full precision."""
    patch.setattr(train_state, "cast", lambda layers, half: layers.float())


def _copied(patch: pytest.MonkeyPatch) -> None:
    """A step copies all weights in full precision."""
    rounded = ModelState._round_bucket

    def copied(self: ModelState, at: slice, full: torch.Tensor) -> None:
        again = full.clone()
        rounded(self, at, again)

    patch.setattr(ModelState, "_round_bucket", copied)


BREAKS = {
    "samo.sec3a.compressible_share": _dense_moments,
    "samo.sec3d.default_bytes.theta16": _not_cast,
    "samo.sec3d.theta16_bytes": _not_cast,
    "samo.sec3d.temporary_bytes": _copied,
    **dict.fromkeys(("samo.fig2.break_even", "samo.fig2.saving_range", "samo.fig2.monotone"), _copied),
}


@pytest.mark.parametrize(
    "name", [name for name, row in ASKED if row.function.startswith(bytes_of.__name__) and "index_width" not in name]
)
def test_bytes_are_those_that_the_engine_allocates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = ours(name).values
    BREAKS.get(name, _double_states)(monkeypatch)
    assert ours(name).values != values


def test_an_index_is_as_wide_as_the_engine_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest layer of GPT-3 175B is a block of 12 h^2 + 13 h weights, h = 12288."""
    assert 2**30 < 12 * 12288**2 + 13 * 12288 < 2**31
    assert ours("samo.sec3b.index_width").values == (32,)
    monkeypatch.setattr(layout, "INDEX", "int64")
    assert ours("samo.sec3b.index_width").values == (64,)


# Messages


def test_messages_by_hand() -> None:
    """An end of a pipeline has one neighbour, to which it sends and from which it receives, in each pass."""
    bytes_sent = sent.batch(Grid(inter=3, data=2), samples=8, microbatch=2)
    assert sorted((one.stage, one.sent, one.received, one.forwards) for one in bytes_sent) == [
        *[(0, 2, 2, 2)] * 2,
        *[(1, 4, 4, 2)] * 2,
        *[(2, 2, 2, 2)] * 2,
    ]


def test_send_time_and_microbatches_by_hand() -> None:
    assert ours("samo.eq10.send_time").values == (24, 32, 40)
    assert ours("samo.sec4b.microbatches_per_gpu").values == (4, 2, 3)


@pytest.mark.parametrize("name", [name for name, row in ASKED if row.function.startswith(sent.__name__)])
def test_messages_are_those_of_the_microbatches_that_ranks_train(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, counted = ours(name).values, BatchSlicer.count
    monkeypatch.setattr(BatchSlicer, "count", lambda self, inputs: max(1, counted(self, inputs) // 2))
    assert ours(name).values != values


# Schedules and formulas


def test_bubble_is_asked_of_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, (t_f + t_b) * (1 - 1 / G_inter) is 6, 3 and 7.

    A forward pass of 0.375 and a backward pass of 0.625 leave gaps in the order of AxoNN.
    """
    name = "samo.eq7.bubble"
    values = ours(name, Evidence.DERIVED).values
    assert values == pytest.approx((6, 3, 7, 6, 3.125, 7))
    with monkeypatch.context() as changed:
        changed.setattr(MessageDriven, "in_flight", lambda self, place, interval: 1)
        slower = ours(name, Evidence.DERIVED).values
    assert slower[:3] == values[:3]
    assert all(one > other for one, other in zip(slower[3:], values[3:], strict=True))
    monkeypatch.setattr(OneFOneB, "program", _no_warm_up)
    slower = ours(name, Evidence.DERIVED).values
    assert slower[3:] == values[3:]
    assert all(one > other for one, other in zip(slower[:3], values[:3], strict=True))


def _no_warm_up(self: OneFOneB, place: Place, interval: FlushInterval) -> Iterator[tuple[Op, ...]]:
    for index in range(interval.first, interval.end):
        yield (Op(place.stage, Kind.FORWARD, index),)
        yield (Op(place.stage, Kind.BACKWARD, index),)
        if interval.completes_update(index):
            yield (Op(place.stage, Kind.UPDATE, interval.update_of(index)),)


def test_bubbles_and_passes_are_counted_in_both_orders() -> None:
    """By hand (G_inter - 1) times the passes of a stage, of 1 and 2 units, then of 3/8 and 5/8."""
    values = ours("samo.fig3.bubble_equals_passes", Evidence.DERIVED).values
    by_hand = [3.0 * (stages - 1) for stages in (3, 2, 4, 8) for _ in range(stages)] + [3.0] * 4
    assert values[1::2] == tuple(by_hand * 2)
    assert values[: 2 * len(by_hand) : 2] == tuple(by_hand), "1F1B"
    assert values[2 * len(by_hand) :: 2] == (*by_hand[:-4], *[3.125] * 4), "message-driven"


def test_gains_in_bubble_by_hand() -> None:
    """3 * (1 - 1 / n), minus the values for n - 1 and n / 2."""
    values = ours("samo.sec4b.diminishing_returns", Evidence.DERIVED).values
    fewer = [3 / (n * (n - 1)) for n in (2, 4, 8, 16, 32)]
    half = [3 / n for n in (2, 4, 8, 16, 32)]
    assert values == pytest.approx([*fewer, *half] * 2)


def test_flops_of_sparse_kernels_have_attention_whole() -> None:
    """One block of h = 4, s = 2: 24 s h^2 + 4 s^2 h = 768 + 64, and a head of 2 s h v = 48."""
    shape = Transformer(layers=1, hidden=4, heads=1, sequence=2, vocabulary=3)
    papers = Papers({}, {}, dict.fromkeys(formulas.GPTS, shape))
    cases, _ = formulas.sparse_flops(Question({"sparsity": 0.75}), papers)
    assert set(map(tuple, cases)) == {(Fraction(100 * ((768 + 48) // 4 + 64), 768 + 48 + 64),)}


# Printed numbers


PAPERS = Papers(CLAIMS, {}, {})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("samo.abstract.speedup_over_axonn", (32,)),
        ("samo.abstract.memory_reduction", (74,)),
        ("samo.sec6b.max_speedup.gpt3_2_7b", (24,)),
        ("samo.fig6_7.speedup_over_axonn.gpt3_13b", (100 * (1 - 39.7 / 48.8), 100 * (1 - 22.9 / 31.0))),
        ("samo.sec6b.max_speedup.gpt3_13b", (100 * (1 - 22.9 / 31.0),)),
        ("samo.table2.smaller_drop", tuple(100 * (1 - b / a) for a, b in ((53.4, 31), (43.3, 22.9), (44.6, 20.6)))),
        ("samo.fig6_7.samo_over_sputnik", (53.4 / 18.9, 48.8 / 18.5, 41.1 / 16.8, 31 / 12.2)),
        ("samo.fig6_7.larger_over_deepspeed", (19, 10, 51, 47, 17, 10, 33, 24, 12, 11, 38, 23, 16.4, 19, 34, 26)),
    ],
)
def test_printed_numbers_by_hand(name: str, values: Sequence[float]) -> None:
    assert ours(name, Evidence.PRINTED, PAPERS.without(name)).values == pytest.approx(values)


def test_gains_of_table_2_begin_with_the_largest_count() -> None:
    values = ours("samo.sec6b.speedup_grows_with_gpus", Evidence.PRINTED, PAPERS).values
    assert values == pytest.approx((26.129, 21.655, 18.648, 18.914), abs=1e-3)


def test_ends_of_size_ratios_are_counted_from_shapes() -> None:
    sizes = zip(counts.GPTS, (9, 20, 50, 90), strict=True)
    shapes = {name: SimpleNamespace(parameters=count * 126_886_696) for name, count in sizes}
    ratios, _ = counts.size_ratios(Question({}), SimpleNamespace(shapes=shapes))  # type: ignore[arg-type]
    assert ratios == [[Fraction(9 * 126_886_696, 143_667_240), 90]]


# Null models


def test_the_null_model_of_table_2_is_the_bubble_alone() -> None:
    """32 stages; 256 microbatches on 256 GPUs and 128 on 512."""
    metric = ours("samo.table2.axonn.gpus_512", Evidence.SIMULATED, lab())
    assert metric.null == pytest.approx((43.3 * (128 / 159) / (256 / 287),))
    assert ours("samo.table2.axonn.gpus_256", Evidence.SIMULATED, lab()).null == pytest.approx((43.3,))


def test_null_model_of_largest_speedup_begins_with_the_printed_one() -> None:
    """6.7B on 16 and 4 stages: 128 and 32 microbatches on 128 GPUs, 16 and 4 on 1024."""
    metric = ours("samo.sec6b.max_speedup.gpt3_6_7b", Evidence.SIMULATED, lab())
    shares = [(m / (m + 15)) / (n / (n + 3)) for m, n in ((128, 32), (16, 4))]
    assert metric.null == pytest.approx((100 * (1 - 0.89 * shares[1] / shares[0]),))


def test_communication_is_shorter_in_relation_to_itself() -> None:
    values = ours("samo.abstract.communication_time_reduction", Evidence.SIMULATED, lab()).values
    parts = figures.phases(lab(), "axonn", 512), figures.phases(lab(), "axonn_samo", 512)
    dense, pruned = (one.point_to_point + one.bubble + one.collective for one in parts)
    assert values == pytest.approx((100 * (dense - pruned) / dense,))
    assert values[0] > ours("samo.fig8.total.gpus_512", Evidence.SIMULATED, lab()).values[0]
