"""PipeOptim's claims by real ranks and printed cells, checked by hand and on changed code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch

from baselines.gpipe import GPipe
from baselines.pipedream import Stash
from suite.config.compose import resolve
from suite.core.errors import UnknownName
from suite.core.op import Op
from suite.core.protocols import Read, StageVersions
from suite.engine import weight_versions
from suite.engine.optim.optimizer import SGD
from suite.papers.common import claims
from suite.papers.common.answer import Papers, Question
from suite.papers.common.figure_executor import FigureExecutor
from suite.papers.pipeoptim import counts, memory_account, printed_cells, systems
from suite.papers.pipeoptim import probes_ranks as ranks
from suite.papers.pipeoptim.systems import ASYNCHRONOUS, Configured
from suite.schedule import OneFOneB
from suite.weights import Latest, Predict

CONFIGURED = systems.configured
FOUR = [{"D": 4, "rank": stage} for stage in range(4)]
IN_FOUR = {"pipeline_stages": 4}
AnswerFunction = Callable[..., tuple[Sequence[Sequence[Any]], str]]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Clear cached runs, as other tests run changed code."""
    ranks.cached_run.cache_clear()
    yield
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


def configure(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Configure all systems with another schedule, policy or update interval."""
    patch.setattr(systems, "configured", lambda system, stages: replace(CONFIGURED(system, stages), **changed))
    ranks.cached_run.cache_clear()


def predict_twice_as_far(patch: pytest.MonkeyPatch) -> None:
    original = weight_versions.predict
    patch.setattr(weight_versions, "predict", lambda state, rule, ahead, into: original(state, rule, 2 * ahead, into))
    ranks.cached_run.cache_clear()


def read_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stash, "read", lambda self, op, versions: Read(versions.updates, 0, self.graph))
    ranks.cached_run.cache_clear()


def test_systems_are_read_from_their_configs() -> None:
    assert [CONFIGURED(system, 4).every for system in (*ASYNCHRONOUS, "gpipe")] == [1, 4, 1, 1, None]
    assert CONFIGURED("pipedream_2bw", 8).every == 8
    assert all(CONFIGURED(system, 4).schedule == OneFOneB() for system in ASYNCHRONOUS)
    assert CONFIGURED("pipeoptim", 4).policy == Predict("paper", "recompute")
    with pytest.raises(UnknownName):
        CONFIGURED("pipemare", 4)


@pytest.mark.parametrize("system", ASYNCHRONOUS)
@pytest.mark.parametrize("function", [ranks.schedule, counts.schedule])
def test_passes_follow_the_configured_schedule(
    function: AnswerFunction, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = ours(function, system=system)
    assert all(first == second for first, second in cases)
    assert len(cases) == 48  # places of 24 mini-batches in two kinds, on eight stages
    configure(monkeypatch, schedule=GPipe())
    assert any(first != second for first, second in ours(function, system=system))


def test_gpipe_with_one_microbatch_is_naive(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours(ranks.naive) == [[place, place] for place in range(32)]
    configure(monkeypatch, schedule=OneFOneB(), every=1)
    assert any(first != second for first, second in ours(ranks.naive))


BYTES = [{"D": 4, "rank": 0, "M": 256}, {"D": 4, "rank": 3, "M": 1024}, {"D": 8, "rank": 2, "M": 576}]
PEAK_BYTES = {
    "pipedream": [4 * 256, 1024, 6 * 576],
    "pipedream_2bw": [2 * 256, 2 * 1024, 2 * 576],
    "spectrain": [2 * 256, 2 * 1024, 2 * 576],
    "pipeoptim": [2 * 256, 1024, 2 * 576],
}


@pytest.mark.parametrize("system", ASYNCHRONOUS)
def test_peak_weight_bytes_are_versions_times_stage(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours(ranks.peak_bytes, points=BYTES, system=system) == [PEAK_BYTES[system]]
    assert ours(counts.weights_memory, points=BYTES, system=system) == [PEAK_BYTES[system]]
    other = CONFIGURED("pipedream" if system != "pipedream" else "pipeoptim", 4)
    configure(monkeypatch, policy=other.policy, every=other.every)
    assert ours(ranks.peak_bytes, points=BYTES, system=system) != [PEAK_BYTES[system]]
    assert ours(counts.weights_memory, points=BYTES, system=system) != [PEAK_BYTES[system]]


def test_live_versions_per_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours(ranks.live_versions, system="pipeoptim") == [[2], [2], [2], [1]]
    assert ours(ranks.live_versions, system="pipedream_2bw") == [[2]] * 4
    assert ours(ranks.live_versions, points=[{"D": 4, "rank": 0}, {"D": 8, "rank": 1}], system="pipedream") == [[4, 7]]
    names = ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim", "gpipe")
    assert [each / (8 * 64) for each in ours(ranks.most_weight_memory, terms=names)[0]] == [4, 2, 2, 2, 1]
    monkeypatch.setattr(weight_versions.WeightVersions, "_release", lambda self: None)  # versions are never released
    ranks.cached_run.cache_clear()
    assert ours(ranks.live_versions, system="pipedream") != [[4], [3], [2], [1]]


FIFTH = [{**point, "minibatch": 5} for point in FOUR]


def test_stash_answers_follow_tensors_read(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[tuple[AnswerFunction, dict[str, Any]]] = [
        (ranks.missing_updates, {"points": FOUR, "system": "pipedream", "passes": ["forward", "backward"]}),
        (ranks.consistent, {"system": "pipedream"}),
        (ranks.stashing, {"system": "pipedream"}),
    ]
    right = [ours(function, **arguments) for function, arguments in questions]
    assert right[0] == [[3, 2, 1, 0], [3, 2, 1, 0]]
    assert right[1] == [[version, version] for version in range(1, 12)]
    assert right[2] == [[version] * 3 for version in range(12)]
    assert ours(ranks.forward_version, points=FIFTH, system="pipedream") == [[2, 3, 4, 5]]
    read_newest(monkeypatch)
    assert all(
        ours(function, **arguments) != each for (function, arguments), each in zip(questions, right, strict=True)
    )
    configure(monkeypatch, schedule=GPipe())
    assert ours(ranks.forward_version, points=FIFTH, system="pipedream") == [[5, 5, 5, 5]]


def test_double_buffer_lags_one_update(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours(ranks.double_stale, system="pipedream_2bw") == [[0, 1]] * 8
    configure(monkeypatch, policy=Latest("recompute"))
    assert [0, 0] in ours(ranks.double_stale, system="pipedream_2bw")


def test_weights_change_between_passes_without_stash(monkeypatch: pytest.MonkeyPatch) -> None:
    fifth = {**IN_FOUR, "stage": 0, "minibatch": 5}
    assert (ours(ranks.updates_between, fifth), ours(ranks.inconsistent, points=FOUR)) == ([[3]], [[1, 1, 1, 0]])
    configure(monkeypatch, schedule=GPipe())
    assert (ours(ranks.updates_between, fifth), ours(ranks.inconsistent, points=FOUR)) == ([[0]], [[0, 0, 0, 0]])


def test_only_forward_pass_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (ranks.backward_fresh, counts.backward_fresh):
        assert ours(function, IN_FOUR) == [[5] * 5]
    assert ours(ranks.last_stage, depths=[3, 4]) == [[0], [0]]

    def both(self: Predict, op: Op, versions: StageVersions) -> Read:
        return Read(versions.updates, versions.stages - op.stage, self.graph)

    monkeypatch.setattr(Predict, "read", both)
    ranks.cached_run.cache_clear()
    assert ours(ranks.backward_fresh, IN_FOUR) == [[5, 0, 0, 0, 0]]
    assert ours(counts.backward_fresh, IN_FOUR) == [[5, 9, 8, 7, 6]]
    assert ours(ranks.last_stage, depths=[4]) == [[12]]  # both passes of a mini-batch use one prediction


def test_prediction_distance_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [{"D": 4, "rank": 0}, {"D": 6, "rank": 1}, {"D": 3, "rank": 2}]
    assert ours(ranks.version_difference, points=points)[0] == pytest.approx([3, 4, 0], abs=1e-9)
    assert ours(counts.version_difference, points=points) == [[3, 4, 0]]
    assert ours(ranks.figure_1e, {**IN_FOUR, "stage": 1})[0] == pytest.approx([2], abs=1e-9)
    pairs = ours(ranks.by_the_optimizer)
    assert len(pairs) == 9
    assert all(predicted == pytest.approx(change, rel=1e-9) for change, predicted in pairs)
    predict_twice_as_far(monkeypatch)
    assert ours(ranks.version_difference, points=points)[0] == pytest.approx([6, 8, 0], abs=1e-9)
    assert ours(ranks.figure_1e, {**IN_FOUR, "stage": 1})[0] == pytest.approx([4], abs=1e-9)
    assert all(predicted == pytest.approx(2 * change, rel=1e-9) for change, predicted in ours(ranks.by_the_optimizer))
    configure(monkeypatch, policy=Predict("authors"))
    assert ours(counts.version_difference, points=points) == [[4, 5, 1]]


def test_both_systems_predictions_are_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (ranks.predictions_made, counts.predictions_made):
        assert ours(function, system="pipeoptim") == [[1], [1], [1]]
        assert ours(function, system="spectrain") == [[1], [1], [2]]
    small, large = ours(ranks.prediction_cost, terms=("pipeoptim", "spectrain"))[0]
    assert small == 3 * 64 < large
    configure(monkeypatch, policy=Latest("recompute"))
    assert ours(ranks.prediction_cost, terms=("pipeoptim", "spectrain")) == [[0, 0]]
    assert ours(counts.predictions_made, system="pipeoptim") == [[0], [0], [0]]
    assert ours(ranks.predictions_made, system="pipeoptim") == [[0], [0], [0]]


def test_microbatches_learn_what_plain_training_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = ours(ranks.gpipe, microbatches=4)
    assert len(losses) == 13
    assert all(piped == pytest.approx(alone, rel=1e-9) for alone, piped in losses)
    usual = SGD.step
    monkeypatch.setattr(SGD, "step", lambda self, on, grad: usual(self, on, torch.mul(grad, 1.01)))
    assert any(piped != pytest.approx(alone, rel=1e-9) for alone, piped in ours(ranks.gpipe, microbatches=4))


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
    alike, _ = memory_account.alike(question, lab, graph="keep")
    assert len(alike) == 4 + 3 + 3
    assert alike[0][0] == batch
    larger, _ = memory_account.larger(question, lab, graph="keep")
    assert larger[0][2] == memory_account.largest(lab, "gnmt_8", "pipeoptim", "keep")
    roomy = replace(lab, machine=replace(lab.machine, memory=2 * lab.machine.memory))
    (more,) = memory_account.batch(question, roomy, model="resnet_101", system="pipeoptim", graph="keep")[0][0]
    assert more > batch


def test_a_configured_system_is_a_value() -> None:
    """Runs are kept by it."""
    assert Configured(OneFOneB(), Latest(), 1) == Configured(OneFOneB(), Latest(), 1)
