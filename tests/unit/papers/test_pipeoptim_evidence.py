"""PipeOptim's claims by real ranks and printed cells, checked by hand and on changed code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from baselines.gpipe import GPipe
from suite.config.compose import resolve
from suite.core.errors import UnknownName
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.papers.common import claims
from suite.papers.common.answer import Papers, Question
from suite.papers.common.figure_executor import FigureExecutor
from suite.papers.pipeoptim import counts, memory_account, printed_cells, systems
from suite.papers.pipeoptim import probes_drift as drifts
from suite.papers.pipeoptim import probes_ranks as ranks
from suite.papers.pipeoptim.systems import ASYNCHRONOUS
from suite.schedule import OneFOneB
from suite.weights import Predict

CONFIGURED = systems.configured
FOUR = [{"D": 4, "rank": stage} for stage in range(4)]
IN_FOUR = {"pipeline_stages": 4}
AnswerFunction = Callable[..., tuple[Sequence[Sequence[Any]], str]]


@pytest.fixture(autouse=True, scope="module")
def fresh() -> None:
    """Clear cached runs, as other tests run changed code."""
    ranks.cached_run.cache_clear()


def ours(
    function: AnswerFunction,
    setting: Mapping[str, Any] | None = None,
    points: Sequence[Mapping[str, float]] = (),
    terms: Sequence[str] = (),
    **arguments: Any,
) -> list[list[Any]]:
    cases, _ = function(Question(setting or {}, tuple(points), tuple(terms)), None, **arguments)
    return [list(case) for case in cases]


def test_systems_are_read_from_their_configs() -> None:
    assert [CONFIGURED(system, 4).every for system in (*ASYNCHRONOUS, "gpipe")] == [1, 4, 1, 1, None]
    assert CONFIGURED("pipedream_2bw", 8).every == 8
    assert all(CONFIGURED(system, 4).schedule == OneFOneB() for system in ASYNCHRONOUS)
    assert CONFIGURED("pipeoptim", 4).policy == Predict("paper", "recompute")
    with pytest.raises(UnknownName):
        CONFIGURED("pipemare", 4)


def test_passes_follow_the_configured_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (ranks.schedule, counts.schedule):
        cases = ours(function, system="pipeoptim")
        assert all(first == second for first, second in cases)
        assert len(cases) == 48  # places of 24 mini-batches in two kinds, on eight stages
    assert ours(ranks.naive) == [[place, place] for place in range(32)]
    monkeypatch.setattr(systems, "configured", lambda name, stages: replace(CONFIGURED(name, stages), schedule=GPipe()))
    assert any(first != second for first, second in ours(counts.schedule, system="pipeoptim"))


BYTES = [{"D": 4, "rank": 0, "M": 256}, {"D": 4, "rank": 3, "M": 1024}, {"D": 8, "rank": 2, "M": 576}]
PEAK_BYTES = {  # versions times bytes of the stage
    "pipedream": [4 * 256, 1024, 6 * 576],
    "pipedream_2bw": [2 * 256, 2 * 1024, 2 * 576],
    "spectrain": [2 * 256, 2 * 1024, 2 * 576],
    "pipeoptim": [2 * 256, 1024, 2 * 576],
}


def test_weight_versions_by_hand() -> None:
    for system, expected in PEAK_BYTES.items():
        assert ours(counts.weights_memory, points=BYTES, system=system) == [expected]
    for system in ("pipedream", "pipeoptim"):
        assert ours(ranks.peak_bytes, points=BYTES, system=system) == [PEAK_BYTES[system]]
    assert ours(ranks.live_versions, system="pipeoptim") == [[2], [2], [2], [1]]
    assert ours(ranks.live_versions, system="pipedream_2bw") == [[2]] * 4
    assert ours(ranks.live_versions, points=[{"D": 4, "rank": 0}, {"D": 8, "rank": 1}], system="pipedream") == [[4, 7]]
    names = ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim", "gpipe")
    assert [each / (8 * 64) for each in ours(ranks.most_weight_memory, terms=names)[0]] == [4, 2, 2, 2, 1]


def test_versions_that_passes_read_by_hand() -> None:
    passes = ["forward", "backward"]
    assert ours(ranks.missing_updates, points=FOUR, system="pipedream", passes=passes) == [[3, 2, 1, 0]] * 2
    assert ours(ranks.consistent, system="pipedream") == [[version, version] for version in range(1, 12)]
    assert ours(ranks.stashing, system="pipedream") == [[version] * 3 for version in range(12)]
    fifth = [{**point, "minibatch": 5} for point in FOUR]
    assert ours(ranks.forward_version, points=fifth, system="pipedream") == [[2, 3, 4, 5]]
    assert ours(ranks.double_stale, system="pipedream_2bw") == [[0, 1]] * 8
    assert ours(ranks.updates_between, {**IN_FOUR, "stage": 0, "minibatch": 5}) == [[3]]
    assert ours(ranks.inconsistent, points=FOUR) == [[1, 1, 1, 0]]


def test_predictions_by_hand() -> None:
    for function in (ranks.backward_fresh, counts.backward_fresh):
        assert ours(function, IN_FOUR) == [[5] * 5]
    assert ours(ranks.last_stage, depths=[3, 4]) == [[0], [0]]
    points = [{"D": 4, "rank": 0}, {"D": 6, "rank": 1}, {"D": 3, "rank": 2}]
    assert ours(ranks.version_difference, points=points)[0] == pytest.approx([3, 4, 0], abs=1e-9)
    assert ours(counts.version_difference, points=points) == [[3, 4, 0]]
    assert ours(ranks.figure_1e, {**IN_FOUR, "stage": 1})[0] == pytest.approx([2], abs=1e-9)
    for function in (ranks.predictions_made, counts.predictions_made):
        assert ours(function, system="pipeoptim") == [[1], [1], [1]]
        assert ours(function, system="spectrain") == [[1], [1], [2]]
    small, large = ours(ranks.prediction_cost, terms=("pipeoptim", "spectrain"))[0]
    assert small == 3 * 64 < large


RULES = (
    (SGD(0.05, 0.9), True),
    (SGD(0.05, 0.9, direction="next"), False),
    (Adam(0.01), True),
    (AdamW(0.01, weight_decay=0.0), True),
    (AdamW(0.01, weight_decay=0.25), False),  # the decay of the last update is not predicted
)


def test_prediction_repeats_last_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every stage but the last."""
    for rule, same in RULES:
        monkeypatch.setattr(ranks, "RULES", {str(rule): rule})
        pairs = ours(ranks.by_the_optimizer)
        assert len({change for change, _ in pairs}) == ranks.DEPTH - 1
        assert all((predicted == pytest.approx(change, rel=1e-9)) is same for change, predicted in pairs), rule


def test_drift_and_predictions_by_hand() -> None:
    """Answers to PipeOptim's formulas follow the engine's update rules."""
    assert drifts.stepped(1.0, 0.5, [1.0, 2.0]) == -0.5
    assert drifts.predict_sgd(1.0, 0.5, 0.25, 3) == 0.625
    assert drifts.predict_momentum(1.0, 0.5, 0.25, 2) == 0.75
    assert drifts.direction(SGD(0.5, 0.5, 0.25), 3.0, 2, velocity=-2.0) == 1.25
    assert drifts.direction(SGD(0.5, 0.5, 0.25, direction="next"), 3.0, 2, velocity=-2.0) == 0.5 * 1.25 + 2.25
    assert drifts.direction(Adam(0.5, eps=0.0), -0.25, 1) == pytest.approx(-1.0, rel=1e-15)
    without_decay = drifts.direction(AdamW(0.5, weight_decay=0.5), 1.0, 1)
    assert without_decay == pytest.approx(1.0, rel=1e-7)
    # the weight of 0.5 decayed to 0.375 and stepped to -0.125, which decays next
    decayed = drifts.direction(AdamW(0.5, weight_decay=0.5, predict_decay=True), 1.0, 1)
    assert decayed == pytest.approx(without_decay - 0.5 * 0.125, rel=1e-7)


def test_microbatches_learn_what_plain_training_learns() -> None:
    losses = ours(ranks.gpipe, microbatches=4)
    assert len(losses) == 13
    assert all(piped == pytest.approx(alone, rel=1e-9) for alone, piped in losses)


# printed cells


def papers(**values: Any) -> Papers:
    """Claims that publish these values, and nothing else."""
    claim = claims.load()[0]
    return Papers({name: replace(claim, id=name, value=value) for name, value in values.items()}, {}, {})


def test_printed_cells_by_hand() -> None:
    cells = papers(a=35.3, b=50.5, c=47.3, bound=(12.91, float("inf")), hours=7.76, epoch=900.0)
    question = Question({})
    assert float(printed_cells.mean(question, cells, of=["a", "b", "c"])[0][0][0]) == pytest.approx(44.3667, abs=1e-4)
    assert float(printed_cells.ratio(question, cells, of="bound", over="hours")[0][0][0]) == pytest.approx(12.91 / 7.76)
    assert float(printed_cells.product(question, cells, of="bound", by="hours")[0][0][0]) == pytest.approx(12.91 * 7.76)
    assert printed_cells.hours(question, cells, epoch="epoch", epochs=70)[0] == [[17.5]]
    (lower, other), *_ = printed_cells.cases(question, cells, of=[["bound", "hours"]])[0]
    assert (float(lower), float(other)) == (12.91, 7.76)
    sentence = Papers({"sentence": replace(cells.claims["a"], printed=("21.29", "21.20"))}, {}, {})
    assert printed_cells.stated(question, sentence, beside="sentence", place=1)[0] == [[Fraction("21.20")]]
    data = papers(images=60000.0, classes=100.0, train=500.0, test=100.0)
    assert printed_cells.images(question, data, classes="classes", each=["train", "test"])[0] == [[60000]]
    assert printed_cells.classes(question, data, images="images", each=["train", "test"])[0] == [[100]]
    assert printed_cells.rest(question, data, images="images", classes="classes", less="test")[0] == [[500]]


# batches that fit


def test_the_memory_account_hands_out_its_batches() -> None:
    configured: Any = resolve(["experiment=pipeoptim_clusters"]).executor
    executor = configured.build()
    assert isinstance(executor, FigureExecutor)
    question, lab = Question({}, terms=("pipedream", "pipedream_2bw", "pipeoptim")), executor.lab
    batch = memory_account.largest(lab, "resnet_101", "pipeoptim", "keep")
    assert memory_account.batch(question, lab, model="resnet_101", system="pipeoptim", graph="keep")[0] == [[batch]]
    roomy = replace(lab, machine=replace(lab.machine, memory=2 * lab.machine.memory))
    (more,) = memory_account.batch(question, roomy, model="resnet_101", system="pipeoptim", graph="keep")[0][0]
    assert more > batch
