"""The tuner: which plans there are, in which order they are predicted, and which one the samples of a few choose."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from suite.cli.tune import main, systems
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.grid import Grid
from suite.core.record import Metric, Outcome, Record, Source
from suite.runner import tune
from suite.runner.executors.registry import without_ranks
from suite.runner.progress import Progress
from suite.runner.runs import expand
from suite.runner.tune import Candidate, Choice, Tuned, candidates, choose, planned, ranked
from suite.simulate import search
from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.roofline import Roofline
from suite.simulate.executor import Simulated

SMALL = ["batch.size=4", "machine=h200"]
LARGE = [
    "machine=summit",
    "stack=samo",
    "model=gpt3_2_7b",
    "batch.size=512",
    "activation_checkpointing=auto",
    "precision=fp16",
]


@cache
def plans(system: str, devices: int, *overrides: str) -> dict[str, Candidate]:
    return {one.plan: one for one in candidates([f"system={system}", *SMALL, *overrides], devices)}


def record(samples: tuple[float, ...], turns: str = "together", outcome: Outcome = Outcome.OK) -> Record:
    return Record(
        key="0" * 20,
        experiment="tuning",
        system="axonn",
        label="axonn",
        outcome=outcome,
        reason="" if outcome is Outcome.OK else "rank 0: said this\nand more",
        source=Source.MEASURED,
        config={},
        metrics={"batch_time": Metric("s", "lower", samples)} if samples else {},
        provenance={"turns": turns},
    )


# -- candidates ----------------------------------------------------------------------------------------------------


def test_the_grids_of_four_devices() -> None:
    assert [*map(str, tune.grids(4, tensor=False))] == ["1x4", "2x2", "4x1"]
    split = ["1x4", "2x2", "4x1", "1x2x2", "2x1x2", "1x1x4"]
    assert [*map(str, tune.grids(4, tensor=True))] == split
    assert all(grid.size == 4 for grid in tune.grids(4, tensor=True))


def test_the_plans_of_a_small_batch_on_two_devices() -> None:
    found = dict(plans("axonn", 2))
    assert list(found) == [
        *("1x2 microbatch 1", "1x2 microbatch 2", "1x2 microbatch 4"),
        *("2x1 microbatch 1", "2x1 microbatch 2", "2x1 microbatch 4"),
    ]
    refused = found.pop("1x2 microbatch 4").reason
    assert refused.startswith("refused: batch.size=4 on grid.data=2 replicas with batch.microbatch=4; rule: ")
    assert {one.reason for one in found.values()} == {""}
    run = found["2x1 microbatch 2"].run
    assert (run.grid, run.config.batch.microbatch, run.label) == (
        Grid(inter=2),
        2,
        "axonn 2x1 batch.size=4 batch.microbatch=2",
    )
    assert not {"tune", "machine"} & run.settings.keys(), "what only the tuner reads would give equal runs two names"


def test_the_numbers_of_a_run_are_those_of_the_tuner() -> None:
    run = planned(["system=axonn", "tune.rounds=7", "tune.batches=3"], Grid(), 2)
    assert (run.config.measure.rounds, run.config.measure.batches) == (7, 3)
    assert run.config.experiment.name == "tuning"
    assert run.label == "axonn 1x1 batch.microbatch=2"


def test_a_system_that_has_one_microbatch_is_left_that_one() -> None:
    able = [plan for plan, one in plans("naive", 2).items() if not one.reason]
    assert able == ["1x2 microbatch 2", "2x1 microbatch 4"]


def test_a_modelled_system_is_simulated_as_a_simulated_run_is() -> None:
    found = plans("axonn", 2)["2x1 microbatch 2"]
    overrides = ["system=axonn", *SMALL, "executor=simulated", "grid.inter=2", "batch.microbatch=2"]
    config = resolve(overrides)
    batch_time = without_ranks(config.executor).run(config).metrics["batch_time"].values
    assert ((found.seconds,), found.by) == (batch_time, "simulated")


def test_another_system_is_estimated_by_the_closed_form() -> None:
    """That of GPipe's twin where the order is GPipe's: recomputation is all that differs."""
    found = plans("torch_gpipe", 2, "schedule=gpipe")["2x1 microbatch 1"]
    config = resolve(["system=gpipe", *SMALL, "executor=simulated", "grid.inter=2", "batch.microbatch=1"])
    simulated = without_ranks(config.executor)
    twin = simulated.of(config)
    plan = replace(twin, system=replace(twin.system, activation_checkpointing="none"))
    assert found.by == "closed form"
    assert found.seconds == search.estimate(plan, simulated.machine, simulated.stack)
    assert found.seconds < search.estimate(twin, simulated.machine, simulated.stack)


@pytest.mark.parametrize("system", ["axonn", "torch_gpipe"])
def test_what_does_not_fit_is_not_measured(system: str) -> None:
    """By the suite's own budget of the run: a larger microbatch needs more."""
    config = expand([f"system={system}", "batch.size=4", "grid.inter=2", "batch.microbatch=2"])[0].config
    room = max(budget.peak for budget in tune.estimate.budgets(config))
    found = plans(system, 2, f"machine.memory={room}")
    assert found["2x1 microbatch 2"].reason == ""
    assert plans(system, 2, f"machine.memory={room - 1}")["2x1 microbatch 2"].reason.startswith("does not fit: ")
    assert found["2x1 microbatch 4"].reason.startswith("does not fit: ")
    assert found["2x1 microbatch 4"].reason.endswith(f"on a device of h200 with {tune.si(room, 'B')}")


@pytest.mark.parametrize(
    ("system", "sparsity", "stages"),
    [("axonn_no_memopt", 0.0, 8), ("axonn_samo", 0.9, 2), ("axonn_samo", 0.5, 4), ("axonn_samo", 0.0, 8)],
)
def test_the_more_is_pruned_the_fewer_stages_are_chosen(system: str, sparsity: float, stages: int) -> None:
    """2.7B on 64 V100 (SAMO IV-B). At sparsity 0 the index alone exceeds the saving."""
    pruned = [f"pruning.sparsity={sparsity}"] if system == "axonn_samo" else []
    own = [f"system={system}", *LARGE, *pruned, "launch.max_ranks=64", "launch.memory_check=false"]
    predictor = without_ranks(resolve([*own, "executor=simulated"]).executor)
    assert isinstance(predictor, Simulated)
    tried = [Grid(data=64 // inter, inter=inter) for inter in (stages // 2, stages, 2 * stages)]
    found = [tune.predicted(planned(own, grid, 1), predictor) for grid in tried]
    assert [one.reason.partition(":")[0] for one in found] == ["does not fit", "", ""]
    assert found[0].seconds < found[1].seconds < found[2].seconds, "fewer stages would be quicker, if they fitted"
    assert ranked(found)[0].run.grid.inter == stages


def twin(*overrides: str) -> tuple[Simulated, SimulationPlan]:
    config = resolve([*SMALL, "executor=simulated", "batch.microbatch=2", "grid.data=2", *overrides])
    predictor: Simulated = without_ranks(config.executor)
    return predictor, predictor.of(config)


def sent(*overrides: str) -> int:
    """Bytes that a replica of a system's twin sends in an update."""
    predictor, plan = twin(*overrides)
    return sum(chunk.reduce for chunk in Roofline(plan, predictor.machine, predictor.stack).update(0))


@pytest.mark.parametrize("system", ["axonn_samo", "sputnik"])
def test_a_twin_is_pruned_as_its_config_is(system: str) -> None:
    whole = sent("system=axonn_no_memopt")
    for sparsity in (0.9, 0.75, 0.5, 0.0):
        assert sent(f"system={system}", f"pruning.sparsity={sparsity}") == pytest.approx((1 - sparsity) * whole, abs=2)
    assert sent(f"system={system}") == sent(f"system={system}", "pruning.sparsity=0.9")


def test_a_twin_without_a_ticket_keeps_its_states_whole() -> None:
    states = twin("system=axonn_samo", "pruning=none")[1].layout(0)
    assert states == twin("system=axonn_no_memopt")[1].layout(0)
    assert twin("system=axonn_samo", "pruning.sparsity=0.0")[1].layout(0) != states, "an index of everything"


@pytest.mark.parametrize(("sparsity", "told"), [(0.5, True), (0.9, False)])
def test_sparse_products_at_another_sparsity_are_said_to_be_no_better_known(sparsity: float, told: bool) -> None:
    overrides = [*SMALL, "system=sputnik", "executor=simulated", "batch.microbatch=2", f"pruning.sparsity={sparsity}"]
    config = resolve(overrides)
    notes = without_ranks(config.executor).run(config).notes
    assert any("sparse products are as quick as at sparsity 0.9" in note for note in notes) is told


@pytest.mark.parametrize("error", [IndexError("list index out of range"), KeyError("graph"), ZeroDivisionError()])
def test_a_plan_whose_budget_fails_is_named_and_the_others_are_predicted(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tune.estimate.budgets

    def budgets(config: RunConfig) -> list[Any]:
        if config.batch.microbatch == 1:
            raise error
        return known(config)

    monkeypatch.setattr(tune.estimate, "budgets", budgets)
    found = {one.plan: one for one in candidates(["system=axonn", *SMALL], 2)}
    failed = found["2x1 microbatch 1"]
    assert failed.reason.startswith(f"not predicted: {type(error).__name__}")
    assert found["2x1 microbatch 2"].reason == ""
    assert ranked([*found.values()])[0].reason == ""


def test_the_quickest_is_first_and_what_cannot_be_measured_last() -> None:
    run = planned(["system=axonn", *SMALL], Grid(), 1)
    named = {seconds: Candidate(run, seconds) for seconds in (3.0, 1.0, 2.0)}
    unable = Candidate(run, 0.5, reason="does not fit: 2 B on a device of x with 1 B")
    unknown = Candidate(run)
    order = ranked([unable, named[3.0], unknown, named[1.0], named[2.0]])
    assert [one.seconds for one in order] == [1.0, 2.0, 3.0, math.inf, 0.5]
    assert order[-1] is unable


# -- the choice ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "kept", "near"),
    [
        ([(2.0, 2.0, 2.0), (1.0, 1.0, 1.0)], 1, (1,)),
        ([(1.0, 1.0), (1.0, 1.0)], 0, (0, 1)),  # a tie
        ([(1.2, 1.2, 1.2), (0.5, 1.0, 1.5)], 0, (0, 1)),  # behind by less than the best's own spread
        ([(0.9, 1.2, 1.5), (1.0, 1.0, 1.0)], 0, (0, 1)),  # by less than its own
        ([(1.3, 1.35, 1.4), (0.95, 1.0, 1.05)], 1, (1,)),
        ([(9.0,) * 3, (1.1, 1.2, 1.3), (1.0, 1.1, 1.2)], 1, (1, 2)),
        ([(), (3.0,), (2.0,)], 2, (2,)),  # one sample each; the first did not end well
        ([(1.0, 1.0, 1.0, 1.0, 50.0), (2.0, 2.0, 2.0)], 0, (0,)),  # the median, not the mean
    ],
)
def test_the_best_median_is_kept_unless_it_is_no_better(
    measured: list[tuple[float, ...]], kept: int, near: tuple[int, ...]
) -> None:
    assert choose(measured) == Choice(kept, near)
    assert Choice(kept, near).decided is (len(near) == 1)


@pytest.mark.parametrize("measured", [[], [()], [(), ()]])
def test_nothing_is_chosen_among_nothing(measured: list[tuple[float, ...]]) -> None:
    assert choose(measured) is None


def test_what_did_not_end_well_has_no_samples() -> None:
    assert tune.samples(record((1.0,), outcome=Outcome.LOST_RANK)) == ()
    assert tune.samples(record((1.0, 2.0))) == (1.0, 2.0)


def test_records_that_took_no_turns_together_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    left = [[record((1.0,), "one"), record((2.0,), "other")], [record((3.0,)), record((4.0,))]]

    def measure(runs: list[Any], progress: Progress) -> list[Record]:
        asked.append([run.outline.rerun for run in runs])
        return left[len(asked) - 1]

    monkeypatch.setattr(tune, "measure", measure)
    runs = [planned(["system=axonn", *SMALL], Grid(), microbatch) for microbatch in (1, 2)]
    assert tune.in_turns(runs, Progress(1)) == left[1]
    assert asked == [["stale"] * 2, ["all"] * 2]
    assert runs[0].outline.rerun == "stale"


# -- what it leaves ------------------------------------------------------------------------------------------------


@pytest.fixture
def tuned(tmp_path: Path) -> Tuned:
    overrides = ["system=axonn", *SMALL, f"reports={tmp_path}"]
    runs = [planned(overrides, Grid(inter=2), 1), planned(overrides, Grid(data=2), 2), planned(overrides, Grid(), 1)]
    found = [Candidate(run, 0.001 * number, "simulated") for number, run in enumerate(runs, 1)]
    found += [Candidate(planned(overrides, Grid(data=2), 4), reason="refused: because")]
    measured = (record((0.004, 0.005, 0.006)), record((0.002,) * 3))
    return Tuned("axonn", 2, tuple(found), measured, choose([tune.samples(one) for one in measured]))


def test_a_line_says_what_was_predicted_measured_and_kept(tuned: Tuned) -> None:
    assert tune.lines(tuned) == [
        "axonn, gpt_tiny on 2 devices: 4 plans, 1 refused, 2 measured",
        "   1  2x1 microbatch 1  1.0 ms simulated, measured 5.0 ms, half of 3 in 4.5 to 5.5 ms, not kept",
        "   2  1x2 microbatch 2  2.0 ms simulated, measured 2.0 ms, half of 3 in 2.0 to 2.0 ms, kept",
        "   3  1x1 microbatch 1  3.0 ms simulated, not measured",
        "   -  1x2 microbatch 4  refused: because",
        "  decided: 1x2 microbatch 2",
    ]


def test_a_difference_within_the_spread_is_said_to_be_undecided(tuned: Tuned) -> None:
    near = replace(tuned, choice=Choice(0, (0, 1)))
    assert tune.lines(near)[-1] == (
        "  undecided: 2x1 microbatch 1 and 1x2 microbatch 2 are within their spread;"
        " 2x1 microbatch 1 was predicted before the others"
    )
    assert near.kept is near.candidates[0]


def test_a_failed_measurement_is_a_line_and_nothing_is_kept(tuned: Tuned) -> None:
    failed = replace(tuned, measured=(record((), outcome=Outcome.OOM),), choice=None)
    assert tune.lines(failed)[1].endswith("1.0 ms simulated, measured: oom, rank 0: said this")
    assert tune.lines(failed)[-1] == "  nothing is kept: no plan was measured"
    assert tune.write(failed, []) is None


def test_the_file_is_taken_by_a_run_and_by_an_experiment(tuned: Tuned, tmp_path: Path) -> None:
    told = ["machine=h200", "batch.size=4", "launch.binding=core", f"reports={tmp_path}", "tune.rounds=2"]
    path = tune.write(tuned, told)
    assert path == tmp_path / "tuned" / "axonn-gpt_tiny-2.yaml"
    assert path is not None
    values = ["system=axonn", "model=gpt_tiny", "batch.size=4", "launch.binding=core"]
    values += ["grid.data=2", "grid.inter=1", "grid.tensor=1", "batch.microbatch=2"]
    (run,) = expand([f"@{path}", f"reports={tmp_path}"])
    (same,) = expand([*values, f"reports={tmp_path}"])
    assert (run.config, run.refusal) == (same.config, None)
    assert run.grid == Grid(data=2)
    inside = expand([f"experiment.runs=[['@{path}'],['system=gpipe']]", f"reports={tmp_path}"])
    assert [one.config.system.name for one in inside] == ["axonn", "gpipe"]
    assert inside[0].config.batch.plain() == {"size": 4, "microbatch": 2}


def test_another_precision_is_another_file(tuned: Tuned, tmp_path: Path) -> None:
    told = {name: [*SMALL, f"reports={tmp_path}", f"precision={name}"] for name in ("full", "bf16", "fp16")}
    paths = []
    for overrides in told.values():
        kept = Candidate(planned(["system=axonn", *overrides], Grid(data=2), 2))
        paths.append(tune.write(replace(tuned, candidates=(kept,), choice=Choice(0, (0,))), overrides))
    stem = "axonn-gpt_tiny-2"
    assert [path.name for path in paths if path] == [f"{stem}.yaml", f"{stem}-bf16.yaml", f"{stem}-fp16.yaml"]
    (run,) = expand([f"@{paths[1]}", f"reports={tmp_path}"])
    assert run.config.precision.half == "bfloat16"


@pytest.mark.parametrize("text", ["a: 1", "- [1]", "- 1", "{"])
def test_a_file_that_is_no_list_of_overrides_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InvalidRequest, match="@FILE is a YAML list of overrides"):
        expand([f"@{tmp_path / 'mine.yaml'}"])
    with pytest.raises(InvalidRequest, match="No such file"):
        expand([f"@{tmp_path / 'other.yaml'}"])


# -- what is asked -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("tune.devices=0", "tune.devices=0; rule: at least 1; legal: tune.devices=1"),
        ("tune.candidates=0", "tune.candidates=0; rule"),
        ("tune.rounds=0", "tune.rounds=0; rule"),
        ("tune.batches=-1", "tune.batches=-1; rule"),
        ("tune.devices=two", "tune.devices=two; rule"),
        ("tune.devices=true", "tune.devices=true; rule: a whole number"),
        ("tune.devcies=2", "did you mean 'tune.devices'"),
        ("grid.inter=2", "grid and microbatch are what is tuned"),
        ("batch.microbatch=1", "grid and microbatch are what is tuned"),
        ("experiment=smoke", "grid and microbatch are what is tuned"),
        ("executor=simulated", "it measures ranks"),
    ],
)
def test_what_cannot_be_tuned_is_refused(override: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SuiteError) as caught:
        tune.tune("axonn", [*SMALL, override], Progress(1))
    assert words in str(caught.value)
    assert main(["system=axonn", *SMALL, override]) == 2
    assert words in capsys.readouterr().err


def test_where_nothing_can_run_every_plan_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["system=axonn", *SMALL, "tune.devices=3", "launch.max_ranks=2", f"reports={tmp_path}"]) == 2
    said = capsys.readouterr().out
    assert said.count("refused: ") == 6
    assert "nothing is kept" in said
    assert not (tmp_path / "tuned").exists()


def test_several_systems_are_named_at_once() -> None:
    assert systems(["system=axonn,gpipe", "batch.size=4"]) == (["axonn", "gpipe"], ["batch.size=4"])
    assert systems(["batch.size=4"]) == (["axonn"], ["batch.size=4"])
